"""The columns of leaderboards, from which pages, commands, notebooks and exports take theirs.

This module imports no pydantic, so that the help of commands can list the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wander.wire.run_record import PassRate


@dataclass(frozen=True)
class BoardColumn:
    """A column that a leaderboard can show."""

    title: str
    """Heading; `{k}` is the largest number of attempts in the rows' pass rates."""
    fields: Mapping[str, str]
    """Fields of a row that fill it, with their names in exports; empty if the export splits the field."""
    text: Callable[[Any], str | int]
    """The cell of a `LeaderboardRow` as text."""
    hint: str = ""
    """Explanation of the heading."""
    term: str = ""
    """Entry of the glossary that explains the column."""
    usual: bool = True
    """Whether a board shows the column if its owners chose no columns."""
    required: bool = False
    """Whether owners cannot remove the column."""
    stated: bool = False
    """Whether only the submitter states the values."""


def number_text(value: float | None, digits: str = ".4f") -> str:
    """Return a number as text, or an empty text for None."""
    return "" if value is None else format(value, digits)


def pass_text(rates: list[PassRate], k: int | None = None) -> str:
    """Return pass@k and pass^k, by default for the largest k, or an empty text."""
    k = k or max((rate.k for rate in rates), default=0)
    return "".join(f"{rate.pass_at_k:.2f} / {rate.pass_hat_k:.2f}" for rate in rates if rate.k == k)


BOARD_COLUMNS = {
    "rank": BoardColumn(
        "Rank",
        {"rank_low": "rank_low", "rank_high": "rank_high"},
        lambda row: "-".join(map(str, dict.fromkeys((row.rank_low, row.rank_high)))),
        hint="the best and the worst rank that the intervals allow: rows that are clearly better come "
        "before, rows that are clearly worse come after",
        term="rank",
        required=True,
    ),
    "model": BoardColumn(
        "Model",
        {"model": "model", "name": "name"},
        lambda row: row.model,
        hint="self-reported by the submitter",
        term="stated",
        required=True,
        stated=True,
    ),
    "reward": BoardColumn(
        "Mean reward",
        {"reward_mean": "reward_mean"},
        lambda row: number_text(row.reward_mean),
        term="mean",
        required=True,
    ),
    "interval": BoardColumn(
        "95% interval",
        {"reward_low": "reward_low_95", "reward_high": "reward_high_95"},
        lambda row: f"{row.reward_low:.4f} to {row.reward_high:.4f}",
        term="interval",
        required=True,
    ),
    "level": BoardColumn(
        "Level",
        {"level": "level"},
        lambda row: row.level,
        hint="what the hub proved; select a level to see what it means",
        term="level",
        required=True,
    ),
    "by": BoardColumn("By", {"posted_by": "posted_by"}, lambda row: row.posted_by),
    "posted": BoardColumn("Posted", {"posted_at": "posted_at_utc"}, lambda row: f"{row.posted_at:%Y-%m-%d}"),
    "pass": BoardColumn(
        "pass@{k} / ^{k}",
        {"pass_rates": ""},
        lambda row: pass_text(row.pass_rates),
        hint="chance that at least one of {k} rollouts passes / that all {k} pass",
        term="pass",
    ),
    "tokens": BoardColumn(
        "Tokens",
        {"tokens_per_rollout": "tokens_per_rollout"},
        lambda row: number_text(row.tokens_per_rollout, ".0f"),
        hint="prompt and completion tokens per rollout",
        term="stated",
        stated=True,
    ),
    "cost": BoardColumn(
        "USD",
        {"usd_per_rollout": "usd_per_rollout"},
        lambda row: number_text(row.usd_per_rollout, ".3g"),
        hint="per rollout, from the tokens and prices that the submitter reported",
        term="stated",
        stated=True,
    ),
    "examples": BoardColumn(
        "Examples",
        {"examples": "examples", "rollouts_per_example": "rollouts_per_example"},
        lambda row: row.examples,
        usual=False,
    ),
    "metrics": BoardColumn(
        "Metrics", {"metrics": ""}, lambda row: ", ".join(row.metrics), term="metric", usual=False
    ),
}
"""Columns by name, in the default order. `metrics` means every metric, and `metric:NAME` a single metric."""
USUAL_COLUMNS = [name for name, column in BOARD_COLUMNS.items() if column.usual]
REQUIRED_COLUMNS = [name for name, column in BOARD_COLUMNS.items() if column.required]
