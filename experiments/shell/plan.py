"""Shell: a tiny policy runs commands in boxes, and is scored by the files that it leaves."""

from __future__ import annotations

from typing import Any

from plan import Plan, Seeds, percent, share_table

HEADER = """\
| policy | questions | right % | ran a command % |
|---|---|---|---|
"""
CELLS: dict[str, dict[str, Any]] = {"all": {}}


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of right answers and of rollouts with a command, in percent, with their intervals."""
    return {"right": percent(summary, "right"), "called": percent(summary, "called")}


def table(seeds: Seeds) -> str:
    """Return the table of all policies."""
    return share_table(seeds, header=HEADER, cell="all", shares=("right", "called"))


PLAN = Plan(
    environment="number-files",
    teacher="scripted:number_files.players:teacher?wrong_prob=0.6",
    cells=CELLS,
    max_tokens=48,
    concurrency=8,
    cell=cell,
    table=table,
    curves=("reward", "rewards/called"),
)
