"""Whether a board refuses runs of the level rescored

Revision: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    refuses = sa.Column("refuses_rescored", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("boards", refuses)


def downgrade() -> None:
    op.drop_column("boards", "refuses_rescored")
