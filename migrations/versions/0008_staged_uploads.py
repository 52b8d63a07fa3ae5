"""Staged uploads, source trees of versions, what the gate flagged in files"""

import sqlalchemy as sa
from alembic import op

revision = '0008'
down_revision = '0007'


def upgrade() -> None:
    op.add_column('versions', sa.Column('source', sa.JSON(none_as_null=True), nullable=True))
    op.add_column('files', sa.Column('warnings', sa.JSON(none_as_null=True), nullable=True))
    op.create_table('upload_sessions',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=200), nullable=False),
    sa.Column('version', sa.String(length=100), nullable=False),
    sa.Column('status', sa.String(length=12), nullable=False),
    sa.Column('stated', sa.JSON(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name=op.f('fk_upload_sessions_owner_id_owners')),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_upload_sessions_user_id_users')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_upload_sessions'))
    )
    op.create_index(op.f('ix_upload_sessions_expires_at'), 'upload_sessions', ['expires_at'])
    op.create_index('ix_upload_sessions_place', 'upload_sessions', ['user_id', 'owner_id', 'name', 'version'])
    op.create_table('staged_files',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('session_id', sa.String(length=32), nullable=False),
    sa.Column('filename', sa.String(length=255), nullable=False),
    sa.Column('kind', sa.String(length=8), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('received', sa.BigInteger(), nullable=False),
    sa.Column('published', sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(['session_id'], ['upload_sessions.id'], name=op.f('fk_staged_files_session_id_upload_sessions')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_staged_files')),
    sa.UniqueConstraint('session_id', 'filename', name=op.f('uq_staged_files_session_id_filename'))
    )
    op.create_table('staged_chunks',
    sa.Column('file_id', sa.Integer(), nullable=False),
    sa.Column('offset', sa.BigInteger(), nullable=False),
    sa.Column('size', sa.Integer(), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.ForeignKeyConstraint(['file_id'], ['staged_files.id'], name=op.f('fk_staged_chunks_file_id_staged_files')),
    sa.PrimaryKeyConstraint('file_id', 'offset', name=op.f('pk_staged_chunks'))
    )


def downgrade() -> None:
    op.drop_table('staged_chunks')
    op.drop_table('staged_files')
    op.drop_table('upload_sessions')
    op.drop_column('files', 'warnings')
    op.drop_column('versions', 'source')
