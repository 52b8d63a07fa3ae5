"""Trusted publishers and the identity tokens that were traded"""

import sqlalchemy as sa
from alembic import op

revision = '0007'
down_revision = '0006'


def upgrade() -> None:
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
    sa.ForeignKeyConstraint(['owner_id'], ['owners.id'], name=op.f('fk_publishers_owner_id_owners')),
    sa.ForeignKeyConstraint(['created_by_id'], ['users.id'], name=op.f('fk_publishers_created_by_id_users')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_publishers'))
    )
    op.create_index('ix_publishers_owner_id', 'publishers', ['owner_id'])
    op.create_index('ix_publishers_issuer', 'publishers', ['issuer'])
    op.create_table('used_assertions',
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('sha256', name=op.f('pk_used_assertions'))
    )
    op.create_index('ix_used_assertions_expires_at', 'used_assertions', ['expires_at'])
    op.add_column('tokens', sa.Column('environment_name', sa.String(length=200), nullable=True))
    op.add_column('tokens', sa.Column('claims', sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column('tokens', 'claims')
    op.drop_column('tokens', 'environment_name')
    op.drop_table('used_assertions')
    op.drop_table('publishers')
