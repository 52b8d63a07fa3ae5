"""Calculator: held-out questions with numbers of the sizes that were trained on."""

from __future__ import annotations

from typing import Any

from plan import Plan, Seeds, by_stage, percent

HEADER = """\
| policy | questions | right % | called a tool % |
|---|---|---|---|
"""


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of right answers and of rollouts with a call, in percent, with their intervals."""
    return {"right": percent(summary, "right"), "called": percent(summary, "called")}


def table(seeds: Seeds) -> str:
    """Return the table: a row for each stage of each seed."""
    rows = [
        f"| {stage}, {seed} | {one['games']} | {interval(one['right'])} | {interval(one['called'])} |\n"
        for stage, found in by_stage(seeds).items()
        for seed, cells in found.items()
        if (one := cells["questions"])
    ]
    return HEADER + "".join(rows)


def interval(share: dict[str, float]) -> str:
    """Return a share with its interval."""
    return f"{share['mean']:.1f} ({share['low']:.1f} to {share['high']:.1f})"


PLAN = Plan(
    environment="calculator",
    teacher="scripted:calculator.players:teacher?wrong_prob=0.6",
    cells={"questions": {"largest": 30}},
    max_tokens=32,
    concurrency=128,
    cell=cell,
    table=table,
    curves=("reward", "rewards/called"),
)
