"""Roles, scoped tokens, private environments, status, tombstones, former names"""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'

EVERY_SCOPE = 'read results publish manage'


def _refer(table: str, column: str, target: str) -> None:
    """Add a nullable foreign key without making the table anew, which SQLite cannot do to one that is referred to."""
    name = f'fk_{table}_{column}_{target}'
    op.execute(f'ALTER TABLE {table} ADD COLUMN {column} INTEGER CONSTRAINT {name} REFERENCES {target} (id)')


def upgrade() -> None:
    op.add_column('owners', sa.Column('private_by_default', sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column('memberships', sa.Column('role', sa.String(length=12), nullable=False, server_default='owner'))
    op.add_column('tokens', sa.Column('scope', sa.String(length=40), nullable=False, server_default=EVERY_SCOPE))
    op.add_column('tokens', sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True))
    _refer('tokens', 'owner_id', 'owners')
    _refer('tokens', 'environment_id', 'environments')
    op.add_column('environments', sa.Column('private', sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column('environments', sa.Column('status', sa.String(length=12), nullable=False, server_default='active'))
    op.add_column('environments', sa.Column('status_reason', sa.Text(), nullable=True))
    op.add_column('environments', sa.Column('successor', sa.Text(), nullable=True))
    op.add_column('environments', sa.Column('quarantine_reason', sa.Text(), nullable=True))
    op.add_column('environments', sa.Column('deleted_at', sa.DateTime(timezone=True), nullable=True))
    _refer('environments', 'parent_id', 'environments')
    op.add_column('environments', sa.Column('parent_version', sa.String(length=100), nullable=True))
    op.add_column('versions', sa.Column('deleted_at', sa.DateTime(timezone=True), nullable=True))
    op.add_column('versions', sa.Column('deleted_reason', sa.Text(), nullable=True))
    _refer('index_pages', 'environment_id', 'environments')
    op.execute(
        'UPDATE index_pages SET environment_id = (SELECT e.id FROM environments e '
        'WHERE e.owner_id = index_pages.owner_id AND e.name = index_pages.project)'
    )
    op.create_index('ix_index_pages_environment_id', 'index_pages', ['environment_id'])
    op.create_index('ix_files_sha256', 'files', ['sha256'])
    op.create_index('ix_runs_rollouts_sha256', 'runs', ['rollouts_sha256'])
    op.create_index('ix_run_artifacts_sha256', 'run_artifacts', ['sha256'])
    op.create_table('grants',
    sa.Column('environment_id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('role', sa.String(length=12), nullable=False),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_grants_environment_id_environments')),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_grants_user_id_users')),
    sa.PrimaryKeyConstraint('environment_id', 'user_id', name=op.f('pk_grants'))
    )
    op.create_index('ix_grants_user_id', 'grants', ['user_id'])
    op.create_table('former_names',
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=200), nullable=False),
    sa.Column('environment_id', sa.Integer(), nullable=False),
    sa.Column('moved_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_former_names_environment_id_environments')),
    sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name=op.f('fk_former_names_owner_id_owners')),
    sa.PrimaryKeyConstraint('owner_id', 'name', name=op.f('pk_former_names'))
    )


def downgrade() -> None:
    op.drop_table('former_names')
    op.drop_index('ix_grants_user_id', 'grants')
    op.drop_table('grants')
    op.drop_index('ix_run_artifacts_sha256', 'run_artifacts')
    op.drop_index('ix_runs_rollouts_sha256', 'runs')
    op.drop_index('ix_files_sha256', 'files')
    op.drop_index('ix_index_pages_environment_id', 'index_pages')
    dropped = {
        'index_pages': ('environment_id',),
        'versions': ('deleted_at', 'deleted_reason'),
        'environments': (
            *('parent_id', 'parent_version', 'private', 'status', 'status_reason', 'successor'),
            *('quarantine_reason', 'deleted_at'),
        ),
        'tokens': ('environment_id', 'owner_id', 'expires_at', 'scope'),
        'memberships': ('role',),
        'owners': ('private_by_default',),
    }
    for table, columns in dropped.items():
        for column in columns:
            op.drop_column(table, column)
