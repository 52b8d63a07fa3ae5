"""A scripted player to learn from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.errors import ModelError
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message


def teacher(wrong_prob: float = 0.0, seed: int = 0) -> Callable[[ModelRequest], Message]:
    """Return a player that calls `add` for a product with probability `wrong_prob`."""
    if not 0 <= wrong_prob <= 1:
        raise ModelError(f"`wrong_prob` must be between 0 and 1, got {wrong_prob}")

    def play(request: ModelRequest) -> Message:
        last = request.messages[-1]
        if last["role"] == "tool":
            return {"role": "assistant", "content": f"<answer>{message_text(last)}</answer>"}
        a, b = re.findall(r"\d+", message_text(last))
        rng = derived_rng("calculator player", seed, request.seed)
        times = "times" in message_text(last) and rng.random() >= wrong_prob
        arguments = json.dumps({"a": int(a), "b": int(b)})
        function = {"name": "multiply" if times else "add", "arguments": arguments}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"call_{request.turn}", "type": "function", "function": function}],
        }

    return play
