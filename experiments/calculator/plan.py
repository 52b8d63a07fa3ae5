"""Calculator: questions with the numbers that were trained on.

Numbers up to 30 make 1,682 questions, so training meets nearly all that are asked here: what is measured is
which tool the policy has learnt to call, not what it does with numbers that it never saw.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from plan import Plan, percent, share_table

HEADER = """\
| policy | questions | right % | called a tool % |
|---|---|---|---|
"""


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of right answers and of rollouts with a call, in percent, with their intervals."""
    return {"right": percent(summary, "right"), "called": percent(summary, "called")}


PLAN = Plan(
    environment="calculator",
    teacher="scripted:calculator.players:teacher?wrong_prob=0.6",
    cells={"questions": {"largest": 30}},
    max_tokens=32,
    concurrency=128,
    cell=cell,
    table=partial(share_table, header=HEADER, cell="questions", shares=("right", "called")),
    curves=("reward", "rewards/called"),
)
