"""Scripted players: `expert` tries every way to combine the numbers, `random` combines them at random."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]
Term = tuple[int, str]
"""A value and how it is written."""


def game_in(request: ModelRequest) -> tuple[list[Term], int]:
    """Return the numbers as terms, and the target."""
    *numbers, target = map(int, re.findall(r"\d+", message_text(request.messages[-1])))
    return [(number, str(number)) for number in numbers], target


def combined(first: Term, second: Term) -> Iterator[Term]:
    """Yield the terms that two terms can be combined to: whole numbers from 0."""
    (b, low), (a, high) = sorted((first, second))
    yield a + b, f"({high} + {low})"
    yield a * b, f"({high} * {low})"
    yield a - b, f"({high} - {low})"
    if b and a % b == 0:
        yield a // b, f"({high} / {low})"


def solve(terms: Sequence[Term], target: int) -> str | None:
    """Return an expression with the target's value, or None."""
    for value, text in terms:
        if value == target:
            return text
    for i, j in combinations(range(len(terms)), 2):
        rest = [term for place, term in enumerate(terms) if place not in (i, j)]
        for term in combined(terms[i], terms[j]):
            if (found := solve([*rest, term], target)) is not None:
                return found
    return None


def expert(request: ModelRequest) -> str:
    """Return an expression with the target's value, found by trying every way."""
    return f"<answer>{solve(*game_in(request))}</answer>"


def random(request: ModelRequest) -> str:
    """Return an expression that combines all numbers at random."""
    rng = derived_rng("countdown player", request.seed)
    terms, _ = game_in(request)
    while len(terms) > 1:
        rng.shuffle(terms)
        terms.append(rng.choice(list(combined(terms.pop(), terms.pop()))))
    return f"<answer>{terms[0][1]}</answer>"
