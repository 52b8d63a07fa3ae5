"""Queries on boards. Each reads about as many rows as it returns, however many runs a board has."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Subquery, and_, func, literal, or_, select, tuple_
from sqlalchemy.orm import Session, aliased, defer, joinedload
from wander.wire.boards import LEVELS_UP, TIERS

from wander_hub.database import UtcDateTime
from wander_hub.leaderboards.bounds import Place
from wander_hub.leaderboards.models import Board, BoardEntry, HiddenRun, place_of
from wander_hub.leaderboards.schemas import BoardFilter, BoardPosition
from wander_hub.runs.models import INCOMPLETE, Run, RunCompletion
from wander_hub.runs.repository import readable_runs

_UNKNOWN = 1e300
"""What stands for tokens and costs that nobody knows, so that they come last."""
BOARD_ORDER = (
    *(Board.pinned.desc(), Board.standard.desc(), Board.examples.desc()),
    *(Board.max_tokens.is_not(None), Board.id),
)
"""The pinned board of a version first, then the environment's defaults over its whole evaluation split, then
those of most examples; of equals, one whose turns may have any length. Runs decide nothing here: anyone may
post many."""
_MEANS = ("shortfall", "low", "high", "tokens", "usd")


class BoardRow(NamedTuple):
    """A run of a board, and the numbers of its row: its own, or means of several runs."""

    run: Run
    entry: BoardEntry
    shortfall: float
    low: float | None
    high: float | None
    tokens: float | None
    usd: float | None
    runs: int


def boards_of(session: Session, version_id: int, limit: int) -> Sequence[Board]:
    """Return the boards of a version in `BOARD_ORDER`."""
    query = select(Board).where(Board.version_id == version_id, Board.runs > 0)
    return session.scalars(query.order_by(*BOARD_ORDER).limit(limit)).all()


def page(session: Session, board: Board, wanted: BoardFilter) -> Sequence[BoardRow]:
    """Return up to `limit + 1` runs of a board, as the filter orders them."""
    query = _thin(session).add_columns(BoardEntry).join(BoardEntry, BoardEntry.run_id == Run.run_id)
    query = query.where(BoardEntry.board_id == board.id)
    if wanted.showing == "all":
        query = query.where(BoardEntry.withdrawn.is_(False))
    else:
        query = query.where(BoardEntry.counts.is_(True))
    shown: Any = BoardEntry
    if wanted.showing == "mean":
        shown = _means(board).c
        same = (shown.model == BoardEntry.model, shown.posted_by_id == BoardEntry.posted_by_id)
        query = query.join(shown.model.table, and_(*same))
    query = query.add_columns(*(getattr(shown, name) for name in _MEANS))
    query = query.add_columns(shown.runs if wanted.showing == "mean" else literal(1))
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
    query = _ordered(query, shown, wanted).limit(wanted.limit + 1)
    return [BoardRow(*row) for row in session.execute(query)]


def _means(board: Board) -> Subquery:
    """Return the means of each model's runs by one account that were proved as far as the one that counts."""
    every, counting = aliased(BoardEntry), aliased(BoardEntry)
    same = [getattr(every, name) == getattr(counting, name) for name in ("board_id", "model", "posted_by_id")]
    query = (
        select(every.model, every.posted_by_id, func.count().label("runs"))
        .add_columns(*(func.avg(getattr(every, name)).label(name) for name in _MEANS))
        .join(counting, and_(*same, counting.counts, every.tier <= counting.tier))
        .where(every.board_id == board.id, every.withdrawn.is_(False))
    )
    return query.group_by(every.model, every.posted_by_id).subquery("means")


def _ordered(query: Select[Any], shown: Any, wanted: BoardFilter) -> Select[Any]:
    """Order rows, and leave out those of the pages before."""
    descending = wanted.sort == "posted"
    key: list[Any] = [BoardEntry.posted_at, BoardEntry.run_id]
    types: list[Any] = [UtcDateTime(), BoardEntry.run_id.type]
    if not descending:
        values = {"reward": shown.shortfall, "tokens": shown.tokens, "cost": shown.usd}
        value = (
            values[wanted.sort] if wanted.sort == "reward" else func.coalesce(values[wanted.sort], _UNKNOWN)
        )
        key = [BoardEntry.tier, value, *key]
        types = [BoardEntry.tier.type, BoardEntry.shortfall.type, *types]
    if wanted.cursor:
        at = BoardPosition.from_cursor(wanted.cursor, wanted.sort)
        places = [at.posted_at, at.run_id] if descending else [at.tier, at.value, at.posted_at, at.run_id]
        place = tuple_(*(literal(one, kind) for one, kind in zip(places, types, strict=True)))
        query = query.where(tuple_(*key) < place if descending else tuple_(*key) > place)
    return query.order_by(*(one.desc() if descending else one for one in key))


