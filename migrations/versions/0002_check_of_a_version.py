"""The publisher's check of a version"""

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'


def upgrade() -> None:
    op.add_column('versions', sa.Column('check_summary', sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column('versions', 'check_summary')
