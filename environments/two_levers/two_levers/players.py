"""Scripted players, to compare a model with and to learn from.

`--model scripted:two_levers.players:optimal` plays one on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.errors import ModelError
from wander.parsers import message_text
from wander.seeding import derived_rng

from two_levers.bandit import GAPS, LEVERS, solve

Player = Callable[[ModelRequest], str]


def pull(lever: str) -> str:
    """Return the text that pulls a lever."""
    return f"<pull>{lever}</pull>"


def seen(request: ModelRequest) -> list[tuple[str, bool]]:
    """Return the levers pulled so far, and whether each paid."""
    said = [message_text(message) for message in request.own_messages if message["role"] == "user"]
    found = [re.fullmatch(r"(left|right) pays ([01])", text) for text in said]
    return [(match[1], match[2] == "1") for match in found if match]


def teacher(paid: float = 0.85, unpaid: float = 0.55, seed: int = 0) -> Player:
    """Return a player that pulls its last lever again with these probabilities, as that paid or did not.

    It remembers one pull. Its choices depend only on the request's seed and on `seed`.
    """
    if not (0 <= paid <= 1 and 0 <= unpaid <= 1):
        raise ModelError(f"`paid` and `unpaid` must be between 0 and 1, got {paid} and {unpaid}")

    def play(request: ModelRequest) -> str:
        rng = derived_rng("two_levers player", seed, request.seed)
        shown = seen(request)
        if not shown:
            return pull(rng.choice(LEVERS))
        last, did_pay = shown[-1]
        again = rng.random() < (paid if did_pay else unpaid)
        return pull(next(lever for lever in LEVERS if (lever == last) == again))

    return play


def planner(pulls: int = 10, gaps: tuple[float, ...] = GAPS) -> Player:
    """Return the player that no other outdoes on average: it plans every pull to the end."""
    bandit = solve(pulls, gaps)

    def play(request: ModelRequest) -> str:
        shown = seen(request)
        left_paid, left_not, right_paid, right_not = (
            shown.count((lever, paid)) for lever in LEVERS for paid in (True, False)
        )
        left, right = bandit.values((left_paid, left_not, right_paid, right_not))
        return pull("left" if left >= right else "right")

    return play


optimal = planner()
"""Plays the default arguments perfectly."""

win_stay = teacher(1.0, 0.0)
"""Pulls again what just paid, and otherwise the other lever."""

random = teacher(0.5, 0.5)
"""Pulls a random lever."""

repeating = teacher(1.0, 1.0)
"""Pulls one lever again and again."""
