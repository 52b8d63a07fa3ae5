"""Scripted players: `expert` takes a shortest way, and `random` steps anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]

STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


def way(lake: Sequence[str]) -> list[str]:
    """Return the steps of a shortest way to G, from P or else from S; empty if there is no way."""
    size = len(lake)
    squares = {(row, column): lake[row][column] for row in range(size) for column in range(size)}
    start = next(at for mark in "PS" for at, square in squares.items() if square == mark)
    reached: dict[tuple[int, int], list[str]] = {start: []}
    waiting = [start]
    for at in waiting:
        for name, (down, right) in STEPS.items():
            there = (at[0] + down, at[1] + right)
            if squares.get(there, "H") != "H" and there not in reached:
                reached[there] = [*reached[at], name]
                waiting.append(there)
    goal = next(at for at, square in squares.items() if square == "G")
    return reached.get(goal, [])


def expert(request: ModelRequest) -> str:
    """Take the first step of a shortest way from where the lake was last shown."""
    lake = message_text(request.messages[-1]).splitlines()
    return f"<action>{way(lake)[0]}</action>"


def random(request: ModelRequest) -> str:
    """Step anywhere."""
    return f"<action>{derived_rng('frozenlake player', request.seed).choice(list(STEPS))}</action>"
