"""Leaderboards as text: the protocol, and the cells of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow

    from wander_client.terminal.output import Cell

CELLS: dict[str, Callable[[LeaderboardRow], Cell]] = {
    "rank": lambda row: "-".join(map(str, dict.fromkeys((row.rank_low, row.rank_high)))),
    "model": lambda row: row.model,
    "name": lambda row: row.name,
    "reward": lambda row: _number_text(row.reward_mean),
    "interval": lambda row: f"{row.reward_low:.4f} to {row.reward_high:.4f}",
    "stratum": lambda row: _number_text(row.stratum.reward_mean if row.stratum else None),
    "cut short": lambda row: row.stated_endings,
    "level": lambda row: row.level,
    "by": lambda row: row.posted_by,
    "posted": lambda row: f"{row.posted_at:%Y-%m-%d}",
    "pass": lambda row: _pass_text(row, max((rate.k for rate in row.pass_rates), default=0)),
    "tokens": lambda row: "" if row.tokens_per_rollout is None else f"{row.tokens_per_rollout:.0f}",
    "cost": lambda row: "" if row.usd_per_rollout is None else f"{row.usd_per_rollout:.3g}",
    "examples": lambda row: row.examples,
}
"""Cells of a row by column: of `BOARD_COLUMNS` without `metrics`, and of the command's own columns."""


def cell_of(row: LeaderboardRow, column: str) -> Cell:
    """Return the cell of a row in a column of `CELLS`, or in `metric:NAME` or `pass:K`."""
    kind, _, name = column.partition(":")
    if not name:
        return CELLS[column](row)
    if kind == "pass":
        return _pass_text(row, int(name))
    low, high = row.interval(name)
    between = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{_number_text(row.metrics.get(name))}{between}"


def title_of(board: Leaderboard, column: str) -> str:
    """Return the heading of a column."""
    from wander.wire.board_columns import BOARD_COLUMNS
    from wander.wire.boards import most_attempts

    kind, _, name = column.partition(":")
    if kind == "metric":
        return name
    k = name or most_attempts(board.rows)
    return BOARD_COLUMNS[kind].title.format(k=k).lower() if kind in BOARD_COLUMNS else column


def columns_of(board: Leaderboard) -> list[str]:
    """Return the columns that a board shows, with `metrics` as one column for each metric."""
    from wander.wire.boards import filled_columns

    columns: list[str] = []
    for column in filled_columns(board):
        columns += metric_columns(board) if column == "metrics" else [column]
    return list(dict.fromkeys(columns))


def metric_columns(board: Leaderboard) -> list[str]:
    """Return the columns of all metrics."""
    return list(dict.fromkeys(f"metric:{name}" for row in board.rows for name in row.metrics))


def protocol_text(board: Leaderboard | BoardInfo) -> str:
    """Return a line with the settings that all rows of a board share."""
    rollouts = board.rollouts_per_example
    text = (
        f"{board.split} split, {board.examples} examples x {rollouts} rollout{'' if rollouts == 1 else 's'}"
    )
    if board.arguments:
        text += f", {json.dumps(board.arguments, ensure_ascii=False)}"
    if board.max_tokens is not None:
        text += f", at most {board.max_tokens} tokens per turn"
    text += "".join(f", {player}: {name}" for player, name in board.players.items())
    return f"{text}, task set {(board.task_set_sha256 or '')[:12]}"


def _number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _pass_text(row: LeaderboardRow, k: int) -> str:
    rate = next((rate for rate in row.pass_rates if rate.k == k), None)
    return "" if rate is None else f"{rate.pass_at_k:.2f} / {rate.pass_hat_k:.2f}"
