"""The record of model calls that the code in a rollout made, beside the rollout's own turns.

They stand in the rollout's `info["rlm"]["sub_calls"]`. A client sees each as a rollout of its own, with the
id `<rollout id>/sub:<path>`; so a `ReplayClient` answers them from the record like any other. What a client
keeps of one player's part of a rollout is called `<rollout id>/as:<player>` (`ModelRequest.conversation`).
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from wander.errors import RunError
from wander.types import Failure, Message, Record, Rollout, Turn, Usage, first_fault

_PART = re.compile(r"/(?:sub:\d+(?:\.\d+)*|as:[\w-]+)\Z")


class SubCall(Record):
    """One call of the model by code: a question and its answer, or a whole conversation with a REPL."""

    path: str
    """Which call: `3` is the third of the rollout, `3.1` the first that the third made itself."""
    depth: int
    """1 for calls of the rollout's own code, 2 for theirs."""
    turn: int
    """The rollout's turn whose code asked."""
    prompt: list[Message]
    completion: list[Message] = Field(default_factory=list)
    turns: list[Turn] = Field(default_factory=list)
    answer: str | None = None
    """What the code was given back; None when the call failed."""
    failure: Failure | None = None

    def usage(self) -> Usage:
        """Return the tokens that the call took."""
        return sum((turn.usage for turn in self.turns), Usage())


_SUB_CALLS = TypeAdapter(list[SubCall], config=ConfigDict(defer_build=True))
"""Built only where some rollout has sub-calls: it takes milliseconds."""


def sub_call_id(rollout_id: str, path: str) -> str:
    """Return the rollout id under which a client sees a sub-call."""
    return f"{rollout_id}/sub:{path}"


def read_sub_calls(rollout: Rollout) -> list[SubCall]:
    """Return the sub-calls of a stored rollout, in the order of their paths; raises `RunError`."""
    record: Any = rollout.info.get("rlm")
    calls: Any = record.get("sub_calls", []) if isinstance(record, dict) else []
    if calls == []:
        return []
    try:
        return _SUB_CALLS.validate_python(calls)
    except ValidationError as error:
        raise RunError(
            f"the sub-calls of rollout `{rollout.example_id}/{rollout.index}` cannot be read: "
            f"{': '.join(first_fault(error))}"
        ) from error


def conversation_id(rollout_id: str, player: str | None) -> str:
    """Return under which id a client keeps the conversation of a rollout, or of one player in it."""
    return rollout_id if player is None else f"{rollout_id}/as:{player}"


def main_rollout_id(rollout_id: str) -> str:
    """Return the id of the rollout to which a sub-call or a player's part belongs; any other id as it is."""
    return _PART.sub("", rollout_id)


def sub_rollouts(rollout: Rollout) -> dict[str, Rollout]:
    """Return each sub-call as a rollout that a client can replay, by its path."""
    found = {}
    for call in read_sub_calls(rollout):
        overflowed = call.failure is not None and call.failure.type == "ContextOverflow"
        found[call.path] = Rollout.model_construct(
            example_id=rollout.example_id,
            index=rollout.index,
            seed=rollout.seed,
            prompt=call.prompt,
            completion=call.completion,
            turns=call.turns,
            failure=call.failure,
            stop_reason="context_overflow" if overflowed else None,
        )
    return found