def position(row: BoardRow, wanted: BoardFilter) -> BoardPosition:
    """Return where a page ends whose last row this is."""
    value = {"reward": row.shortfall, "posted": 0.0, "tokens": row.tokens, "cost": row.usd}[wanted.sort]
    known = value if value is not None else _UNKNOWN
    return BoardPosition(wanted.sort, row.entry.tier, known, row.entry.posted_at, row.entry.run_id)


def counting_places(session: Session, board: Board, models: Set[str]) -> dict[tuple[str, int], Place]:
    """Return by model and account where those runs of these models rank that count."""
    entry = BoardEntry
    query = select(entry.model, entry.posted_by_id, entry.tier, entry.low, entry.high)
    # Not `counts.is_(True)`: SQLite would miss the index of what counts, and read all of it on the board.
    query = query.where(entry.board_id == board.id, entry.model.in_(models), entry.counts)
    found = session.execute(query)
    return {(model, account): place_of(tier, low, high) for model, account, tier, low, high in found}


def has_turn() -> ColumnElement[bool]:
    """Return the condition on entries that holds for those with the turn of their model and account."""
    return BoardEntry.counts | BoardEntry.folded_into.is_not(None)


def runs_like(session: Session, entry: BoardEntry) -> Sequence[BoardEntry]:
    """Return the other runs with the turn on a board that share at least half of a run's completions."""
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
    """Return the runs that are folded under each of these rows, the earliest first."""
    entry, top = BoardEntry, BoardEntry.folded_into.label("top")
    some = select(entry.run_id).where(entry.folded_into.in_(run_ids)).limit(1)
    if session.scalar(some) is None:  # as on most boards
        return {}
    first = select(entry.run_id, top).where(entry.folded_into.in_(run_ids)).cte("folded", recursive=True)
    whole = first.union_all(select(entry.run_id, first.c.top).where(entry.folded_into == first.c.run_id))
    query = (
        _thin(session).join(BoardEntry, BoardEntry.run_id == Run.run_id).add_columns(BoardEntry, whole.c.top)
    )
    query = query.join(whole, whole.c.run_id == Run.run_id).order_by(entry.posted_at, entry.run_id)
    found: dict[str, list[tuple[BoardEntry, Run]]] = {}
    for run, one, above in session.execute(query):
        found.setdefault(above, []).append((one, run))
    return found


def top_of(session: Session, entry: BoardEntry) -> BoardEntry:
    """Return the row under which a run is folded, or the run itself."""
    while entry.folded_into is not None:
        entry = session.get_one(BoardEntry, entry.folded_into)
    return entry


def leaders(session: Session, board: Board, limit: int) -> Sequence[BoardEntry]:
    """Return the leading rows."""
    query = select(BoardEntry).where(BoardEntry.board_id == board.id, BoardEntry.counts.is_(True))
    key = BoardEntry.tier, BoardEntry.shortfall, BoardEntry.posted_at, BoardEntry.run_id
    return session.scalars(query.order_by(*key).limit(limit)).all()


def leader_of(session: Session, board: Board) -> BoardEntry | None:
    """Return the leading row; none where not even the first could be verified."""
    first = next(iter(leaders(session, board, 1)), None)
    return first if first is not None and TIERS[first.tier] != "unverifiable" else None


def hidden_of(session: Session, board: Board, limit: int) -> Sequence[tuple[Run, HiddenRun]]:
    """Return the runs that owners keep off a board, the last ones first."""
    query = (
        _thin(session)
        .add_columns(HiddenRun)
        .join(HiddenRun, HiddenRun.run_id == Run.run_id)
        .where(HiddenRun.board_id == board.id)
        .options(joinedload(HiddenRun.hidden_by))
        .order_by(HiddenRun.hidden_at.desc(), Run.run_id)
    )
    return [(run, hidden) for run, hidden in session.execute(query.limit(limit))]


def find_hiding(session: Session, run_id: str) -> HiddenRun | None:
    """Return why a run is hidden, or None."""
    query = select(HiddenRun).where(HiddenRun.run_id == run_id)
    return session.scalar(query.options(joinedload(HiddenRun.hidden_by)))


def count_incomplete(session: Session, version_id: int, task_set: str | None) -> int:
    """Return how many evaluations of a version, or of one of its task sets, do not rank."""
    query = select(func.count()).select_from(Run).where(Run.version_id == version_id, INCOMPLETE)
    if task_set is not None:
        query = query.where(Run.task_set_sha256 == task_set)
    return session.scalar(query) or 0


def _thin(session: Session) -> Select[Any]:
    """Return the statement on the runs that the caller may see, which reads nothing long of them."""
    return readable_runs(session).options(defer(Run.brief), joinedload(Run.posted_by))
