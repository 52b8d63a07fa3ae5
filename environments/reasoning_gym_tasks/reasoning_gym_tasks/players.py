"""Scripted players for the default task: `expert` calculates, and `random` answers any number."""

from __future__ import annotations

import re

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

TERM = re.compile(r"([+-]?)\s*(\d+)")


def expert(request: ModelRequest) -> str:
    """Add and subtract the terms after the colon."""
    problem = message_text(request.messages[-1]).partition(":")[2]
    total = sum(int(number) * (-1 if sign == "-" else 1) for sign, number in TERM.findall(problem))
    return f"<answer>{total}</answer>"


def random(request: ModelRequest) -> str:
    """Return a number of up to four digits."""
    return f"<answer>{derived_rng('reasoning player', request.seed).randint(-9999, 9999)}</answer>"
