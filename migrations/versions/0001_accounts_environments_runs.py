"""Accounts, environments, index pages, runs"""

import sqlalchemy as sa
from alembic import op

revision = '0001'
down_revision = None


def upgrade() -> None:
    op.create_table('owners',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=39), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_owners')),
    sa.UniqueConstraint('name', name=op.f('uq_owners_name'))
    )
    op.create_table('users',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=39), nullable=False),
    sa.Column('admin', sa.Boolean(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_users')),
    sa.UniqueConstraint('name', name=op.f('uq_users_name'))
    )
    op.create_table('environments',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=200), nullable=False),
    sa.Column('listed', sa.Boolean(), nullable=False),
    sa.Column('latest_version', sa.String(length=100), nullable=False),
    sa.Column('summary', sa.Text(), nullable=False),
    sa.Column('tags', sa.JSON(), nullable=False),
    sa.Column('search_text', sa.Text(), nullable=False),
    sa.Column('version_count', sa.Integer(), nullable=False),
    sa.Column('run_count', sa.Integer(), nullable=False),
    sa.Column('best_reward', sa.Double(), nullable=True),
    sa.Column('best_model', sa.Text(), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name=op.f('fk_environments_owner_id_owners')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_environments')),
    sa.UniqueConstraint('owner_id', 'name', name=op.f('uq_environments_owner_id_name'))
    )
    with op.batch_alter_table('environments', schema=None) as batch_op:
        batch_op.create_index('ix_environments_listing', ['listed', 'updated_at', 'id'], unique=False)

    op.create_table('index_pages',
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('project', sa.String(length=200), nullable=False),
    sa.Column('html', sa.LargeBinary(), nullable=False),
    sa.Column('html_etag', sa.String(length=64), nullable=False),
    sa.Column('json', sa.LargeBinary(), nullable=False),
    sa.Column('json_etag', sa.String(length=64), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name=op.f('fk_index_pages_owner_id_owners')),
    sa.PrimaryKeyConstraint('owner_id', 'project', name=op.f('pk_index_pages'))
    )
    op.create_table('memberships',
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name=op.f('fk_memberships_owner_id_owners')),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_memberships_user_id_users')),
    sa.PrimaryKeyConstraint('owner_id', 'user_id', name=op.f('pk_memberships'))
    )
    with op.batch_alter_table('memberships', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_memberships_user_id'), ['user_id'], unique=False)

    op.create_table('tokens',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=80), nullable=False),
    sa.Column('prefix', sa.String(length=16), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_tokens_user_id_users')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_tokens')),
    sa.UniqueConstraint('sha256', name=op.f('uq_tokens_sha256'))
    )
    with op.batch_alter_table('tokens', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_tokens_user_id'), ['user_id'], unique=False)

    op.create_table('versions',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('environment_id', sa.Integer(), nullable=False),
    sa.Column('version', sa.String(length=100), nullable=False),
    sa.Column('summary', sa.Text(), nullable=False),
    sa.Column('requires_python', sa.Text(), nullable=True),
    sa.Column('requires_dist', sa.JSON(), nullable=False),
    sa.Column('license', sa.Text(), nullable=True),
    sa.Column('tags', sa.JSON(), nullable=False),
    sa.Column('entry_point', sa.Text(), nullable=True),
    sa.Column('readme', sa.Text(), nullable=False),
    sa.Column('readme_html', sa.Text(), nullable=False),
    sa.Column('yanked', sa.Boolean(), nullable=False),
    sa.Column('yanked_reason', sa.Text(), nullable=True),
    sa.Column('uploaded_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('uploaded_by_id', sa.Integer(), nullable=True),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_versions_environment_id_environments')),
    sa.ForeignKeyConstraint(['uploaded_by_id'], ['users.id'], name=op.f('fk_versions_uploaded_by_id_users')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_versions')),
    sa.UniqueConstraint('environment_id', 'version', name=op.f('uq_versions_environment_id_version'))
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
    sa.Column('uploaded_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_files_environment_id_environments')),
    sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name=op.f('fk_files_version_id_versions')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_files')),
    sa.UniqueConstraint('environment_id', 'filename', name=op.f('uq_files_environment_id_filename'))
    )
    with op.batch_alter_table('files', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_files_version_id'), ['version_id'], unique=False)

    op.create_table('runs',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('environment_id', sa.Integer(), nullable=False),
    sa.Column('version_id', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=16), nullable=False),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('model_kind', sa.Text(), nullable=False),
    sa.Column('task_set_sha256', sa.String(length=64), nullable=False),
    sa.Column('protocol_sha256', sa.String(length=64), nullable=False),
    sa.Column('rollouts_per_example', sa.Integer(), nullable=False),
    sa.Column('examples', sa.Integer(), nullable=False),
    sa.Column('level', sa.String(length=16), nullable=False),
    sa.Column('level_reason', sa.Text(), nullable=False),
    sa.Column('reward_mean', sa.Double(), nullable=True),
    sa.Column('manifest', sa.Text(), nullable=False),
    sa.Column('summary', sa.JSON(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('rollouts_sha256', sa.String(length=64), nullable=True),
    sa.Column('posted_by_id', sa.Integer(), nullable=False),
    sa.Column('posted_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_runs_environment_id_environments')),
    sa.ForeignKeyConstraint(['posted_by_id'], ['users.id'], name=op.f('fk_runs_posted_by_id_users')),
    sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name=op.f('fk_runs_version_id_versions')),
    sa.PrimaryKeyConstraint('run_id', name=op.f('pk_runs'))
    )
    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.create_index('ix_runs_board', ['version_id', 'kind', 'task_set_sha256', 'protocol_sha256'], unique=False)
        batch_op.create_index('ix_runs_listing', ['environment_id', 'posted_at'], unique=False)
        batch_op.create_index(batch_op.f('ix_runs_posted_at'), ['posted_at'], unique=False)

    op.create_table('run_artifacts',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('name', sa.String(length=100), nullable=False),
    sa.Column('media_type', sa.String(length=80), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_run_artifacts_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', 'name', name=op.f('pk_run_artifacts'))
    )
    op.create_table('run_rollouts',
    sa.Column('run_id', sa.String(length=64), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('example_id', sa.Text(), nullable=False),
    sa.Column('index', sa.Integer(), nullable=False),
    sa.Column('reward', sa.Double(), nullable=True),
    sa.Column('stop_reason', sa.Text(), nullable=True),
    sa.Column('failure', sa.String(length=16), nullable=True),
    sa.Column('truncated', sa.Boolean(), nullable=False),
    sa.Column('turns', sa.Integer(), nullable=False),
    sa.Column('completion_tokens', sa.Integer(), nullable=False),
    sa.Column('seconds', sa.Double(), nullable=False),
    sa.Column('preview', sa.String(length=200), nullable=False),
    sa.Column('block_start', sa.BigInteger(), nullable=False),
    sa.Column('block_length', sa.BigInteger(), nullable=False),
    sa.Column('offset', sa.BigInteger(), nullable=False),
    sa.Column('length', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.run_id'], name=op.f('fk_run_rollouts_run_id_runs')),
    sa.PrimaryKeyConstraint('run_id', 'number', name=op.f('pk_run_rollouts'))
    )


def downgrade() -> None:
    op.drop_table('run_rollouts')
    op.drop_table('run_artifacts')
    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_runs_posted_at'))
        batch_op.drop_index('ix_runs_listing')
        batch_op.drop_index('ix_runs_board')

    op.drop_table('runs')
    with op.batch_alter_table('files', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_files_version_id'))

    op.drop_table('files')
    op.drop_table('versions')
    with op.batch_alter_table('tokens', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_tokens_user_id'))

    op.drop_table('tokens')
    with op.batch_alter_table('memberships', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_memberships_user_id'))

    op.drop_table('memberships')
    op.drop_table('index_pages')
    with op.batch_alter_table('environments', schema=None) as batch_op:
        batch_op.drop_index('ix_environments_listing')

    op.drop_table('environments')
    op.drop_table('users')
    op.drop_table('owners')
