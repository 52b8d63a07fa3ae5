"""Queries on boards. Each reads about as many rows as it returns, no matter how many runs a board has."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Subquery,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import Session, aliased, joinedload, load_only
from wander.wire import VerificationLevel
from wander.wire.boards import LEVELS_UP, TIERS

from wander_hub.accounts.models import User
from wander_hub.database import READER, UtcDateTime
from wander_hub.environments.repository import KEPT_STATEMENTS
from wander_hub.identity import Identity
from wander_hub.leaderboards.bounds import BoardPlace
from wander_hub.leaderboards.filters import BoardFilter, BoardPosition
from wander_hub.leaderboards.models import Board, BoardEntry, HiddenRun, place_of
from wander_hub.runs.models import INCOMPLETE, Run, RunCompletion, RunExamination
from wander_hub.runs.repository import name_lookalikes, neighboring_names, runs_readable_by

_UNKNOWN = 1e300
"""Sort value of unknown tokens and costs, so that they come last."""
BOARD_ORDER = (
    *(Board.pinned.desc(), Board.standard.desc(), Board.examples.desc()),
    *(Board.max_tokens.is_not(None), Board.id),
)
"""Order of the boards of a version: the pinned board, then boards with the environment's defaults and whole
evaluation split, then by number of examples, then boards without a token limit. The number of runs does not
matter, because anyone may post many."""
_BOARD, _MOST = bindparam("board_id", type_=Integer), bindparam("most", type_=Integer)
"""Parameters of the cached statements: the board, and the maximum number of rows."""


class BoardRow(NamedTuple):
    """A run on a board with the numbers of its row."""

    run_id: str
    model: str
    name: str | None
    model_kind: str
    rollouts_per_example: int
    weights_sha256: str | None
    posted_by_id: int
    posted_by: str
    summary: str
    """The summary as JSON text, which pydantic parses three times as fast as a parsed value."""
    level: VerificationLevel
    tier: int
    low: float | None
    high: float | None
    posted_at: datetime
    counts: bool
    folded_into: str | None
    shortfall: float
    tokens_per_rollout: float | None
    usd_per_rollout: float | None
    better: int
    """Number of certainly better rows of the tier when sorted by tokens or cost, otherwise 0."""

    @property
    def place(self) -> BoardPlace:
        """Position that decides the rank."""
        return place_of(self.tier, self.low, self.high)


def boards_of(session: Session, version_id: int, limit: int) -> Sequence[Board]:
    """Return the boards of a version in `BOARD_ORDER`."""
    return session.scalars(_boards_of(), {"version_id": version_id, "most": limit}).all()


@cache
def _boards_of() -> Select[Board]:
    query = select(Board).where(Board.version_id == bindparam("version_id"), Board.runs > 0)
    return query.order_by(*BOARD_ORDER).limit(_MOST)


def find_versions_with_boards(session: Session, version_ids: Sequence[int]) -> set[int]:
    """Return the ids of those versions that have a board with runs."""
    return set(session.scalars(_with_boards(), {"version_ids": list(version_ids)}))


@cache
def _with_boards() -> Select[int]:
    of_versions = Board.version_id.in_(bindparam("version_ids", expanding=True))
    return select(Board.version_id).where(of_versions, Board.runs > 0).distinct()


def page(session: Session, board: Board, wanted: BoardFilter) -> Sequence[BoardRow]:
    """Return up to `limit + 1` runs of a board, in the order of the filter."""
    rows = session.execute(_page(session.info.get(READER), wanted), {"board_id": board.id})
    return [BoardRow(*row) for row in rows]


@lru_cache(KEPT_STATEMENTS)
def _page(reader: Identity | None, wanted: BoardFilter) -> Select[Any]:
    run = (Run.run_id, Run.model, Run.name, Run.model_kind, Run.rollouts_per_example, Run.weights_sha256)
    poster = (Run.posted_by_id, User.name, cast(Run.summary, Text))
    place = (BoardEntry.level, BoardEntry.tier, BoardEntry.low, BoardEntry.high)
    entry = (BoardEntry.posted_at, BoardEntry.counts)
    columns: tuple[Any, ...] = (*run, *poster, *place, *entry)
    query: Select[Any] = runs_readable_by(reader).with_only_columns(*columns, maintain_column_froms=True)
    numbers = (BoardEntry.shortfall, BoardEntry.tokens, BoardEntry.usd)
    query = query.add_columns(BoardEntry.folded_into, *numbers).join(User, User.id == Run.posted_by_id)
    query = query.join(BoardEntry, BoardEntry.run_id == Run.run_id).where(BoardEntry.board_id == _BOARD)
    rank: ColumnElement[int] = literal(0)
    if wanted.sort in ("tokens", "cost"):
        better = _count_better()
        query = query.join(better, better.c.run_id == BoardEntry.run_id)
        rank = better.c.better
    query = query.add_columns(rank)
    if wanted.showing == "all":
        query = query.where(BoardEntry.withdrawn.is_(False))
    else:
        query = query.where(BoardEntry.counts.is_(True))
    if wanted.level in LEVELS_UP[1:]:
        query = query.where(BoardEntry.level.in_(LEVELS_UP[LEVELS_UP.index(wanted.level) :]))
    if wanted.model:
        folded = aliased(BoardEntry)
        below = select(folded.run_id).where(folded.folded_into == BoardEntry.run_id)
        below = below.where(folded.model.icontains(wanted.model, autoescape=True))
        query = query.where(or_(BoardEntry.model.icontains(wanted.model, autoescape=True), below.exists()))
    if wanted.since is not None:
        query = query.where(BoardEntry.posted_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(BoardEntry.posted_at < wanted.until)
    return _ordered(query, rank, wanted).limit(wanted.limit + 1)


def _count_better() -> Subquery:
    """Return the number of rows of the same tier that are certainly better than each run of a board.

    A row is certainly better than a run if its interval begins above the end of the run's interval. All ends
    are sorted once, and a window function counts the beginnings before each end. A row of the run's own model
    and account does not count, because the run would replace it.
    """
    entry, own = aliased(BoardEntry), aliased(BoardEntry)
    last = TIERS.index("unverifiable")
    lows = select(entry.run_id, entry.tier, entry.low.label("end"), literal(1).label("begins"))
    lows = lows.where(entry.board_id == _BOARD, entry.counts.is_(True), entry.low.is_not(None))
    lows = lows.where(entry.tier != last)
    high = case((entry.tier == last, None), else_=entry.high)
    highs = select(entry.run_id, entry.tier, func.coalesce(high, _UNKNOWN).label("end"), literal(0))
    ends = lows.union_all(highs.where(entry.board_id == _BOARD)).subquery()
    before = func.sum(ends.c.begins).over(
        partition_by=ends.c.tier, order_by=(ends.c.end.desc(), ends.c.begins), rows=(None, 0)
    )
    counted = select(ends.c.run_id, ends.c.begins, before.label("better")).subquery()
    is_own_better = or_(
        own.tier < entry.tier, and_(own.tier == entry.tier, own.tier != last, own.low > entry.high)
    )
    better = counted.c.better - case((is_own_better, 1), else_=0)
    query = select(entry.run_id, better.label("better")).select_from(counted)
    query = query.join(entry, entry.run_id == counted.c.run_id).where(counted.c.begins == 0)
    of_row = (own.board_id == _BOARD, own.model == entry.model, own.posted_by_id == entry.posted_by_id)
    return query.outerjoin(own, and_(*of_row, own.counts.is_(True))).subquery("better")


def _ordered(query: Select[Any], rank: ColumnElement[int], wanted: BoardFilter) -> Select[Any]:
    """Order the rows and skip those of earlier pages."""
    descending = wanted.sort == "posted"
    key: list[Any] = [BoardEntry.posted_at, BoardEntry.run_id]
    types: list[Any] = [UtcDateTime(), BoardEntry.run_id.type]
    if not descending:
        values = {"reward": BoardEntry.shortfall, "tokens": BoardEntry.tokens, "cost": BoardEntry.usd}
        value: Any = values[wanted.sort]
        if wanted.sort != "reward":
            value = func.coalesce(value, _UNKNOWN)
            key, types = [rank, value, *key], [Integer(), BoardEntry.shortfall.type, *types]
        else:
            key, types = [value, *key], [BoardEntry.shortfall.type, *types]
        key, types = [BoardEntry.tier, *key], [BoardEntry.tier.type, *types]
    if wanted.cursor:
        at = BoardPosition.from_cursor(wanted.cursor, wanted.sort)
        last = [at.posted_at, at.run_id]
        if not descending:
            ranked = [] if wanted.sort == "reward" else [at.rank]
            last = [at.tier, *ranked, at.value, *last]
        place = tuple_(*(literal(value, kind) for value, kind in zip(last, types, strict=True)))
        query = query.where(tuple_(*key) < place if descending else tuple_(*key) > place)
    return query.order_by(*(column.desc() if descending else column for column in key))


def position_of_row(row: BoardRow, wanted: BoardFilter) -> BoardPosition:
    """Return the position of a page's last row."""
    values = {
        "reward": row.shortfall,
        "posted": 0.0,
        "tokens": row.tokens_per_rollout,
        "cost": row.usd_per_rollout,
    }
    value = values[wanted.sort]
    known = value if value is not None else _UNKNOWN
    return BoardPosition(wanted.sort, row.tier, row.better, known, row.posted_at, row.run_id)


