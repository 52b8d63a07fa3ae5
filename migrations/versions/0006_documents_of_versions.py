"""Documents of versions, such as locks"""

import sqlalchemy as sa
from alembic import op

revision = '0006'
down_revision = '0005'


def upgrade() -> None:
    op.create_table('version_documents',
    sa.Column('version_id', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=16), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name=op.f('fk_version_documents_version_id_versions')),
    sa.PrimaryKeyConstraint('version_id', 'kind', name=op.f('pk_version_documents'))
    )
    op.create_index(op.f('ix_version_documents_sha256'), 'version_documents', ['sha256'])


def downgrade() -> None:
    op.drop_table('version_documents')
