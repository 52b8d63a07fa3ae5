"""Reversed text: held-out texts of the lengths that were trained on."""

from __future__ import annotations

from typing import Any

from plan import Plan, Seeds, by_stage, percent

HEADER = """\
| policy | texts | reward % | exact % |
|---|---|---|---|
"""


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the mean reward and the share of exact answers in percent, with their 95 % intervals."""
    reward = {"mean": "reward_mean", "low": "reward_low", "high": "reward_high"}
    return {
        "reward": {name: 100 * summary[field] for name, field in reward.items()},
        "exact": percent(summary, "exact"),
    }


def table(seeds: Seeds) -> str:
    """Return the table: a row for each stage of each seed."""
    rows = [
        f"| {stage}, {seed} | {texts['games']} | {interval(texts['reward'])} | {interval(texts['exact'])} |\n"
        for stage, found in by_stage(seeds).items()
        for seed, cells in found.items()
        if (texts := cells["texts"])
    ]
    return HEADER + "".join(rows)


def interval(share: dict[str, float]) -> str:
    """Return a share with its interval."""
    return f"{share['mean']:.1f} ({share['low']:.1f} to {share['high']:.1f})"


PLAN = Plan(
    environment="reverse_text",
    teacher="scripted:reverse_text.players:teacher?forwards_prob=0.6",
    cells={"texts": {"min_words": 2, "max_words": 3}},
    max_tokens=32,
    concurrency=256,
    cell=cell,
    table=table,
    curves=("rewards/similarity", "rewards/exact"),
)