class RowDetails(NamedTuple):
    """Additional details of a run's row."""

    level_reason: str
    tokens: dict[str, Any] | None
    """Content of a `TokenCheck`."""
    looks_like: list[str]
    is_folded_onto: bool
    """Whether other runs are folded under it."""
    is_repeated: bool
    """Whether other runs repeat it and agree with it."""


def details_of(session: Session, run_ids: Sequence[str]) -> dict[str, RowDetails]:
    """Return additional details of these runs' rows."""
    details = {}
    for run_id, reason, tokens, folded, repeated, *names in session.execute(
        _details(), {"run_ids": list(run_ids)}
    ):
        details[run_id] = RowDetails(reason, tokens, name_lookalikes(*names), folded, repeated)
    return details


@cache
def _details() -> Select[Any]:
    folded, repetition = aliased(BoardEntry), aliased(RunExamination)
    has_folded = select(folded.run_id).where(folded.folded_into == Run.run_id).exists()
    has_repetition = select(repetition.run_id).where(repetition.rerun_of == Run.run_id, repetition.agrees)
    query = select(Run.run_id, Run.level_reason, RunExamination.tokens, has_folded, has_repetition.exists())
    query = query.add_columns(Run.model, *neighboring_names())
    query = query.outerjoin(RunExamination, RunExamination.run_id == Run.run_id)
    return query.where(Run.run_id.in_(bindparam("run_ids", expanding=True)))


