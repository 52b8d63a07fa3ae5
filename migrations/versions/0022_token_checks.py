"""What the stated completion tokens of runs are against their texts"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("run_examinations", sa.Column("tokens", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("run_examinations", "tokens")
