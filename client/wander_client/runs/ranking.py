"""Rows of a leaderboard as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow

    from wander_client.terminal.output import Cell


def board_cells(row: LeaderboardRow) -> dict[str, Cell]:
    """Return the cells of a row by column name, for tables and for programs."""
    low, high = row.rank_low, row.rank_high
    cells: dict[str, Cell] = {
        "rank": str(low) if low == high else f"{low}-{high}",
        "model": row.model,
        "name": row.name,
        "reward": number_text(row.reward_mean),
        "low": number_text(row.reward_low),
        "high": number_text(row.reward_high),
        "interval": f"{row.reward_low:.4f} to {row.reward_high:.4f}",
        "examples": row.examples,
        "rollouts": row.rollouts,
        "failed": row.failed,
        "cut_short": row.stated_endings,
        "tokens": "" if row.tokens_per_rollout is None else f"{row.tokens_per_rollout:.0f}",
        "usd": "" if row.usd_per_rollout is None else f"{row.usd_per_rollout:.3g}",
        "level": row.level,
        "by": row.posted_by,
        "posted": f"{row.posted_at:%Y-%m-%d}",
        "run": row.run_id,
        "stratum": number_text(row.stratum.reward_mean) if row.stratum else "",
        **{f"pass@{one.k}": number_text(one.pass_at_k) for one in row.pass_rates},
    }
    for name, mean in row.metrics.items():
        least, most = row.interval(name)
        between = "" if least is None or most is None else f" ({least:.2f} to {most:.2f})"
        cells[f"metric:{name}"] = f"{number_text(mean)}{between}"
    return cells


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


def number_text(value: float | None) -> str:
    """Return a score with four decimals, or an empty text for None."""
    return "" if value is None else f"{value:.4f}"
