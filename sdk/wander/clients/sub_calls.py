"""The record of model calls that code inside a rollout made, in addition to the rollout's own turns.

The calls of code in a REPL are stored in the rollout's `info["rlm"]["sub_calls"]`, and further conversations
of an agent program in `info["agent"]["sub_calls"]`. To a client, each of them looks like a
separate rollout with the id `<rollout id>/sub:<path>`, so a `ReplayClient` answers it like any other rollout.
A player's part of a rollout has the id `<rollout id>/as:<player>` (`ModelRequest.conversation`).
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from wander.errors import RunError
from wander.types import Failure, Message, Record, Rollout, Turn, Usage, first_fault

_PART = re.compile(r"/(?:sub:\d+(?:\.\d+)*|as:[\w-]+)\Z")


AGENT = "agent"
"""Key of a rollout's `info` with the record of an agent program."""


class SubCall(Record):
    """A model call by code: a question with its answer, or a whole conversation with a REPL."""

    path: str
    """Position of the call: `3` is the rollout's third call, `3.1` the first call that the third call
    made."""
    depth: int
    """Depth of the call: 1 for calls by the rollout's own code, 2 for calls that those calls make."""
    turn: int
    """Turn of the rollout whose code made the call."""
    prompt: list[Message]
    completion: list[Message] = Field(default_factory=list)
    turns: list[Turn] = Field(default_factory=list)
    answer: str | None = None
    """Text that the code received; None if the call failed."""
    failure: Failure | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda tools: tools is None)
    """Function schemas that an agent program offered in the last call of the conversation."""

    def usage(self) -> Usage:
        """Return the tokens that the call used."""
        return sum((turn.usage for turn in self.turns), Usage())


_SUB_CALLS = TypeAdapter(list[SubCall], config=ConfigDict(defer_build=True))
"""Validator of sub-calls, built when first used, because building takes milliseconds."""


def sub_call_id(rollout_id: str, path: str) -> str:
    """Return the rollout id that clients use for a sub-call."""
    return f"{rollout_id}/sub:{path}"


def read_sub_calls(rollout: Rollout) -> list[SubCall]:
    """Return the sub-calls of a stored rollout, ordered by path; raises `RunError` if they are malformed."""
    records = [rollout.info.get(name) for name in ("rlm", AGENT)]
    lists: list[Any] = [record.get("sub_calls", []) for record in records if isinstance(record, dict)]
    calls: Any = next((calls for calls in lists if calls != []), [])
    if calls == []:
        return []
    try:
        return _SUB_CALLS.validate_python(calls)
    except ValidationError as error:
        raise RunError(
            f"the sub-calls of rollout `{rollout.example_id}/{rollout.index}` cannot be read: "
            f"{': '.join(first_fault(error))}"
        ) from error


def with_sub_usage(rollout: Rollout) -> Rollout:
    """Return a rollout whose usage includes its sub-calls."""
    usage = sum((call.usage() for call in read_sub_calls(rollout)), rollout.usage)
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
