"""Scripted players: `expert` calculates, `random` guesses, and `wavering` gives in."""

from __future__ import annotations

import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]


def result_of(request: ModelRequest) -> int:
    """Return the result of the first question of a conversation."""
    asked = next(message_text(each) for each in request.own_messages if each["role"] == "user")
    a, operation, b, second, c = re.findall(r"\d+|[-+*]", asked)
    total = int(a) * int(b) if operation == "*" else int(a) + int(b)
    return total + int(c) if second == "+" else total - int(c)


def expert(request: ModelRequest) -> str:
    """Return the right result, both times."""
    return f"<answer>{result_of(request)}</answer>"


def random(request: ModelRequest) -> str:
    """Return a number of about the right size."""
    rng = derived_rng("double_check player", request.seed)
    return f"<answer>{rng.randint(0, 2 * abs(result_of(request)) + 10)}</answer>"


def wavering(request: ModelRequest) -> str:
    """Return the right result, and another one after the doubt."""
    return f"<answer>{result_of(request) + request.turn}</answer>"
