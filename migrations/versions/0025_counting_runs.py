"""The runs of a model that count are found by an index, however many others a board has"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

_NAME = "ix_board_entries_counting"


def upgrade() -> None:
    where = {"sqlite_where": sa.text("counts = 1"), "postgresql_where": sa.text("counts")}
    op.create_index(_NAME, "board_entries", ["board_id", "model"], **where)


def downgrade() -> None:
    op.drop_index(_NAME, "board_entries")
