"""The values between a program that calls a model and the rollout that answers: a call and its reply.

Both are in the chat format. The dialect of the program does not matter here.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from wander.types import Message, Record, SamplingArgs, Usage


class EndpointCall(Record):
    """A model call of a program."""

    call_id: str
    """Id of the call, unique in its box. The reply has the same id."""
    model: str
    """Name of the model that the program asked for."""
    messages: list[Message]
    """Whole conversation of the call."""
    tools: list[dict[str, Any]] | None = None
    """OpenAI function schemas of the tools that the program offers, if any."""
    sampling: SamplingArgs = Field(default_factory=SamplingArgs)
    """Sampling arguments that the program asked for. The rollout decides which of them apply."""


class EndpointReply(Record):
    """The reply to a call: a completion, or the reason why it is refused."""

    call_id: str
    message: Message | None = None
    finish_reason: str = "stop"
    usage: Usage = Field(default_factory=Usage)
    refusal: str | None = None
    """Reason why the call is not answered. The program gets it as an error that it should not retry."""
    overflow: bool = False
    """Whether the refusal means that the conversation is too long for the model. The program may shorten it
    and ask again."""
