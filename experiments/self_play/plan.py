"""Self-play: results of a policy that trained only against itself, against opponents that it never met."""

from __future__ import annotations

from typing import Any

from plan import Plan, Seeds, percent, share_table

HEADER = """\
| policy | games vs {opponent} | won % | drawn % | lost % |
|---|---|---|---|---|
"""
ENDS = ("won", "drawn", "lost")
OPPONENTS = {
    name: {"min_random_move_prob": careless, "max_random_move_prob": careless, "random_moves": moves}
    for name, careless, moves in (
        ("random", 1.0, 0),
        ("careless", 0.5, 0),
        ("optimal", 0.0, 0),
        ("optimal-late", 0.0, 3),
    )
}
"""Opponents by name: how often they make a random move, and the maximum number of random moves per player
at the start of a game. None of them plays in training."""


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return how the games ended, in percent, with their 95% intervals."""
    return {name: percent(summary, name) for name in ENDS}


def table(seeds: Seeds) -> str:
    """Return a table for each opponent."""
    return "\n".join(
        share_table(seeds, header=HEADER.format(opponent=name), cell=name, shares=ENDS) for name in OPPONENTS
    )


PLAN = Plan(
    environment="tictactoe",
    teacher="scripted:tictactoe.players:random",
    cells=OPPONENTS,
    max_tokens=20,
    concurrency=256,
    cell=cell,
    table=table,
    curves=("reward",),
)
