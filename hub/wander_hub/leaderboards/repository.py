"""Queries on boards. Each reads about as many rows as it returns, however many runs a board has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, func, literal, select, tuple_
from sqlalchemy.orm import Session, defer, joinedload, undefer
from wander.wire.boards import LEVELS_UP

from wander_hub.database import UtcDateTime
from wander_hub.environments.models import Environment
from wander_hub.leaderboards.bounds import Interval
from wander_hub.leaderboards.models import Board, BoardEntry, HiddenRun
from wander_hub.leaderboards.schemas import BoardFilter, BoardPosition
from wander_hub.runs.models import INCOMPLETE, Run
from wander_hub.runs.repository import readable_run

_UNKNOWN = 1e300
"""What stands for tokens and costs that nobody knows, so that they come last."""
_VALUES: dict[str, Any] = {
    "reward": BoardEntry.shortfall,
    "tokens": func.coalesce(BoardEntry.tokens, _UNKNOWN),
    "cost": func.coalesce(BoardEntry.usd, _UNKNOWN),
}


def boards_of(session: Session, version_id: int, limit: int) -> Sequence[Board]:
    """Return the boards of a version: the pinned one, then the busiest first."""
    query = select(Board).where(Board.version_id == version_id, Board.runs > 0)
    return session.scalars(query.order_by(*_board_order()).limit(limit)).all()


def boards_named(session: Session, version_id: int, task_set: str, name: str) -> Sequence[Board]:
    """Return the boards of a version whose task set and name begin so."""
    query = select(Board).where(
        Board.version_id == version_id,
        Board.task_set_sha256.startswith(task_set, autoescape=True),
        Board.name.startswith(name, autoescape=True),
    )
    return session.scalars(query.order_by(*_board_order()).limit(1)).all()


def count_boards(session: Session, version_id: int) -> int:
    """Return how many boards a version has."""
    query = select(func.count()).select_from(Board)
    return session.scalar(query.where(Board.version_id == version_id, Board.runs > 0)) or 0


def first_boards(session: Session, version_ids: Collection[int]) -> dict[int, list[Board]]:
    """Return the boards of several versions, each in the order of `boards_of`."""
    query = select(Board).where(Board.version_id.in_(version_ids), Board.runs > 0)
    found: dict[int, list[Board]] = {}
    for one in session.scalars(query.order_by(*_board_order())):
        found.setdefault(one.version_id, []).append(one)
    return found


def with_bounds(session: Session, board: Board) -> Board:
    """Return a board with the intervals that ranks are counted from."""
    query = select(Board).where(Board.id == board.id)
    wanted = query.options(undefer(Board.lows), undefer(Board.highs)).execution_options(
        populate_existing=True
    )
    return session.scalars(wanted).one()


def page(session: Session, board: Board, wanted: BoardFilter) -> Sequence[tuple[Run, BoardEntry]]:
    """Return up to `limit + 1` runs of a board, as the filter orders them."""
    query = _entries(_thin(session).add_columns(BoardEntry), board, wanted)
    key, types = _sort_key(wanted)
    descending = wanted.sort == "posted"
    if wanted.cursor:
        at = BoardPosition.from_cursor(wanted.cursor, wanted.sort)
        values: list[Any] = [] if descending else [at.value]
        values += [at.posted_at, at.run_id]
        place = tuple_(*(literal(one, kind) for one, kind in zip(values, types, strict=True)))
        query = query.where(tuple_(*key) < place if descending else tuple_(*key) > place)
    query = query.order_by(*(one.desc() if descending else one for one in key)).limit(wanted.limit + 1)
    return [(run, entry) for run, entry in session.execute(query)]


def position(entry: BoardEntry, wanted: BoardFilter) -> BoardPosition:
    """Return where a page ends whose last row this is."""
    value = {"reward": entry.shortfall, "posted": 0.0, "tokens": entry.tokens, "cost": entry.usd}[wanted.sort]
    known = value if value is not None else _UNKNOWN
    return BoardPosition(wanted.sort, known, entry.posted_at, entry.run_id)


def best_intervals(session: Session, board: Board, models: Collection[str]) -> dict[str, Interval]:
    """Return the intervals of the best runs of these models."""
    query = select(BoardEntry.model, BoardEntry.low, BoardEntry.high).where(
        BoardEntry.board_id == board.id, BoardEntry.model.in_(models), BoardEntry.best
    )
    return {model: (low, high) for model, low, high in session.execute(query)}


def leaders(session: Session, board: Board, limit: int) -> Sequence[BoardEntry]:
    """Return the best run of each of the leading models."""
    return session.scalars(_order_by_rank(board, select(BoardEntry)).limit(limit)).all()


def records(session: Session, board: Board, models: int, limit: int) -> Sequence[BoardEntry]:
    """Return the records of so many leading models, by time."""
    leading = _order_by_rank(board, select(BoardEntry.model)).limit(models).subquery()
    query = select(BoardEntry).where(
        BoardEntry.board_id == board.id,
        BoardEntry.model.in_(select(leading.c.model)),
        BoardEntry.record.is_(True),
    )
    # In the order of their index: that of time would walk all runs for the few records among them.
    found = session.scalars(query.order_by(BoardEntry.model, BoardEntry.posted_at).limit(limit))
    return sorted(found, key=lambda one: (one.posted_at, one.run_id))


def hidden_of(session: Session, board: Board, limit: int) -> Sequence[tuple[Run, HiddenRun]]:
    """Return the runs that owners keep off a board, the last ones first."""
    query = (
        _thin(session)
        .add_columns(HiddenRun)
        .join(HiddenRun, HiddenRun.run_id == Run.run_id)
        .where(HiddenRun.board_id == board.id, Run.withdrawn_at.is_(None))
        .options(joinedload(HiddenRun.hidden_by))
        .order_by(HiddenRun.hidden_at.desc(), Run.run_id)
    )
    return [(run, hidden) for run, hidden in session.execute(query.limit(limit))]


def find_hiding(session: Session, run_id: str) -> HiddenRun | None:
    """Return why a run is hidden, or None."""
    query = select(HiddenRun).where(HiddenRun.run_id == run_id)
    return session.scalar(query.options(joinedload(HiddenRun.hidden_by)))


def entry_of(session: Session, run_id: str) -> BoardEntry | None:
    """Return where a run stands, or None."""
    return session.get(BoardEntry, run_id)


def versions_with_boards(session: Session, version_ids: Collection[int]) -> set[int]:
    """Return which of these versions have a board with a run."""
    query = select(Board.version_id).where(Board.version_id.in_(version_ids), Board.runs > 0)
    return set(session.scalars(query.distinct()))


def count_incomplete(session: Session, version_id: int, task_set: str | None) -> int:
    """Return how many evaluations of a version, or of one of its task sets, do not rank."""
    query = select(func.count()).select_from(Run).where(Run.version_id == version_id, INCOMPLETE)
    if task_set is not None:
        query = query.where(Run.task_set_sha256 == task_set)
    return session.scalar(query) or 0


def _order_by_rank(board: Board, query: Select[Any]) -> Select[Any]:
    query = query.where(BoardEntry.board_id == board.id, BoardEntry.best.is_(True))
    return query.order_by(BoardEntry.shortfall, BoardEntry.posted_at, BoardEntry.run_id)


def _thin(session: Session) -> Select[Any]:
    """Return the statement on the runs that the caller may see, which reads nothing long of them."""
    query = select(Run).join(Run.environment).join(Environment.owner).where(readable_run(session))
    return query.options(defer(Run.manifest), joinedload(Run.posted_by))


def _entries(query: Select[Any], board: Board, wanted: BoardFilter) -> Select[Any]:
    query = query.join(BoardEntry, BoardEntry.run_id == Run.run_id).where(BoardEntry.board_id == board.id)
    if wanted.showing == "best":
        query = query.where(BoardEntry.best.is_(True))
    if wanted.level in LEVELS_UP[1:]:
        query = query.where(BoardEntry.level.in_(LEVELS_UP[LEVELS_UP.index(wanted.level) :]))
    if wanted.model:
        query = query.where(BoardEntry.model.icontains(wanted.model, autoescape=True))
    if wanted.since is not None:
        query = query.where(BoardEntry.posted_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(BoardEntry.posted_at < wanted.until)
    return query


def _sort_key(wanted: BoardFilter) -> tuple[list[Any], list[Any]]:
    moment: list[Any] = [BoardEntry.posted_at, BoardEntry.run_id]
    types: list[Any] = [UtcDateTime(), BoardEntry.run_id.type]
    if wanted.sort == "posted":
        return moment, types
    return [_VALUES[wanted.sort], *moment], [BoardEntry.shortfall.type, *types]


def _board_order() -> tuple[Any, ...]:
    return Board.pinned.desc(), Board.runs.desc(), Board.last_posted_at.desc(), Board.name
