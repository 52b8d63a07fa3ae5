"""Calculator: questions with the numbers of the training, and with numbers that training never used.

Numbers up to 30 make few questions, so training meets nearly all that the first cell asks. Each question of
the second has a number that no question of training has.
"""

from __future__ import annotations

from typing import Any

from plan import Plan, Seeds, percent, share_table

HEADER = """\
| policy | {questions} | right % | called a tool % |
|---|---|---|---|
"""
CELLS = {
    "known": {"largest": 30, "numbers": "known"},
    "new": {"largest": 30, "numbers": "new"},
}


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of right answers and of rollouts with a call, in percent, with their intervals."""
    return {"right": percent(summary, "right"), "called": percent(summary, "called")}


def table(seeds: Seeds) -> str:
    """Return a table for each cell."""
    return "\n".join(
        share_table(
            seeds,
            header=HEADER.format(questions=f"questions with {name} numbers"),
            cell=name,
            shares=("right", "called"),
        )
        for name in CELLS
    )


PLAN = Plan(
    environment="calculator",
    teacher="scripted:calculator.players:teacher?wrong_prob=0.6",
    cells=CELLS,
    max_tokens=32,
    concurrency=128,
    cell=cell,
    table=table,
    curves=("reward", "rewards/called"),
)