class Standing(NamedTuple):
    """Interval ends of a board, tier by tier, with counts of runs that are not on it."""

    lows: bytes
    highs: bytes
    tiers: list[int]
    incomplete: int
    """Number of evaluations of the task set that are not ranked."""
    has_hidden: bool


def standing_of(session: Session, board: Board) -> Standing:
    """Return the interval ends of a board, and whether runs are incomplete or hidden."""
    return Standing(*session.execute(_standing(), {"board_id": board.id}).one())


@cache
def _standing() -> Select[Any]:
    of_board = (Run.version_id == Board.version_id, Run.task_set_sha256 == Board.task_set_sha256)
    incomplete = select(func.count()).select_from(Run).where(*of_board, INCOMPLETE).scalar_subquery()
    hidden = select(HiddenRun.run_id).where(HiddenRun.board_id == Board.id).exists()
    query = select(Board.lows, Board.highs, Board.tiers, incomplete, hidden)
    return query.where(Board.id == _BOARD)


def counting_places(session: Session, board: Board, models: Set[str]) -> dict[tuple[str, int], BoardPlace]:
    """Return the places of the counting runs of these models, by model and account."""
    entry = BoardEntry
    query = select(entry.model, entry.posted_by_id, entry.tier, entry.low, entry.high)
    # `counts.is_(True)` would make SQLite miss the partial index and read all entries of the board.
    query = query.where(entry.board_id == board.id, entry.model.in_(models), entry.counts)
    rows = session.execute(query)
    return {(model, account): place_of(tier, low, high) for model, account, tier, low, high in rows}


def has_turn() -> ColumnElement[bool]:
    """Return the condition that selects eligible entries (see `BoardEntry`)."""
    return BoardEntry.counts | BoardEntry.folded_into.is_not(None)


def runs_like(session: Session, entry: BoardEntry) -> Sequence[BoardEntry]:
    """Return the other eligible runs of the board that share at least half of a run's completions."""
    own = select(RunCompletion.digest).where(RunCompletion.run_id == entry.run_id)
    digests = session.scalars(own).all()
    shared = (
        select(RunCompletion.run_id)
        .where(RunCompletion.digest.in_(digests), RunCompletion.run_id != entry.run_id)
        .group_by(RunCompletion.run_id)
        .having(2 * func.count() >= len(digests))
    )
    query = select(BoardEntry).where(BoardEntry.board_id == entry.board_id, has_turn())
    return session.scalars(query.where(BoardEntry.run_id.in_(shared))).all() if digests else []


