"""The schema of 0.1.0

A table follows the tables that it refers to. Columns added later need a default, so that a hub of the
previous release still works with the new schema while several servers are upgraded one after another.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = '0100'
down_revision = None

_TABLES = (
    'attempts',
    'audit',
    'content_revision',
    'imports',
    'owners',
    'spending',
    'used_assertions',
    'users',
    'browser_sessions',
    'environments',
    'jobs',
    'linked_identities',
    'memberships',
    'models',
    'one_time_codes',
    'private_names',
    'publishers',
    'quotas',
    'second_factors',
    'signing_keys',
    'transfers',
    'former_names',
    'grants',
    'index_pages',
    'invitations',
    'model_revisions',
    'tokens',
    'transfer_parts',
    'versions',
    'webhooks',
    'boards',
    'downloads',
    'files',
    'model_files',
    'runs',
    'sealed_sets',
    'sealed_plays',
    'version_checks',
    'version_documents',
    'webhook_deliveries',
    'board_entries',
    'file_provenances',
    'hidden_runs',
    'run_artifacts',
    'run_checkpoints',
    'run_chunks',
    'run_completions',
    'run_examinations',
    'verifications',
    'verification_divergences',
)


def upgrade() -> None:
    op.create_table('attempts',
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('failures', sa.Integer(), nullable=False),
        sa.Column('until', sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint('sha256', name='pk_attempts')
    )
    op.create_index('ix_attempts_until', 'attempts', ['until'], unique=False)

    op.create_table('audit',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('actor', sa.String(length=80), nullable=False),
        sa.Column('token', sa.String(length=16), nullable=True),
        sa.Column('action', sa.String(length=40), nullable=False),
        sa.Column('owner', sa.String(length=39), nullable=True),
        sa.Column('target', sa.String(length=300), nullable=False),
        sa.Column('detail', sa.JSON(), nullable=False),
        sa.Column('address', sa.String(length=64), nullable=True),
        sa.Column('request_id', sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_audit')
    )
    op.create_index('ix_audit_action', 'audit', ['action', 'id'], unique=False)
    op.create_index('ix_audit_actor', 'audit', ['actor', 'id'], unique=False)
    op.create_index('ix_audit_at', 'audit', ['at'], unique=False)
    op.create_index('ix_audit_owner', 'audit', ['owner', 'id'], unique=False)

    op.create_table('content_revision',
        sa.Column('epoch', sa.String(length=32), nullable=False),
        sa.Column('number', sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint('epoch', name='pk_content_revision')
    )

    op.create_table('imports',
        sa.Column('archive', sa.String(length=64), nullable=False),
        sa.Column('kind', sa.String(length=16), nullable=False),
        sa.Column('name', sa.String(length=300), nullable=False),
        sa.Column('key', sa.Integer(), nullable=False),
        sa.Column('at', sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint('archive', 'kind', 'name', name='pk_imports')
    )

    op.create_table('owners',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=39), nullable=False),
        sa.Column('private_by_default', sa.Boolean(), nullable=False),
        sa.Column('internal_by_default', sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_owners'),
        sa.UniqueConstraint('name', name='uq_owners_name')
    )

    op.create_table('spending',
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('minute', sa.BigInteger(), nullable=False),
        sa.Column('spent', sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint('sha256', name='pk_spending')
    )

    op.create_table('used_assertions',
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint('sha256', name='pk_used_assertions')
    )
    op.create_index('ix_used_assertions_expires_at', 'used_assertions', ['expires_at'], unique=False)

    op.create_table('users',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=39), nullable=False),
        sa.Column('admin', sa.Boolean(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('password_hash', sa.Text(), nullable=True),
        sa.Column('disabled_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('removed_at', sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint('id', name='pk_users'),
        sa.UniqueConstraint('name', name='uq_users_name')
    )

    op.create_table('browser_sessions',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('seen_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_browser_sessions_user_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_browser_sessions'),
        sa.UniqueConstraint('sha256', name='uq_browser_sessions_sha256')
    )
    op.create_index('ix_browser_sessions_user_id', 'browser_sessions', ['user_id'], unique=False)

    op.create_table('environments',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=200), nullable=False),
        sa.Column('listed', sa.Boolean(), nullable=False),
        sa.Column('latest_version', sa.String(length=100), nullable=False),
        sa.Column('summary', sa.Text(), nullable=False),
        sa.Column('tags', sa.JSON(), nullable=False),
        sa.Column('marks', sa.Text(), server_default='', nullable=False),
        sa.Column('version_count', sa.Integer(), nullable=False),
        sa.Column('run_count', sa.Integer(), nullable=False),
        sa.Column('download_count', sa.BigInteger(), server_default='0', nullable=False),
        sa.Column('best_reward', sa.Double(), nullable=True),
        sa.Column('best_model', sa.Text(), nullable=True),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('status', sa.String(length=12), nullable=False),
        sa.Column('status_reason', sa.Text(), nullable=True),
        sa.Column('successor', sa.Text(), nullable=True),
        sa.Column('quarantine_reason', sa.Text(), nullable=True),
        sa.Column('deleted_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('private', sa.Boolean(), nullable=False),
        sa.Column('internal', sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_environments_owner_id_owners'),
        sa.PrimaryKeyConstraint('id', name='pk_environments'),
        sa.UniqueConstraint('owner_id', 'name', name='uq_environments_owner_id_name')
    )
    op.create_index('ix_environments_by_created_at', 'environments', ['listed', 'private', 'created_at', 'id'], unique=False)
    op.create_index('ix_environments_by_download_count', 'environments', ['listed', 'private', 'download_count', 'id'], unique=False)
    op.create_index('ix_environments_by_run_count', 'environments', ['listed', 'private', 'run_count', 'id'], unique=False)
    op.create_index('ix_environments_by_updated_at', 'environments', ['listed', 'private', 'updated_at', 'id'], unique=False)
    op.create_index('ix_environments_listing', 'environments', ['listed', 'updated_at', 'id'], unique=False)
    op.create_index('ix_environments_listing_of_owner', 'environments', ['owner_id', 'listed', 'updated_at', 'id'], unique=False)
    op.create_index('ix_environments_name', 'environments', ['name'], unique=False)
    op.create_index('ix_environments_owner_id_private', 'environments', ['owner_id', 'private'], unique=False)
    op.create_index('ix_environments_unmarked', 'environments', ['id'], unique=False, sqlite_where=sa.text("listed AND marks = ''"), postgresql_where=sa.text("listed AND marks = ''"))

    op.create_table('jobs',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(length=40), nullable=False),
        sa.Column('key', sa.String(length=200), nullable=False),
        sa.Column('payload', sa.JSON(), nullable=False),
        sa.Column('state', sa.String(length=12), nullable=False),
        sa.Column('priority', sa.Integer(), nullable=False),
        sa.Column('run_after', sa.DateTime(timezone=True), nullable=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('max_attempts', sa.Integer(), nullable=False),
        sa.Column('lease_owner', sa.String(length=100), nullable=True),
        sa.Column('lease_until', sa.DateTime(timezone=True), nullable=True),
        sa.Column('progress', sa.JSON(), nullable=False),
        sa.Column('cancel_requested', sa.Boolean(), nullable=False),
        sa.Column('error', sa.Text(), nullable=True),
        sa.Column('created_by_id', sa.Integer(), nullable=True),
        sa.Column('turn', sa.Double(), nullable=False),
        sa.Column('cost', sa.Double(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('finished_at', sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(['created_by_id'], ['users.id'], name='fk_jobs_created_by_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_jobs'),
        sa.UniqueConstraint('key', name='uq_jobs_key')
    )
    op.create_index('ix_jobs_turn', 'jobs', ['turn'], unique=False)
    op.create_index('ix_jobs_turns', 'jobs', ['created_by_id', 'turn'], unique=False)
    op.create_index('ix_jobs_waiting', 'jobs', ['state', 'priority', 'turn', 'id'], unique=False)

    op.create_table('linked_identities',
        sa.Column('issuer', sa.String(length=300), nullable=False),
        sa.Column('subject', sa.String(length=255), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_linked_identities_user_id_users'),
        sa.PrimaryKeyConstraint('issuer', 'subject', name='pk_linked_identities')
    )
    op.create_index('ix_linked_identities_user_id', 'linked_identities', ['user_id'], unique=False)

    op.create_table('memberships',
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('role', sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_memberships_owner_id_owners'),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_memberships_user_id_users'),
        sa.PrimaryKeyConstraint('owner_id', 'user_id', name='pk_memberships')
    )
    op.create_index('ix_memberships_user_id', 'memberships', ['user_id'], unique=False)

    op.create_table('models',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=200), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('deleted_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('private', sa.Boolean(), nullable=False),
        sa.Column('internal', sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_models_owner_id_owners'),
        sa.PrimaryKeyConstraint('id', name='pk_models'),
        sa.UniqueConstraint('owner_id', 'name', name='uq_models_owner_id_name')
    )

    op.create_table('one_time_codes',
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_one_time_codes_user_id_users'),
        sa.PrimaryKeyConstraint('user_id', name='pk_one_time_codes'),
        sa.UniqueConstraint('sha256', name='uq_one_time_codes_sha256')
    )

    op.create_table('private_names',
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('project', sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_private_names_owner_id_owners'),
        sa.PrimaryKeyConstraint('owner_id', 'project', name='pk_private_names')
    )

    op.create_table('publishers',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=200), nullable=True),
        sa.Column('kind', sa.String(length=8), nullable=False),
        sa.Column('issuer', sa.String(length=255), nullable=False),
        sa.Column('subject', sa.String(length=255), nullable=False),
        sa.Column('workflow', sa.String(length=255), nullable=True),
        sa.Column('deployment', sa.String(length=255), nullable=True),
        sa.Column('pinned', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('created_by_id', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(['created_by_id'], ['users.id'], name='fk_publishers_created_by_id_users'),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_publishers_owner_id_owners'),
        sa.PrimaryKeyConstraint('id', name='pk_publishers')
    )
    op.create_index('ix_publishers_issuer', 'publishers', ['issuer'], unique=False)
    op.create_index('ix_publishers_owner_id', 'publishers', ['owner_id'], unique=False)

    op.create_table('quotas',
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('stored_bytes', sa.BigInteger(), nullable=True),
        sa.Column('versions', sa.BigInteger(), nullable=True),
        sa.Column('runs', sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_quotas_owner_id_owners'),
        sa.PrimaryKeyConstraint('owner_id', name='pk_quotas')
    )

    op.create_table('second_factors',
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('secret', sa.String(length=64), nullable=False),
        sa.Column('confirmed_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('last_step', sa.Integer(), nullable=False),
        sa.Column('recovery', sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_second_factors_user_id_users'),
        sa.PrimaryKeyConstraint('user_id', name='pk_second_factors')
    )

    op.create_table('signing_keys',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('fingerprint', sa.String(length=64), nullable=False),
        sa.Column('name', sa.String(length=80), nullable=False),
        sa.Column('public_key', sa.String(length=44), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_signing_keys_user_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_signing_keys'),
        sa.UniqueConstraint('fingerprint', name='uq_signing_keys_fingerprint')
    )
    op.create_index('ix_signing_keys_user_id', 'signing_keys', ['user_id'], unique=False)

    op.create_table('transfers',
        sa.Column('id', sa.String(length=32), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(length=8), nullable=False),
        sa.Column('digest', sa.String(length=64), nullable=False),
        sa.Column('stated', sa.JSON(), nullable=False),
        sa.Column('manifest', sa.Text(), nullable=True),
        sa.Column('listed', sa.JSON(), nullable=False),
        sa.Column('finished', sa.Boolean(), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_transfers_user_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_transfers'),
        sa.UniqueConstraint('user_id', 'kind', 'digest', name='uq_transfers_user_id_kind_digest')
    )
    op.create_index('ix_transfers_expires_at', 'transfers', ['expires_at'], unique=False)

    op.create_table('former_names',
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=200), nullable=False),
        sa.Column('environment_id', sa.Integer(), nullable=False),
        sa.Column('moved_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_former_names_environment_id_environments'),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_former_names_owner_id_owners'),
        sa.PrimaryKeyConstraint('owner_id', 'name', name='pk_former_names')
    )

    op.create_table('grants',
        sa.Column('environment_id', sa.Integer(), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('role', sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_grants_environment_id_environments'),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_grants_user_id_users'),
        sa.PrimaryKeyConstraint('environment_id', 'user_id', name='pk_grants')
    )
    op.create_index('ix_grants_user_id', 'grants', ['user_id'], unique=False)

    op.create_table('index_pages',
        sa.Column('owner_id', sa.Integer(), nullable=False),
        sa.Column('project', sa.String(length=200), nullable=False),
        sa.Column('environment_id', sa.Integer(), nullable=True),
        sa.Column('in_namespace', sa.Boolean(), nullable=False),
        sa.Column('html', sa.LargeBinary(), nullable=False),
        sa.Column('html_etag', sa.String(length=64), nullable=False),
        sa.Column('html_gzip', sa.LargeBinary(), nullable=True),
        sa.Column('html_zstd', sa.LargeBinary(), nullable=True),
        sa.Column('json', sa.LargeBinary(), nullable=False),
        sa.Column('json_etag', sa.String(length=64), nullable=False),
        sa.Column('json_gzip', sa.LargeBinary(), nullable=True),
        sa.Column('json_zstd', sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_index_pages_environment_id_environments'),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_index_pages_owner_id_owners'),
        sa.PrimaryKeyConstraint('owner_id', 'project', name='pk_index_pages')
    )
    op.create_index('ix_index_pages_environment_id', 'index_pages', ['environment_id'], unique=False)
    op.create_index('ix_index_pages_in_namespace', 'index_pages', ['project'], unique=False, sqlite_where=sa.text('in_namespace = 1'), postgresql_where=sa.text('in_namespace'))

    op.create_table('invitations',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('owner_id', sa.Integer(), nullable=True),
        sa.Column('environment_id', sa.Integer(), nullable=True),
        sa.Column('name', sa.String(length=39), nullable=False),
        sa.Column('role', sa.String(length=12), nullable=False),
        sa.Column('invited_by_id', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_invitations_environment_id_environments'),
        sa.ForeignKeyConstraint(['invited_by_id'], ['users.id'], name='fk_invitations_invited_by_id_users'),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_invitations_owner_id_owners'),
        sa.PrimaryKeyConstraint('id', name='pk_invitations')
    )
    op.create_index('ix_invitations_expires_at', 'invitations', ['expires_at'], unique=False)
    op.create_index('ix_invitations_invited_by_id', 'invitations', ['invited_by_id'], unique=False)
    op.create_index('ix_invitations_name', 'invitations', ['name'], unique=False)
    op.create_index('uq_invitations_environment', 'invitations', ['environment_id', 'name'], unique=True)
    op.create_index('uq_invitations_owner', 'invitations', ['owner_id', 'name'], unique=True)

    op.create_table('model_revisions',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('model_id', sa.Integer(), nullable=False),
        sa.Column('revision', sa.String(length=64), nullable=False),
        sa.Column('weights_sha256', sa.String(length=64), nullable=False),
        sa.Column('architecture', sa.String(length=100), nullable=False),
        sa.Column('parameters', sa.BigInteger(), nullable=False),
        sa.Column('card_html', sa.Text(), nullable=False),
        sa.Column('yanked', sa.Boolean(), nullable=False),
        sa.Column('yanked_reason', sa.Text(), nullable=True),
        sa.Column('deleted_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('pushed_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('pushed_by_id', sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(['model_id'], ['models.id'], name='fk_model_revisions_model_id_models'),
        sa.ForeignKeyConstraint(['pushed_by_id'], ['users.id'], name='fk_model_revisions_pushed_by_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_model_revisions'),
        sa.UniqueConstraint('model_id', 'revision', name='uq_model_revisions_model_id_revision')
    )
    op.create_index('ix_model_revisions_weights_sha256', 'model_revisions', ['weights_sha256'], unique=False)

    op.create_table('tokens',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('user_id', sa.Integer(), nullable=False),
        sa.Column('name', sa.String(length=80), nullable=False),
        sa.Column('prefix', sa.String(length=16), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('scope', sa.String(length=40), nullable=False),
        sa.Column('owner_id', sa.Integer(), nullable=True),
        sa.Column('environment_id', sa.Integer(), nullable=True),
        sa.Column('environment_name', sa.String(length=200), nullable=True),
        sa.Column('claims', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('parent_id', sa.Integer(), nullable=True),
        sa.Column('version_id', sa.Integer(), nullable=True),
        sa.Column('job_id', sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_tokens_environment_id_environments'),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_tokens_owner_id_owners'),
        sa.ForeignKeyConstraint(['parent_id'], ['tokens.id'], name='fk_tokens_parent_id_tokens'),
        sa.ForeignKeyConstraint(['user_id'], ['users.id'], name='fk_tokens_user_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_tokens'),
        sa.UniqueConstraint('sha256', name='uq_tokens_sha256')
    )
    op.create_index('ix_tokens_parent_id', 'tokens', ['parent_id'], unique=False)
    op.create_index('ix_tokens_prefix', 'tokens', ['prefix'], unique=False)
    op.create_index('ix_tokens_user_id', 'tokens', ['user_id'], unique=False)

    op.create_table('transfer_parts',
        sa.Column('transfer_id', sa.String(length=32), nullable=False),
        sa.Column('filename', sa.String(length=255), nullable=False),
        sa.Column('offset', sa.BigInteger(), nullable=False),
        sa.Column('size', sa.Integer(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('object_sha256', sa.String(length=64), nullable=False),
        sa.Column('rollouts', sa.Integer(), nullable=False),
        sa.Column('row_frames', sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(['transfer_id'], ['transfers.id'], name='fk_transfer_parts_transfer_id_transfers'),
        sa.PrimaryKeyConstraint('transfer_id', 'filename', 'offset', name='pk_transfer_parts')
    )
    op.create_index('ix_transfer_parts_object_sha256', 'transfer_parts', ['object_sha256'], unique=False)

    op.create_table('versions',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('environment_id', sa.Integer(), nullable=False),
        sa.Column('version', sa.String(length=100), nullable=False),
        sa.Column('release', sa.String(length=100), nullable=False),
        sa.Column('summary', sa.Text(), nullable=False),
        sa.Column('requires_python', sa.Text(), nullable=True),
        sa.Column('requires_dist', sa.JSON(), nullable=False),
        sa.Column('license', sa.Text(), nullable=True),
        sa.Column('tags', sa.JSON(), nullable=False),
        sa.Column('entry_point', sa.Text(), nullable=True),
        sa.Column('readme', sa.Text(), nullable=False),
        sa.Column('readme_html', sa.Text(), nullable=False),
        sa.Column('check_summary', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('environment_kind', sa.String(length=40), nullable=True),
        sa.Column('deterministic', sa.Boolean(), nullable=True),
        sa.Column('checked', sa.Boolean(), nullable=True),
        sa.Column('source', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('yanked', sa.Boolean(), nullable=False),
        sa.Column('yanked_reason', sa.Text(), nullable=True),
        sa.Column('deleted_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('deleted_reason', sa.Text(), nullable=True),
        sa.Column('uploaded_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('uploaded_by_id', sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_versions_environment_id_environments'),
        sa.ForeignKeyConstraint(['uploaded_by_id'], ['users.id'], name='fk_versions_uploaded_by_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_versions'),
        sa.UniqueConstraint('environment_id', 'release', name='uq_versions_environment_id_release')
    )

    op.create_table('webhooks',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('owner_id', sa.Integer(), nullable=True),
        sa.Column('environment_id', sa.Integer(), nullable=True),
        sa.Column('url', sa.Text(), nullable=False),
        sa.Column('events', sa.JSON(), nullable=False),
        sa.Column('secret', sa.String(length=80), nullable=False),
        sa.Column('former_secret', sa.String(length=80), nullable=True),
        sa.Column('former_secret_until', sa.DateTime(timezone=True), nullable=True),
        sa.Column('keeper_id', sa.Integer(), nullable=True),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('failing_since', sa.DateTime(timezone=True), nullable=True),
        sa.Column('slow', sa.Boolean(), nullable=False),
        sa.Column('disabled_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('disabled_reason', sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_webhooks_environment_id_environments'),
        sa.ForeignKeyConstraint(['keeper_id'], ['users.id'], name='fk_webhooks_keeper_id_users'),
        sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name='fk_webhooks_owner_id_owners'),
        sa.PrimaryKeyConstraint('id', name='pk_webhooks')
    )
    op.create_index('ix_webhooks_owner_id', 'webhooks', ['owner_id'], unique=False)

    op.create_table('boards',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('task_set_sha256', sa.String(length=64), nullable=False),
        sa.Column('protocol_sha256', sa.String(length=64), nullable=False),
        sa.Column('name', sa.String(length=8), nullable=False),
        sa.Column('split', sa.String(length=8), nullable=False),
        sa.Column('examples', sa.Integer(), nullable=False),
        sa.Column('rollouts_per_example', sa.Integer(), nullable=False),
        sa.Column('arguments', sa.JSON(), nullable=False),
        sa.Column('max_tokens', sa.Integer(), nullable=True),
        sa.Column('players', sa.JSON(), server_default='{}', nullable=False),
        sa.Column('strata', sa.JSON(), nullable=False),
        sa.Column('runs', sa.Integer(), nullable=False),
        sa.Column('models', sa.Integer(), nullable=False),
        sa.Column('last_posted_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('lows', sa.LargeBinary(), nullable=False),
        sa.Column('highs', sa.LargeBinary(), nullable=False),
        sa.Column('tiers', sa.JSON(), nullable=False),
        sa.Column('standard', sa.Boolean(), nullable=False),
        sa.Column('title', sa.Text(), nullable=False),
        sa.Column('description', sa.Text(), nullable=False),
        sa.Column('columns', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('pinned', sa.Boolean(), nullable=False),
        sa.Column('refuses_rescored', sa.Boolean(), nullable=False),
        sa.Column('unfolded', sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_boards_version_id_versions'),
        sa.PrimaryKeyConstraint('id', name='pk_boards'),
        sa.UniqueConstraint('version_id', 'task_set_sha256', 'protocol_sha256', name='uq_boards_version_id_task_set_sha256_protocol_sha256')
    )

    op.create_table('downloads',
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('day', sa.Date(), nullable=False),
        sa.Column('count', sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_downloads_version_id_versions'),
        sa.PrimaryKeyConstraint('version_id', 'day', name='pk_downloads')
    )

    op.create_table('files',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('environment_id', sa.Integer(), nullable=False),
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('filename', sa.String(length=255), nullable=False),
        sa.Column('kind', sa.String(length=8), nullable=False),
        sa.Column('size', sa.BigInteger(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('core_metadata', sa.Text(), nullable=True),
        sa.Column('core_metadata_sha256', sa.String(length=64), nullable=True),
        sa.Column('warnings', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('uploaded_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_files_environment_id_environments'),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_files_version_id_versions'),
        sa.PrimaryKeyConstraint('id', name='pk_files'),
        sa.UniqueConstraint('environment_id', 'filename', name='uq_files_environment_id_filename')
    )
    op.create_index('ix_files_sha256', 'files', ['sha256'], unique=False)
    op.create_index('ix_files_version_id', 'files', ['version_id'], unique=False)

    op.create_table('model_files',
        sa.Column('revision_id', sa.Integer(), nullable=False),
        sa.Column('filename', sa.String(length=100), nullable=False),
        sa.Column('size', sa.BigInteger(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(['revision_id'], ['model_revisions.id'], name='fk_model_files_revision_id_model_revisions'),
        sa.PrimaryKeyConstraint('revision_id', 'filename', name='pk_model_files')
    )
    op.create_index('ix_model_files_sha256', 'model_files', ['sha256'], unique=False)

    op.create_table('runs',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('environment_id', sa.Integer(), nullable=False),
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(length=16), nullable=False),
        sa.Column('name', sa.String(length=100), nullable=True),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('skeleton', sa.Text(), nullable=False),
        sa.Column('model_kind', sa.Text(), nullable=False),
        sa.Column('task_set_sha256', sa.String(length=64), nullable=False),
        sa.Column('protocol_sha256', sa.String(length=64), nullable=False),
        sa.Column('rollouts_per_example', sa.Integer(), nullable=False),
        sa.Column('examples', sa.Integer(), nullable=False),
        sa.Column('level', sa.String(length=16), nullable=False),
        sa.Column('level_reason', sa.Text(), nullable=False),
        sa.Column('reward_mean', sa.Double(), nullable=True),
        sa.Column('manifest', sa.Text(), nullable=False),
        sa.Column('brief', sa.Text(), nullable=False),
        sa.Column('summary', sa.JSON(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('rollouts_sha256', sa.String(length=64), nullable=True),
        sa.Column('order_sha256', sa.String(length=64), nullable=True),
        sa.Column('weights_sha256', sa.String(length=64), nullable=True),
        sa.Column('private', sa.Boolean(), nullable=False),
        sa.Column('public_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('withdrawn_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('withdrawn_reason', sa.Text(), nullable=True),
        sa.Column('withdrawn_by_id', sa.Integer(), nullable=True),
        sa.Column('hidden', sa.Boolean(), nullable=False),
        sa.Column('board_level', sa.String(length=16), nullable=False),
        sa.Column('signature', sa.String(length=100), nullable=True),
        sa.Column('signing_key_id', sa.Integer(), nullable=True),
        sa.Column('posted_by_id', sa.Integer(), nullable=False),
        sa.Column('posted_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('own_seconds', sa.Double(), nullable=False),
        sa.Column('stored_bytes', sa.BigInteger(), server_default='0', nullable=False),
        sa.Column('derivation', sa.Integer(), server_default='0', nullable=False),
        sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name='fk_runs_environment_id_environments'),
        sa.ForeignKeyConstraint(['posted_by_id'], ['users.id'], name='fk_runs_posted_by_id_users'),
        sa.ForeignKeyConstraint(['signing_key_id'], ['signing_keys.id'], name='fk_runs_signing_key_id_signing_keys'),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_runs_version_id_versions'),
        sa.ForeignKeyConstraint(['withdrawn_by_id'], ['users.id'], name='fk_runs_withdrawn_by_id_users'),
        sa.PrimaryKeyConstraint('run_id', name='pk_runs')
    )
    op.create_index('ix_runs_derivation', 'runs', ['derivation'], unique=False)
    op.create_index('ix_runs_incomplete', 'runs', ['version_id', 'task_set_sha256'], unique=False, sqlite_where=sa.text("kind = 'evaluation' AND level = 'claimed' AND NOT private AND withdrawn_at IS NULL"), postgresql_where=sa.text("kind = 'evaluation' AND level = 'claimed' AND NOT private AND withdrawn_at IS NULL"))
    op.create_index('ix_runs_listing', 'runs', ['environment_id', 'posted_at'], unique=False)
    op.create_index('ix_runs_misplaced', 'runs', ['environment_id'], unique=False, sqlite_where=sa.text("board_level <> CASE WHEN kind <> 'evaluation' OR level = 'claimed' OR private OR hidden THEN '' WHEN withdrawn_at IS NOT NULL THEN 'withdrawn' ELSE level END"), postgresql_where=sa.text("board_level <> CASE WHEN kind <> 'evaluation' OR level = 'claimed' OR private OR hidden THEN '' WHEN withdrawn_at IS NOT NULL THEN 'withdrawn' ELSE level END"))
    op.create_index('ix_runs_of_poster', 'runs', ['posted_by_id', 'withdrawn_at', 'stored_bytes'], unique=False)
    op.create_index('ix_runs_order_sha256', 'runs', ['order_sha256'], unique=False)
    op.create_index('ix_runs_posted_at', 'runs', ['posted_at'], unique=False)
    op.create_index('ix_runs_skeleton', 'runs', ['environment_id', 'skeleton', 'model'], unique=False)
    op.create_index('ix_runs_training', 'runs', ['environment_id', 'posted_at'], unique=False, sqlite_where=sa.text("kind = 'training'"), postgresql_where=sa.text("kind = 'training'"))
    op.create_index('ix_runs_version', 'runs', ['version_id', 'posted_at'], unique=False)
    op.create_index('ix_runs_weights_sha256', 'runs', ['weights_sha256'], unique=False)

    op.create_table('sealed_sets',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('commitment', sa.String(length=64), nullable=False),
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('state', sa.String(length=12), nullable=False),
        sa.Column('error', sa.Text(), nullable=True),
        sa.Column('examples', sa.Integer(), nullable=False),
        sa.Column('wrapped_key', sa.LargeBinary(), nullable=True),
        sa.Column('content', sa.LargeBinary(), nullable=True),
        sa.Column('created_by_id', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('opens_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('opened_at', sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(['created_by_id'], ['users.id'], name='fk_sealed_sets_created_by_id_users'),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_sealed_sets_version_id_versions'),
        sa.PrimaryKeyConstraint('id', name='pk_sealed_sets'),
        sa.UniqueConstraint('commitment', name='uq_sealed_sets_commitment')
    )
    op.create_index('ix_sealed_sets_opens_at', 'sealed_sets', ['opens_at'], unique=False)
    op.create_index('ix_sealed_sets_version_id', 'sealed_sets', ['version_id'], unique=False)

    op.create_table('sealed_plays',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('set_id', sa.Integer(), nullable=False),
        sa.Column('job_id', sa.Integer(), nullable=False),
        sa.Column('submitted_by_id', sa.Integer(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('host', sa.Text(), nullable=True),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('exposed_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('summary', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('content', sa.LargeBinary(), nullable=True),
        sa.Column('run_id', sa.String(length=64), nullable=True),
        sa.Column('error', sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name='fk_sealed_plays_job_id_jobs'),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_sealed_plays_run_id_runs'),
        sa.ForeignKeyConstraint(['set_id'], ['sealed_sets.id'], name='fk_sealed_plays_set_id_sealed_sets'),
        sa.ForeignKeyConstraint(['submitted_by_id'], ['users.id'], name='fk_sealed_plays_submitted_by_id_users'),
        sa.PrimaryKeyConstraint('id', name='pk_sealed_plays'),
        sa.UniqueConstraint('job_id', name='uq_sealed_plays_job_id')
    )
    op.create_index('ix_sealed_plays_set_id', 'sealed_plays', ['set_id'], unique=False)

    op.create_table('version_checks',
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(length=8), nullable=False),
        sa.Column('job_id', sa.Integer(), nullable=False),
        sa.Column('report', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('made_with', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name='fk_version_checks_job_id_jobs'),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_version_checks_version_id_versions'),
        sa.PrimaryKeyConstraint('version_id', 'kind', name='pk_version_checks'),
        sa.UniqueConstraint('job_id', name='uq_version_checks_job_id')
    )

    op.create_table('version_documents',
        sa.Column('version_id', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(length=16), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.Column('size', sa.BigInteger(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name='fk_version_documents_version_id_versions'),
        sa.PrimaryKeyConstraint('version_id', 'kind', name='pk_version_documents')
    )
    op.create_index('ix_version_documents_sha256', 'version_documents', ['sha256'], unique=False)

    op.create_table('webhook_deliveries',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('webhook_id', sa.Integer(), nullable=False),
        sa.Column('message_id', sa.String(length=40), nullable=False),
        sa.Column('event', sa.String(length=24), nullable=False),
        sa.Column('body', sa.Text(), nullable=False),
        sa.Column('state', sa.String(length=12), nullable=False),
        sa.Column('attempts', sa.Integer(), nullable=False),
        sa.Column('failures', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('attempted_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('next_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('status', sa.Integer(), nullable=True),
        sa.Column('answer', sa.Text(), nullable=True),
        sa.Column('error', sa.Text(), nullable=True),
        sa.Column('seconds', sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(['webhook_id'], ['webhooks.id'], name='fk_webhook_deliveries_webhook_id_webhooks'),
        sa.PrimaryKeyConstraint('id', name='pk_webhook_deliveries')
    )
    op.create_index('ix_webhook_deliveries_created_at', 'webhook_deliveries', ['created_at'], unique=False)
    op.create_index('ix_webhook_deliveries_listing', 'webhook_deliveries', ['webhook_id', 'id'], unique=False)
    op.create_index('ix_webhook_deliveries_unsent', 'webhook_deliveries', ['id'], unique=False, sqlite_where=sa.text("state = 'new'"), postgresql_where=sa.text("state = 'new'"))

    op.create_table('board_entries',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('board_id', sa.Integer(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('posted_by_id', sa.Integer(), nullable=False),
        sa.Column('level', sa.String(length=16), nullable=False),
        sa.Column('tier', sa.Integer(), nullable=False),
        sa.Column('shortfall', sa.Double(), nullable=False),
        sa.Column('low', sa.Double(), nullable=True),
        sa.Column('high', sa.Double(), nullable=True),
        sa.Column('tokens', sa.Double(), nullable=True),
        sa.Column('usd', sa.Double(), nullable=True),
        sa.Column('posted_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('withdrawn', sa.Boolean(), nullable=False),
        sa.Column('counts', sa.Boolean(), nullable=False),
        sa.Column('folded_into', sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(['board_id'], ['boards.id'], name='fk_board_entries_board_id_boards'),
        sa.ForeignKeyConstraint(['posted_by_id'], ['users.id'], name='fk_board_entries_posted_by_id_users'),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_board_entries_run_id_runs'),
        sa.PrimaryKeyConstraint('run_id', name='pk_board_entries')
    )
    op.create_index('ix_board_entries_all', 'board_entries', ['board_id', 'tier', 'shortfall', 'posted_at', 'run_id'], unique=False)
    op.create_index('ix_board_entries_counting', 'board_entries', ['board_id', 'model'], unique=False, sqlite_where=sa.text('counts = 1'), postgresql_where=sa.text('counts'))
    op.create_index('ix_board_entries_counts', 'board_entries', ['board_id', 'counts', 'tier', 'shortfall', 'posted_at', 'run_id'], unique=False)
    op.create_index('ix_board_entries_folded_into', 'board_entries', ['folded_into'], unique=False)
    op.create_index('ix_board_entries_model', 'board_entries', ['board_id', 'model', 'posted_by_id', 'posted_at', 'run_id'], unique=False)
    op.create_index('ix_board_entries_posted', 'board_entries', ['board_id', 'posted_at', 'run_id'], unique=False)

    op.create_table('file_provenances',
        sa.Column('file_id', sa.Integer(), nullable=False),
        sa.Column('document', sa.Text(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['file_id'], ['files.id'], name='fk_file_provenances_file_id_files'),
        sa.PrimaryKeyConstraint('file_id', name='pk_file_provenances')
    )

    op.create_table('hidden_runs',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('board_id', sa.Integer(), nullable=False),
        sa.Column('reason', sa.Text(), nullable=False),
        sa.Column('hidden_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('hidden_by_id', sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(['board_id'], ['boards.id'], name='fk_hidden_runs_board_id_boards'),
        sa.ForeignKeyConstraint(['hidden_by_id'], ['users.id'], name='fk_hidden_runs_hidden_by_id_users'),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_hidden_runs_run_id_runs'),
        sa.PrimaryKeyConstraint('run_id', name='pk_hidden_runs')
    )
    op.create_index('ix_hidden_runs_board_id', 'hidden_runs', ['board_id'], unique=False)

    op.create_table('run_artifacts',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('name', sa.String(length=100), nullable=False),
        sa.Column('media_type', sa.String(length=80), nullable=False),
        sa.Column('size', sa.BigInteger(), nullable=False),
        sa.Column('sha256', sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_run_artifacts_run_id_runs'),
        sa.PrimaryKeyConstraint('run_id', 'name', name='pk_run_artifacts')
    )
    op.create_index('ix_run_artifacts_sha256', 'run_artifacts', ['sha256'], unique=False)

    op.create_table('run_checkpoints',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('weights_sha256', sa.String(length=64), nullable=False),
        sa.Column('step', sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_run_checkpoints_run_id_runs'),
        sa.PrimaryKeyConstraint('run_id', 'weights_sha256', name='pk_run_checkpoints')
    )
    op.create_index('ix_run_checkpoints_weights_sha256', 'run_checkpoints', ['weights_sha256'], unique=False)

    op.create_table('run_chunks',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('first', sa.Integer(), nullable=False),
        sa.Column('rollouts', sa.Integer(), nullable=False),
        sa.Column('object_sha256', sa.String(length=64), nullable=False),
        sa.Column('row_frames', sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_run_chunks_run_id_runs'),
        sa.PrimaryKeyConstraint('run_id', 'first', name='pk_run_chunks')
    )
    op.create_index('ix_run_chunks_object_sha256', 'run_chunks', ['object_sha256'], unique=False)

    op.create_table('run_completions',
        sa.Column('digest', sa.BigInteger(), nullable=False),
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_run_completions_run_id_runs'),
        sa.PrimaryKeyConstraint('digest', 'run_id', name='pk_run_completions')
    )
    op.create_index('ix_run_completions_run_id', 'run_completions', ['run_id'], unique=False)

    op.create_table('run_examinations',
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('rerun_of', sa.String(length=64), nullable=True),
        sa.Column('agreement', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('agrees', sa.Boolean(), nullable=False),
        sa.Column('tokens', sa.JSON(none_as_null=True), nullable=True),
        sa.Column('examined_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_run_examinations_run_id_runs'),
        sa.PrimaryKeyConstraint('run_id', name='pk_run_examinations')
    )
    op.create_index('ix_run_examinations_rerun_of', 'run_examinations', ['rerun_of'], unique=False)

    op.create_table('verifications',
        sa.Column('id', sa.Integer(), nullable=False),
        sa.Column('run_id', sa.String(length=64), nullable=False),
        sa.Column('job_id', sa.Integer(), nullable=False),
        sa.Column('sample', sa.Integer(), nullable=True),
        sa.Column('level', sa.String(length=12), nullable=False),
        sa.Column('gave', sa.String(length=16), nullable=True),
        sa.Column('report', sa.JSON(), nullable=True),
        sa.Column('made_with', sa.JSON(), nullable=True),
        sa.Column('requested_by_id', sa.Integer(), nullable=True),
        sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name='fk_verifications_job_id_jobs'),
        sa.ForeignKeyConstraint(['requested_by_id'], ['users.id'], name='fk_verifications_requested_by_id_users'),
        sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name='fk_verifications_run_id_runs'),
        sa.PrimaryKeyConstraint('id', name='pk_verifications'),
        sa.UniqueConstraint('job_id', name='uq_verifications_job_id')
    )
    op.create_index('ix_verifications_run_id', 'verifications', ['run_id'], unique=False)

    op.create_table('verification_divergences',
        sa.Column('verification_id', sa.Integer(), nullable=False),
        sa.Column('number', sa.Integer(), nullable=False),
        sa.Column('example_id', sa.Text(), nullable=False),
        sa.Column('index', sa.Integer(), nullable=False),
        sa.Column('part', sa.String(length=40), nullable=False),
        sa.Column('message', sa.Integer(), nullable=True),
        sa.Column('difference', sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(['verification_id'], ['verifications.id'], name='fk_verification_divergences_verification_id_verifications'),
        sa.PrimaryKeyConstraint('verification_id', 'number', name='pk_verification_divergences')
    )
    # ### end Alembic commands ###

    _forbid_changes_of_the_audit_log()
    _create_text_index()
    _start_counting_changes()


def _start_counting_changes() -> None:
    revision = sa.table('content_revision', sa.column('epoch'), sa.column('number'))
    op.execute(sa.insert(revision).values(epoch=secrets.token_hex(8), number=0))


def _forbid_changes_of_the_audit_log() -> None:
    """Rows of the audit log can only be added."""
    if op.get_bind().dialect.name == 'postgresql':
        refuse = "BEGIN RAISE EXCEPTION 'the audit log is only added to'; END"
        op.execute(f'CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$')
        op.execute(
            'CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON audit'
            ' FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()'
        )
        return
    for change in ('UPDATE', 'DELETE'):
        op.execute(
            f'CREATE TRIGGER audit_stays_{change.lower()} BEFORE {change} ON audit'
            " BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
        )


def _create_text_index() -> None:
    """The index of words has the database's own kind of table, which no model describes."""
    if op.get_bind().dialect.name == 'sqlite':
        op.execute(
            'CREATE VIRTUAL TABLE environment_search USING fts5(name, tags, summary, readme, marks, '
            "tokenize='porter unicode61', columnsize=0, prefix='2 3')"
        )
        return
    op.execute(
        'CREATE TABLE environment_search (environment_id INTEGER PRIMARY KEY REFERENCES environments (id), '
        'head tsvector NOT NULL, body tsvector NOT NULL)'
    )
    op.execute('CREATE INDEX ix_environment_search_head ON environment_search USING gin (head)')
    op.execute('CREATE INDEX ix_environment_search_body ON environment_search USING gin (body)')


def downgrade() -> None:
    op.drop_table('environment_search')
    for name in reversed(_TABLES):
        op.drop_table(name)
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('DROP FUNCTION refuse_audit_change()')
