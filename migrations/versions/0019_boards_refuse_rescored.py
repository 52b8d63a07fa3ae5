"""Whether a board refuses runs of the level rescored"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    refuses = sa.Column("refuses_rescored", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("boards", refuses)


def downgrade() -> None:
    op.drop_column("boards", "refuses_rescored")
