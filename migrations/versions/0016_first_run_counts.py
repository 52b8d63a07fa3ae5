"""Since when a run is public, and boards on which the first run of a model and account counts

The hub puts the runs on their boards anew when it starts (`place_all`).
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

BEFORE = sa.text(
    "board_level <> CASE WHEN kind = 'evaluation' AND level <> 'claimed' AND NOT private"
    " AND withdrawn_at IS NULL AND NOT hidden THEN level ELSE '' END"
)
MISPLACED = sa.text(
    "board_level <> CASE WHEN kind <> 'evaluation' OR level = 'claimed' OR private OR hidden THEN ''"
    " WHEN withdrawn_at IS NOT NULL THEN 'withdrawn' ELSE level END"
)
ORDER = ["shortfall", "posted_at", "run_id"]


def upgrade() -> None:
    op.add_column("runs", sa.Column("public_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE runs SET public_at = posted_at WHERE NOT private")
    _start_over(
        BEFORE,
        MISPLACED,
        [
            sa.Column("posted_by_id", sa.Integer(), nullable=False),
            sa.Column("withdrawn", sa.Boolean(), nullable=False),
            sa.Column("counts", sa.Boolean(), nullable=False),
            sa.ForeignKeyConstraint(
                ["posted_by_id"], ["users.id"], name=op.f("fk_board_entries_posted_by_id_users")
            ),
        ],
    )
    op.create_index("ix_board_entries_counts", "board_entries", ["board_id", "counts", *ORDER])
    columns = ["board_id", "model", "posted_by_id", "posted_at", "run_id"]
    op.create_index("ix_board_entries_model", "board_entries", columns)


def downgrade() -> None:
    record = sa.Column("record", sa.Boolean(), nullable=False)
    _start_over(MISPLACED, BEFORE, [record, sa.Column("best", sa.Boolean(), nullable=False)])
    op.create_index("ix_board_entries_best", "board_entries", ["board_id", "best", *ORDER])
    op.create_index("ix_board_entries_model", "board_entries", ["board_id", "model", "posted_at", "run_id"])
    op.create_index("ix_board_entries_record", "board_entries", ["board_id", "record", "model", "posted_at"])
    op.drop_column("runs", "public_at")


def _start_over(before: sa.TextClause, after: sa.TextClause, columns: list[sa.schema.SchemaItem]) -> None:
    """Take all runs off their boards, whose rows get these columns beside those that stay."""
    op.drop_table("board_entries")
    op.execute(sa.text("UPDATE boards SET runs = 0, models = 0, lows = :empty, highs = :empty")
               .bindparams(sa.bindparam("empty", b"", sa.LargeBinary())))
    op.drop_index("ix_runs_misplaced", "runs", sqlite_where=before, postgresql_where=before)
    op.execute("UPDATE runs SET board_level = ''")
    op.create_index(
        "ix_runs_misplaced", "runs", ["environment_id"], sqlite_where=after, postgresql_where=after
    )
    op.create_table(
        "board_entries",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("board_id", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("shortfall", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Double(), nullable=True),
        sa.Column("usd", sa.Double(), nullable=True),
        sa.Column("posted_at", sa.DateTime(timezone=True), nullable=False),
        *columns,
        sa.ForeignKeyConstraint(["board_id"], ["boards.id"], name=op.f("fk_board_entries_board_id_boards")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_board_entries_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_board_entries")),
    )
    op.create_index("ix_board_entries_all", "board_entries", ["board_id", *ORDER])
    op.create_index("ix_board_entries_posted", "board_entries", ["board_id", "posted_at", "run_id"])