def folded_under(session: Session, run_ids: Collection[str]) -> dict[str, list[tuple[BoardEntry, Run]]]:
    """Return the runs that are folded under each of these rows, earliest first."""
    entry, top = BoardEntry, BoardEntry.folded_into.label("top")
    if not run_ids:
        return {}
    first = select(entry.run_id, top).where(entry.folded_into.in_(run_ids)).cte("folded", recursive=True)
    whole = first.union_all(select(entry.run_id, first.c.top).where(entry.folded_into == first.c.run_id))
    query = _thin(session.info.get(READER)).join(BoardEntry, BoardEntry.run_id == Run.run_id)
    query = query.add_columns(BoardEntry, whole.c.top)
    query = query.join(whole, whole.c.run_id == Run.run_id).order_by(entry.posted_at, entry.run_id)
    folded: dict[str, list[tuple[BoardEntry, Run]]] = {}
    for run, folded_entry, above in session.execute(query):
        folded.setdefault(above, []).append((folded_entry, run))
    return folded


def top_of(session: Session, above: str | None) -> BoardEntry | None:
    """Return the row under which a run is folded, starting from the run directly above it; None for a row."""
    entry = None
    while above is not None:
        entry = session.get_one(BoardEntry, above)
        above = entry.folded_into
    return entry


class Leader(NamedTuple):
    """A leading row of a board."""

    run_id: str
    model: str
    tier: int
    reward_mean: float
    posted_at: datetime


def leaders(session: Session, board: Board, limit: int) -> list[Leader]:
    """Return the leading rows."""
    rows = session.execute(_leaders(), {"board_id": board.id, "most": limit})
    return [Leader(*row) for row in rows]


@cache
def _leaders() -> Select[Any]:
    entry: Any = BoardEntry
    query = select(entry.run_id, entry.model, entry.tier, 0.0 - entry.shortfall, entry.posted_at)
    query = query.where(entry.board_id == _BOARD, entry.counts.is_(True))
    return query.order_by(entry.tier, entry.shortfall, entry.posted_at, entry.run_id).limit(_MOST)


def leader_of(session: Session, board: Board) -> Leader | None:
    """Return the leading row; None if even the first row is unverifiable."""
    first = next(iter(leaders(session, board, 1)), None)
    return first if first is not None and TIERS[first.tier] != "unverifiable" else None


def hidden_of(session: Session, board: Board, limit: int) -> Sequence[tuple[Run, HiddenRun]]:
    """Return the runs that owners hid from a board, most recently hidden first."""
    rows = session.execute(_hidden(session.info.get(READER)), {"board_id": board.id, "most": limit})
    return [(run, hidden) for run, hidden in rows]


@lru_cache(KEPT_STATEMENTS)
def _hidden(reader: Identity | None) -> Select[Run, HiddenRun]:
    return (
        _thin(reader)
        .add_columns(HiddenRun)
        .join(HiddenRun, HiddenRun.run_id == Run.run_id)
        .where(HiddenRun.board_id == _BOARD)
        .options(joinedload(HiddenRun.hidden_by))
        .order_by(HiddenRun.hidden_at.desc(), Run.run_id)
        .limit(_MOST)
    )


def find_hiding(session: Session, run_id: str) -> HiddenRun | None:
    """Return the reason why a run is hidden, or None."""
    query = select(HiddenRun).where(HiddenRun.run_id == run_id)
    return session.scalar(query.options(joinedload(HiddenRun.hidden_by)))


def count_incomplete(session: Session, version_id: int) -> int:
    """Return the number of a version's evaluations that are not ranked."""
    query = select(func.count()).select_from(Run)
    return session.scalar(query.where(Run.version_id == version_id, INCOMPLETE)) or 0


@lru_cache(KEPT_STATEMENTS)
def _thin(reader: Identity | None) -> Select[Any]:
    """Return the statement for runs that a reader may see, without their large columns."""
    shown = (Run.run_id, Run.model, Run.name, Run.model_kind, Run.rollouts_per_example, Run.weights_sha256)
    details = (Run.posted_by_id, Run.reward_mean, Run.level, Run.posted_at)
    return runs_readable_by(reader).options(
        load_only(*shown, *details), joinedload(Run.posted_by).load_only(User.name)
    )
