"""Processes tell each other what was spent of the limits on requests"""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    op.create_table(
        "spending",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("minute", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_spending"),
    )


def downgrade() -> None:
    op.drop_table("spending")
