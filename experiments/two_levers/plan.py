"""Two levers: how close a policy comes to perfect play with six pulls, on new pairs of levers."""

from __future__ import annotations

from functools import partial
from typing import Any

from plan import Plan, percent, share_table

HEADER = """\
| policy | bandits | of perfect play % | pulls of the better lever % | tried both % |
|---|---|---|---|---|
"""
METRICS = ("of_optimal", "better", "tried_both")


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the means in percent, with their intervals."""
    return {name: percent(summary, name) for name in METRICS}


PLAN = Plan(
    environment="two_levers",
    teacher="scripted:two_levers.players:teacher?paid=0.92&unpaid=0.7",
    cells={"levers": {"pulls": 6}},
    max_tokens=12,
    concurrency=128,
    cell=cell,
    table=partial(share_table, header=HEADER, cell="levers", shares=METRICS),
    curves=("reward", "rewards/tried_both"),
)
