"""Queries on boards. Each reads about as many rows as it returns, however many runs a board has."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from sqlalchemy import Select, func, literal, select, tuple_
from sqlalchemy.orm import Session, defer, joinedload
from wander.wire.boards import LEVELS_UP, TIERS

from wander_hub.database import UtcDateTime
from wander_hub.environments.models import Environment
from wander_hub.leaderboards.bounds import Place
from wander_hub.leaderboards.models import Board, BoardEntry, HiddenRun, place_of
from wander_hub.leaderboards.schemas import BoardFilter, BoardPosition
from wander_hub.runs.models import INCOMPLETE, Run
from wander_hub.runs.repository import readable_run

_UNKNOWN = 1e300
"""What stands for tokens and costs that nobody knows, so that they come last."""
BOARD_ORDER = (Board.pinned.desc(), Board.runs.desc(), Board.last_posted_at.desc(), Board.name)
"""The pinned board of a version first, then the busiest."""
_VALUES: dict[str, Any] = {
    "reward": BoardEntry.shortfall,
    "tokens": func.coalesce(BoardEntry.tokens, _UNKNOWN),
    "cost": func.coalesce(BoardEntry.usd, _UNKNOWN),
}


def boards_of(session: Session, version_id: int, limit: int) -> Sequence[Board]:
    """Return the boards of a version: the pinned one, then the busiest first."""
    query = select(Board).where(Board.version_id == version_id, Board.runs > 0)
    return session.scalars(query.order_by(*BOARD_ORDER).limit(limit)).all()


def page(session: Session, board: Board, wanted: BoardFilter) -> Sequence[tuple[Run, BoardEntry]]:
    """Return up to `limit + 1` runs of a board, as the filter orders them."""
    query = _thin(session).add_columns(BoardEntry).join(BoardEntry, BoardEntry.run_id == Run.run_id)
    query = query.where(BoardEntry.board_id == board.id)
    if wanted.showing == "best":
        query = query.where(BoardEntry.counts.is_(True))
    else:
        query = query.where(BoardEntry.withdrawn.is_(False))
    if wanted.level in LEVELS_UP[1:]:
        query = query.where(BoardEntry.level.in_(LEVELS_UP[LEVELS_UP.index(wanted.level) :]))
    if wanted.model:
        query = query.where(BoardEntry.model.icontains(wanted.model, autoescape=True))
    if wanted.since is not None:
        query = query.where(BoardEntry.posted_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(BoardEntry.posted_at < wanted.until)
    descending = wanted.sort == "posted"
    key: list[Any] = [BoardEntry.posted_at, BoardEntry.run_id]
    types: list[Any] = [UtcDateTime(), BoardEntry.run_id.type]
    if not descending:
        key = [BoardEntry.tier, _VALUES[wanted.sort], *key]
        types = [BoardEntry.tier.type, BoardEntry.shortfall.type, *types]
    if wanted.cursor:
        at = BoardPosition.from_cursor(wanted.cursor, wanted.sort)
        values = [at.posted_at, at.run_id] if descending else [at.tier, at.value, at.posted_at, at.run_id]
        place = tuple_(*(literal(one, kind) for one, kind in zip(values, types, strict=True)))
        query = query.where(tuple_(*key) < place if descending else tuple_(*key) > place)
    query = query.order_by(*(one.desc() if descending else one for one in key)).limit(wanted.limit + 1)
    return [(run, entry) for run, entry in session.execute(query)]


def position(entry: BoardEntry, wanted: BoardFilter) -> BoardPosition:
    """Return where a page ends whose last row this is."""
    value = {"reward": entry.shortfall, "posted": 0.0, "tokens": entry.tokens, "cost": entry.usd}[wanted.sort]
    known = value if value is not None else _UNKNOWN
    return BoardPosition(wanted.sort, entry.tier, known, entry.posted_at, entry.run_id)


def counting_places(session: Session, board: Board, models: Set[str]) -> dict[tuple[str, int], Place]:
    """Return by model and account where those runs of these models rank that count."""
    entry = BoardEntry
    query = select(entry.model, entry.posted_by_id, entry.tier, entry.low, entry.high)
    # Not `counts.is_(True)`: SQLite would miss the index of what counts, and read all of it on the board.
    query = query.where(entry.board_id == board.id, entry.model.in_(models), entry.counts)
    found = session.execute(query)
    return {(model, account): place_of(tier, low, high) for model, account, tier, low, high in found}


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
    query = select(Run).join(Run.environment).join(Environment.owner).where(readable_run(session))
    return query.options(defer(Run.manifest), joinedload(Run.posted_by))
