"""Leaderboards as text: the protocol, and the cells of rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow

    from wander_client.terminal.output import Cell


def cell_of(row: LeaderboardRow, column: str) -> Cell:
    """Return the cell of a row in a column of `BOARD_COLUMNS`, or in `metric:NAME` or `pass:K`."""
    from wander.wire.boards import BOARD_COLUMNS, number_text, pass_text

    kind, _, name = column.partition(":")
    if kind == "metric":
        low, high = row.interval(name)
        between = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
        return f"{number_text(row.metrics.get(name))}{between}"
    if name:
        return pass_text(row.pass_rates, int(name))
    if column == "name":
        return row.name
    if column == "stratum":
        return number_text(row.stratum.reward_mean if row.stratum else None)
    if column == "cut short":
        return row.stated_endings
    return BOARD_COLUMNS[column].text(row)


def title_of(board: Leaderboard, column: str) -> str:
    """Return the heading of a column."""
    from wander.types import start_lower
    from wander.wire.boards import BOARD_COLUMNS, most_attempts

    kind, _, name = column.partition(":")
    if kind == "metric":
        return name
    k = name or most_attempts(board.rows)
    return start_lower(BOARD_COLUMNS[kind].title.format(k=k)) if kind in BOARD_COLUMNS else column


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
