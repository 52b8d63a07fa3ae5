"""Gathers the data for the page of a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from markupsafe import Markup
from sqlalchemy.orm import Session
from wander.types import canonical_json
from wander.wire import BoardInfo, EnvironmentSummary, Leaderboard, LeaderboardRow
from wander.wire.boards import BOARD_COLUMNS, REQUIRED_COLUMNS, TIERS, filled_columns, most_attempts

from wander_hub.environments import service as environments
from wander_hub.environments.repository import ListedVersion
from wander_hub.leaderboards import service as leaderboards
from wander_hub.leaderboards.elsewhere import set_apart
from wander_hub.leaderboards.filters import BoardFilter, BoardSort
from wander_hub.leaderboards.strata import score_stratum
from wander_hub.verification import service as verification
from wander_hub.web import charts
from wander_hub.web.addresses import query_string
from wander_hub.web.text import count, shorten
from wander_hub.web.visit import Visit

_METRIC_COLUMNS = 5
"""Number of metric columns if nobody selected metrics one by one."""
_MOST_METRICS = 30
"""Maximum number of metrics to choose from."""


@dataclass(frozen=True)
class BoardView:
    """Data for the page of a leaderboard."""

    summary: EnvironmentSummary
    board: Leaderboard
    versions: list[str]
    columns: list[str]
    """Columns of the table. Each metric has its own, instead of `metrics`."""
    choices: list[str]
    """Columns that a reader can show or hide."""
    pass_k: int | None
    axis: tuple[float, float]
    wanted: BoardFilter
    since: str
    until: str
    asked: str
    """The current filters as a query string."""
    sorts: dict[str, str]
    """Query string that sorts by each column."""
    following: str | None
    """Address of the next page."""
    others: list[tuple[BoardInfo, str]]
    """Other boards of the version, each with its differences from this one."""
    history: Markup
    stratum: int | None
    """The stratum whose rewards have a column."""


def leaderboard(
    visit: Visit,
    owner: str,
    name: str,
    *,
    version: str | None,
    task_set: str | None,
    board: str | None,
    wanted: BoardFilter,
    wanted_columns: Sequence[str] = (),
    stratum: int | None = None,
) -> BoardView:
    """Return a board with the data to draw it."""
    found = environments.find(visit.session, owner, name)
    versions = environments.list_versions(visit.session, found)
    shown = leaderboards.leaderboard(
        visit.session,
        found,
        visit.base_url,
        version=version,
        task_set=task_set,
        board=board,
        wanted=wanted,
        versions=versions,
    )
    of_version = next(one for one in versions if one.version == shown.version)
    metrics = _list_metrics(visit.session, of_version, shown)
    columns = _columns(shown, metrics, wanted_columns)
    chosen = stratum if stratum in shown.strata else None
    if chosen is not None:
        shown = score_stratum(visit.session, visit.storage, shown, chosen)
    since, until = (one.date().isoformat() if one else "" for one in (wanted.since, wanted.until))
    asked = {
        "version": shown.version,
        "board": shown.board,
        "runs": wanted.showing,
        "level": wanted.level,
        "model": wanted.model,
        "since": since,
        "until": until,
        "stratum": None if chosen is None else str(chosen),
    }
    kept = {**asked, "column": list(wanted_columns)}
    following = query_string(**kept, sort=wanted.sort, cursor=shown.next) if shown.next else None
    return BoardView(
        summary=environments.summary_of(found),
        board=shown,
        versions=[one.version for one in versions],
        columns=columns,
        choices=[
            name
            for name in filled_columns(shown, [*BOARD_COLUMNS, *_name_columns(metrics[:_MOST_METRICS])])
            if name not in ("metrics", *REQUIRED_COLUMNS)
        ],
        pass_k=most_attempts(shown.rows),
        axis=common_axis(shown.rows),
        wanted=wanted,
        since=since,
        until=until,
        asked=query_string(**asked, sort=wanted.sort),
        sorts={sort: query_string(**kept, sort=sort) for sort in get_args(BoardSort)},
        following=following,
        others=[(one, set_apart(shown, one)) for one in shown.others],
        history=_draw_history(shown.rows),
        stratum=chosen,
    )


def name_board(board: BoardInfo | Leaderboard) -> str:
    """Return the title that a board's owners chose, or a description of its split, examples and settings."""
    if board.title:
        return board.title
    parts = [
        f"{board.split} split",
        f"{count(board.examples)} examples × {count(board.rollouts_per_example)}",
    ]
    if board.max_tokens:
        parts.append(f"at most {count(board.max_tokens)} tokens per turn")
    if board.arguments:
        parts.append(shorten(canonical_json(board.arguments), 60))
    return ", ".join(parts)


def common_axis(rows: Sequence[LeaderboardRow]) -> tuple[float, float]:
    """Return a range that covers all intervals, and 0 to 1."""
    if not rows:
        return 0.0, 1.0
    low = min(0.0, *(row.reward_low for row in rows))
    return low, max(1.0, *(row.reward_high for row in rows))


def _draw_history(rows: Sequence[LeaderboardRow]) -> Markup:
    """Draw the counting rows of the best level over time, because a lower level's reward is not a record."""
    counting = [row for row in rows if row.best]
    best = min((TIERS.index(row.level) for row in counting), default=0)
    dots = [
        charts.HistoryDot(row.run_id, row.model, row.reward_mean, row.posted_at)
        for row in counting
        if row.level == TIERS[best]
    ]
    return charts.history(tuple(sorted(dots, key=lambda dot: dot.posted_at)))


def _list_metrics(session: Session, version: ListedVersion, board: Leaderboard) -> list[str]:
    """Return the metrics of a board's rows, in the environment's order."""
    known = {name for row in board.rows for name in row.metrics}
    info = verification.find_info(session, version) if len(known) > 1 else None
    declared = [one.name for one in info.reward_functions] if info else []
    return [name for name in dict.fromkeys([*declared, *sorted(known)]) if name in known]


def _columns(board: Leaderboard, metrics: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the columns of a board's table: chosen by the reader, else by the owners, else the default."""
    chosen = [name for name in BOARD_COLUMNS if name in wanted or name in REQUIRED_COLUMNS] if wanted else []
    chosen += [name for name in _name_columns(metrics) if name in wanted]
    columns: list[str] = []
    for name in filled_columns(board, chosen):
        columns += _name_columns(metrics[:_METRIC_COLUMNS]) if name == "metrics" else [name]
    return list(dict.fromkeys(columns))


def _name_columns(metrics: Sequence[str]) -> list[str]:
    return [f"metric:{name}" for name in metrics]
