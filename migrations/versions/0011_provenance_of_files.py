"""Who attested a file"""

import sqlalchemy as sa
from alembic import op

revision = '0011'
down_revision = '0010'


def upgrade() -> None:
    op.create_table('file_provenances',
    sa.Column('file_id', sa.Integer(), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['file_id'], ['files.id'], name=op.f('fk_file_provenances_file_id_files')),
    sa.PrimaryKeyConstraint('file_id', name=op.f('pk_file_provenances'))
    )


def downgrade() -> None:
    op.drop_table('file_provenances')
