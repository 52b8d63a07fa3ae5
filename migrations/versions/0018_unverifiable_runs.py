"""Runs that the hub could not verify say so, and stand below all others on their boards

Those whose verification failed before stay `complete` no longer. The hub puts them in their places when it starts.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_UNPROVEN = sa.text(
    "SELECT runs.run_id, verifications.report, jobs.error FROM verifications"
    " JOIN runs ON runs.run_id = verifications.run_id JOIN jobs ON jobs.id = verifications.job_id"
    " WHERE runs.level = 'complete' AND verifications.sample IS NULL AND verifications.level = 'highest'"
    " AND jobs.state IN ('done', 'failed') ORDER BY verifications.id"
)
_LOWER = sa.text("UPDATE runs SET level = 'unverifiable', level_reason = :reason WHERE run_id = :run_id")
_FIELDS = ("board_id", "below", "shortfall", "posted_at", "run_id")


def upgrade() -> None:
    op.add_column("board_entries", sa.Column("below", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.drop_index("ix_board_entries_all", "board_entries")
    op.drop_index("ix_board_entries_counts", "board_entries")
    op.create_index("ix_board_entries_all", "board_entries", list(_FIELDS))
    op.create_index("ix_board_entries_counts", "board_entries", [_FIELDS[0], "counts", *_FIELDS[1:]])
    connection = op.get_bind()
    for run_id, report, error in connection.execute(_UNPROVEN).all():
        told = (json.loads(report) if isinstance(report, str) else report) or {}
        why = told.get("refused") or told.get("unscored_reason") or error or "a replay of it proved nothing"
        # An older hub did not hide the paths of its files.
        reason = f"could not be verified: {why}" if "/" not in why else "could not be verified by this hub"
        connection.execute(_LOWER, {"reason": reason, "run_id": run_id})


def downgrade() -> None:
    op.execute("UPDATE runs SET level = 'complete' WHERE level = 'unverifiable'")
    # An older hub puts all runs of these boards in their places anew.
    boards = "SELECT board_id FROM board_entries WHERE below"
    placed = f"SELECT run_id FROM board_entries WHERE board_id IN ({boards})"
    op.execute(f"UPDATE runs SET board_level = '' WHERE run_id IN ({placed})")
    emptied = sa.text(f"UPDATE boards SET runs = 0, models = 0, lows = :no, highs = :no WHERE id IN ({boards})")
    op.execute(emptied.bindparams(no=b""))
    op.execute(f"DELETE FROM board_entries WHERE board_id IN ({boards})")
    op.drop_index("ix_board_entries_all", "board_entries")
    op.drop_index("ix_board_entries_counts", "board_entries")
    op.drop_column("board_entries", "below")
    op.create_index("ix_board_entries_all", "board_entries", ["board_id", "shortfall", "posted_at", "run_id"])
    op.create_index(
        "ix_board_entries_counts", "board_entries", ["board_id", "counts", "shortfall", "posted_at", "run_id"]
    )
