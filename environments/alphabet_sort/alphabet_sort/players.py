"""Scripted players: `expert` sorts the names, and `random` shuffles them."""

from __future__ import annotations

from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]


def by_surname(name: str) -> str:
    """Return the key by which names are sorted; the surnames of one example all differ."""
    return name.split()[-1]


def names_in(request: ModelRequest) -> list[str]:
    """Return all names that the user has given."""
    lines = [
        line
        for each in request.own_messages
        if each["role"] == "user"
        for line in message_text(each).split("\n")
    ]
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]


def written(names: list[str]) -> str:
    """Return names, written as an answer."""
    return "\n".join(["<sorted>", *names, "</sorted>"])


def expert(request: ModelRequest) -> str:
    """Return the names in their order."""
    return written(sorted(names_in(request), key=by_surname))


def random(request: ModelRequest) -> str:
    """Return all names in a random order."""
    names = names_in(request)
    derived_rng("alphabet_sort player", request.seed).shuffle(names)
    return written(names)
