"""Scripted players: `expert` writes the right line of code, and `random` guesses without looking."""

from __future__ import annotations

import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]


def expert(request: ModelRequest) -> str:
    """Search the context with a regular expression."""
    question = message_text(request.messages[-1])
    station = re.findall(r"station (\w+)", question)[0]
    if "keeper" in question:
        code = rf're.search(r"at station {station} is (\w+)", context)[1]'
    elif month := re.search(r"in month (\d+)", question):
        code = rf'len(re.findall(r"-{int(month[1]):02}-\d+ station {station}:", context))'
    else:
        code = rf'sum(map(int, re.findall(r"station {station}: (\d+)", context)))'
    return f"```repl\nimport re\nFINAL({code})\n```"


def random(request: ModelRequest) -> str:
    """Guess a small number."""
    return f"FINAL({derived_rng('long_context player', request.seed).randint(1, 30)})"
