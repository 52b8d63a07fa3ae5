"""The model calls that code inside a rollout makes (`wander.types.SubCall`), as a client sees them.

Each of them looks like a separate rollout with the id `<rollout id>/sub:<path>`, so a `ReplayClient` answers
it like any other rollout.
A player's part of a rollout has the id `<rollout id>/as:<player>` (`ModelRequest.conversation`).
"""

from __future__ import annotations

import re

from wander.types import Rollout
from wander.wire.run_record import read_sub_calls

_PART = re.compile(r"/(?:sub:\d+(?:\.\d+)*|as:[\w-]+)\Z")


def sub_call_id(rollout_id: str, path: str) -> str:
    """Return the rollout id that clients use for a sub-call."""
    return f"{rollout_id}/sub:{path}"


def with_sub_usage(rollout: Rollout) -> Rollout:
    """Return a rollout whose usage includes its sub-calls."""
    usage = sum((turn.usage for call in read_sub_calls(rollout) for turn in call.turns), rollout.usage)
    return rollout.model_copy(update={"usage": usage})


def conversation_id(rollout_id: str, player: str | None) -> str:
    """Return the id that a client uses for the conversation of a rollout, or of a player in it."""
    return rollout_id if player is None else f"{rollout_id}/as:{player}"


def main_rollout_id(rollout_id: str) -> str:
    """Return the id of the rollout that a sub-call or a player's part belongs to; other ids unchanged."""
    return _PART.sub("", rollout_id)


def sub_rollouts(rollout: Rollout) -> dict[str, Rollout]:
    """Return the sub-calls of a rollout as rollouts that a client can replay, by path."""
    rollouts = {}
    for call in read_sub_calls(rollout):
        overflowed = call.failure is not None and call.failure.type == "ContextOverflow"
        rollouts[call.path] = Rollout.model_construct(
            example_id=rollout.example_id,
            index=rollout.index,
            seed=rollout.seed,
            prompt=call.prompt,
            completion=call.completion,
            turns=call.turns,
            failure=call.failure,
            stop_reason="context_overflow" if overflowed else None,
        )
    return rollouts
