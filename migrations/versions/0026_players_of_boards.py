"""A board says who plays beside its models, in environments with players"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("boards", sa.Column("players", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("boards", "players")
