"""Scripted players, to compare a model with and to learn from.

Each is a function from a model request to a reply, so `ScriptedClient(careful)` plays it, and so does
`--model scripted:reverse_text.players:careful` on the command line.
"""

from __future__ import annotations

from collections.abc import Callable

from wander.clients import ModelRequest
from wander.errors import ModelError
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]


def teacher(forwards_prob: float = 0.0, seed: int = 0) -> Player:
    """Return a player that leaves each word forwards with that probability.

    Which words it leaves depends only on the request's seed and on `seed`.
    """
    if not 0 <= forwards_prob <= 1:
        raise ModelError(f"`forwards_prob` must be between 0 and 1, got {forwards_prob}")

    def play(request: ModelRequest) -> str:
        rng = derived_rng("reverse_text player", seed, request.seed)
        words = message_text(request.messages[-1])[::-1].split(" ")
        written = [word[::-1] if rng.random() < forwards_prob else word for word in words]
        return f"<reversed_text>{' '.join(written)}</reversed_text>"

    return play


careful = teacher(0.0)
"""Makes no mistake."""

careless = teacher(0.6)
"""Leaves three words of five forwards. A model that imitates it learns this, the more frequent habit."""


def random(request: ModelRequest) -> str:
    """Write the characters of the text in a random order."""
    characters = list(message_text(request.messages[-1]))
    derived_rng("reverse_text player", request.seed).shuffle(characters)
    return f"<reversed_text>{''.join(characters)}</reversed_text>"
