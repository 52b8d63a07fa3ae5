"""Scripted players: `expert` guesses a code that fits all answers, and `random` guesses any code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import product

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]

ANSWER = re.compile(r"^(\d+): (\d+) in place, (\d+) elsewhere", re.MULTILINE)
RULES = re.compile(r"code of (\d+) digits from 1 to (\d+)")


def compared(guess: str, code: str) -> tuple[int, int]:
    """Return the number of digits in place, and the number of further digits that both have."""
    in_place = sum(a == b for a, b in zip(guess, code, strict=True))
    return in_place, (Counter(guess) & Counter(code)).total() - in_place


def codes(request: ModelRequest) -> list[str]:
    """Return all codes of the game that a system prompt explains."""
    found = RULES.search(message_text(request.messages[0]))
    assert found is not None
    return ["".join(code) for code in product("123456789"[: int(found[2])], repeat=int(found[1]))]


def expert(request: ModelRequest) -> str:
    """Guess one of the codes that fit every answer."""
    said = "\n".join(message_text(each) for each in request.own_messages if each["role"] == "user")
    answers = [(guess, (int(a), int(b))) for guess, a, b in ANSWER.findall(said)]
    fitting = [
        code for code in codes(request) if all(compared(guess, code) == answer for guess, answer in answers)
    ]
    return f"<guess>{derived_rng('mastermind player', request.seed).choice(fitting)}</guess>"


def random(request: ModelRequest) -> str:
    """Guess any code."""
    return f"<guess>{derived_rng('mastermind player', request.seed).choice(codes(request))}</guess>"
