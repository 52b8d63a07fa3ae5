"""Reversed text: held-out texts of the lengths that were trained on."""

from __future__ import annotations

from functools import partial
from typing import Any

from plan import Plan, percent, share_table

HEADER = """\
| policy | texts | reward % | exact % |
|---|---|---|---|
"""


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the mean reward and the share of exact answers in percent, with their 95% intervals."""
    reward = {"mean": "reward_mean", "low": "reward_low", "high": "reward_high"}
    return {
        "reward": {name: 100 * summary[field] for name, field in reward.items()},
        "exact": percent(summary, "exact"),
    }


PLAN = Plan(
    environment="reverse_text",
    teacher="scripted:reverse_text.players:teacher?forwards_prob=0.6",
    cells={"texts": {"min_words": 2, "max_words": 3}},
    max_tokens=32,
    concurrency=256,
    cell=cell,
    table=partial(share_table, header=HEADER, cell="texts", shares=("reward", "exact")),
    curves=("rewards/similarity", "rewards/exact"),
)
