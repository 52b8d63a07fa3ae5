"""Runs stand on boards by what the hub's own replays proved, and the first that could be verified counts

Runs that could not be verified leave their boards, and so does one run of each board that holds several tiers: the
hub puts them back when it starts, and brings up to date what listings show.
"""

from array import array

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

_FIELDS = ("tier", "shortfall", "posted_at", "run_id")
_OLD = ("below", *_FIELDS[1:])
_BOARDS = sa.table(
    "boards",
    *map(sa.column, ("id", "runs", "models")),
    sa.column("lows", sa.LargeBinary()),
    sa.column("highs", sa.LargeBinary()),
    sa.column("tiers", sa.JSON()),
)
_ENTRIES = sa.table(
    "board_entries",
    *map(sa.column, ("board_id", "run_id", "level", "tier", "low", "high", "withdrawn", "counts")),
)
_RUNS = sa.table("runs", *map(sa.column, ("run_id", "board_level", "level", "own_level")))


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("runs", sa.Column("own_level", sa.String(length=16), nullable=True))
    op.execute("UPDATE runs SET own_level = 'complete' WHERE level = 'rerun'")
    for level in ("rescored", "replayed"):
        gave = f"SELECT run_id FROM verifications WHERE gave = '{level}'"
        op.execute(f"UPDATE runs SET own_level = '{level}' WHERE level = 'rerun' AND run_id IN ({gave})")
    op.add_column("boards", sa.Column("tiers", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("board_entries", sa.Column("tier", sa.Integer(), nullable=False, server_default="2"))
    own = "(SELECT own_level FROM runs WHERE runs.run_id = board_entries.run_id)"
    op.execute(
        f"UPDATE board_entries SET tier = CASE CASE level WHEN 'rerun' THEN {own} ELSE level END"
        " WHEN 'replayed' THEN 0 WHEN 'rescored' THEN 1 WHEN 'unverifiable' THEN 3 ELSE 2 END"
    )
    _index(_OLD, _FIELDS)
    op.drop_column("board_entries", "below")
    mixed = (
        sa.select(sa.func.max(_ENTRIES.c.run_id))
        .group_by(_ENTRIES.c.board_id)
        .having(sa.func.count(_ENTRIES.c.tier.distinct()) > 1)
    )
    several = connection.scalars(mixed).all()
    _take_down(_ENTRIES.c.run_id.in_(several) | (_ENTRIES.c.level == "unverifiable"))
    for board_id in connection.scalars(sa.select(_BOARDS.c.id)).all():
        held = sa.select(_ENTRIES).where(_ENTRIES.c.board_id == board_id)
        _fill(board_id, connection.execute(held).all())


def downgrade() -> None:
    op.add_column("board_entries", sa.Column("below", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE board_entries SET below = true WHERE tier = 3")
    _index(_FIELDS, _OLD)
    # An older hub puts all runs in their places anew.
    _take_down(sa.true())
    emptied = _BOARDS.update().values(runs=0, models=0, lows=b"", highs=b"")
    op.execute(emptied)
    op.drop_column("board_entries", "tier")
    op.drop_column("boards", "tiers")
    op.drop_column("runs", "own_level")


def _index(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    for name, first in (("all", ["board_id"]), ("counts", ["board_id", "counts"])):
        op.drop_index(f"ix_board_entries_{name}", "board_entries")
        op.create_index(f"ix_board_entries_{name}", "board_entries", [*first, *after])


def _take_down(which: sa.ColumnElement[bool]) -> None:
    """Take runs off their boards; the hub sees that they stand on none."""
    found = sa.select(_ENTRIES.c.run_id).where(which)
    op.execute(_RUNS.update().where(_RUNS.c.run_id.in_(found)).values(board_level=""))
    op.execute(_ENTRIES.delete().where(which))


def _fill(board_id: int, held: list[sa.Row]) -> None:
    """Count the runs of a board, and keep the intervals of those that count."""
    ends = [
        (one.tier, float("-inf"), float("inf")) if one.low is None else (one.tier, one.low, one.high)
        for one in held
        if one.counts
    ]
    tiers = [sum(tier == each for tier, _, _ in ends) for each in range(1 + max((one[0] for one in ends), default=-1))]
    lows = array("d", (low for _, low in sorted((tier, low) for tier, low, _ in ends)))
    highs = array("d", (high for _, high in sorted((tier, high) for tier, _, high in ends)))
    filled = {"runs": sum(not one.withdrawn for one in held), "models": len(ends), "tiers": tiers}
    filled |= {"lows": lows.tobytes(), "highs": highs.tobytes()}
    op.execute(_BOARDS.update().where(_BOARDS.c.id == board_id).values(filled))
