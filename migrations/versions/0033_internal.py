"""Environments and models for everybody who is signed in"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"

_COLUMNS = {"environments": "internal", "models": "internal", "owners": "internal_by_default"}


def upgrade() -> None:
    for table, column in _COLUMNS.items():
        op.add_column(table, sa.Column(column, sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    for table, column in _COLUMNS.items():
        op.drop_column(table, column)
