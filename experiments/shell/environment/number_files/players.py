"""A scripted player to learn from."""

from __future__ import annotations

from collections.abc import Callable

from wander.clients import ModelRequest
from wander.envs import run_commands
from wander.errors import ModelError
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message

from number_files import COMMANDS


def teacher(wrong_prob: float = 0.0, seed: int = 0) -> Callable[[ModelRequest], Message | str]:
    """Return a player that uses the command for the first number with probability `wrong_prob`."""
    if not 0 <= wrong_prob <= 1:
        raise ModelError(f"`wrong_prob` must be between 0 and 1, got {wrong_prob}")

    def play(request: ModelRequest) -> Message | str:
        if request.messages[-1]["role"] == "tool":
            return "done"
        (word,) = (word for word in COMMANDS if f" {word} " in message_text(request.messages[-1]))
        rng = derived_rng("number_files player", seed, request.seed)
        wrong = rng.random() < wrong_prob
        return run_commands(COMMANDS["first" if wrong else word])[0]

    return play
