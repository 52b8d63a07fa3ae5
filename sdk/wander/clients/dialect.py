"""The form that an endpoint expects of requests, learned from its responses.

A request is first written for OpenAI's own endpoint. If another endpoint rejects it for one of a few known
reasons, later requests are written differently. The content that the model sees stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wander.clients.base import ModelRequest
from wander.clients.http_errors import complaint
from wander.clients.transport import Answer
from wander.seeding import derived_seed, short_id
from wander.types import Message

REASONING = ("reasoning_content", "reasoning_details", "thinking_blocks", "signature", "reasoning_signature")
"""Fields of an assistant message that contain the model's reasoning."""
_UNSUPPORTED = re.compile(
    r"unsupported|not[ _](be[ _])?(support|permit|allow|enabl|recogni)|un(known|expected|recogni)|extra|only"
    r"|forbidden|cannot|deprecated|must not|remove"
)
_NO_SYSTEM = re.compile(
    r"system (role|message|prompt|instruction)|developer instruction|only user and assistant roles"
    r"|roles must alternate|(role|message).*\bsystem\b"
)
_ID_FORM = re.compile(r"tool.?call.?id.*(a-z|length|alphanumeric|\b9\b|must be)", re.DOTALL)


@dataclass
class Dialect:
    """The differences between an endpoint's requests and OpenAI's, as learned from its responses."""

    send_reasoning: bool | None = None
    """Whether earlier turns are sent back with their reasoning; None sends it if the endpoint produced
    reasoning and accepts it."""
    merge_system: bool = True
    """Whether to merge the system prompt into the first user message if the model lacks a system role."""
    _reasoning_name: str | None = None
    """Name of the field with the endpoint's reasoning as text; None before the first reasoning."""
    _changes: set[str] = field(default_factory=set)

    @property
    def changes(self) -> list[str]:
        """Differences from requests to OpenAI's own endpoint, for the manifest."""
        return sorted(self._changes)

    def payload(self, model: str, request: ModelRequest) -> dict[str, Any]:
        """Return the body of a request."""
        payload: dict[str, Any] = {
            "model": model,
            "messages": self._messages(request.messages),
            **request.sampling.given(),
        }
        if request.tools:
            payload["tools"] = request.tools
        if "seed" in payload:
            payload["seed"] = derived_seed(payload["seed"], request.seed) >> 33
        if _COMPLETION_TOKENS in self._changes and "max_tokens" in payload:
            payload["max_completion_tokens"] = payload.pop("max_tokens")
        return payload

    def merge(self) -> None:
        """Merge the system prompt into the first user message from now on."""
        self._changes.add(MERGED_SYSTEM)

    def note_reasoning_field(self, message: Message, body: bytes) -> None:
        """Remember in which field the endpoint returns reasoning, so that requests use the same field."""
        if self._reasoning_name is None and any(name in message for name in REASONING):
            self._reasoning_name = "reasoning_content" if b'"reasoning_content"' in body else "reasoning"

    def learn(self, answer: Answer, payload: dict[str, Any]) -> bool:
        """Note why a request was refused; True if that is something that can be written differently."""
        if answer.status not in (400, 422, 500):
            return False
        change = self._change_for(complaint(answer).lower(), payload)
        if change is not None:
            self._changes.add(change)
        return change is not None

    def _change_for(self, said: str, payload: dict[str, Any]) -> str | None:
        messages = payload["messages"]
        if "max_tokens" in payload and "max_completion_tokens" in said and _UNSUPPORTED.search(said):
            return _COMPLETION_TOKENS
        if _ID_FORM.search(said) and any("tool_calls" in message for message in messages):
            return _SHORT_IDS
        if (
            self.send_reasoning is None
            and any(name in message for message in messages for name in (*REASONING, "reasoning"))
            and ("reasoning" in said or "thinking" in said or "signature" in said)
            and _UNSUPPORTED.search(said)
        ):
            return _NO_REASONING
        is_system = bool(messages) and messages[0].get("role") in ("system", "developer")
        if self.merge_system and is_system and _NO_SYSTEM.search(said):
            return MERGED_SYSTEM
        return None

    def _messages(self, messages: Sequence[Message]) -> list[Message]:
        sends = self.send_reasoning
        if sends is None:
            sends = self._reasoning_name is not None and _NO_REASONING not in self._changes
        unsent = {"attempts"} if sends else {"attempts", *REASONING}
        written = [
            {name: value for name, value in message.items() if name not in unsent}
            if not unsent.isdisjoint(message)
            else message
            for message in messages
        ]
        if sends and self._reasoning_name == "reasoning":
            written = [_renamed(message, "reasoning_content", "reasoning") for message in written]
        if MERGED_SYSTEM in self._changes:
            written = without_system_role(written)
        return with_unique_ids(written, short=_SHORT_IDS in self._changes)


MERGED_SYSTEM = "the system prompt is part of the first user message"
_COMPLETION_TOKENS = "`max_tokens` is sent as `max_completion_tokens`"
_NO_REASONING = "earlier reasoning is not sent back"
_SHORT_IDS = "ids of tool calls have nine letters and digits"


def unsupported_parameter(answer: Answer, names: Iterable[str]) -> str | None:
    """Return the parameter that a refusal calls unsupported, if it names one of `names`."""
    if answer.status not in (400, 422):
        return None
    said = complaint(answer).lower()
    if not _UNSUPPORTED.search(said):
        return None
    return next((name for name in names if re.search(rf"\b{re.escape(name)}\b", said)), None)


def without_system_role(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each system prompt merged into the start of the next user message."""
    merged: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("role") in ("system", "developer"):
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            waiting.append("\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)))
            continue
        if waiting and message.get("role") == "user":
            content, text = message.get("content"), "\n\n".join(waiting)
            if isinstance(content, list):
                message = {**message, "content": [{"type": "text", "text": f"{text}\n\n"}, *content]}
            else:
                message = {**message, "content": f"{text}\n\n{content or ''}"}
            waiting = []
        merged.append(message)
    return [*merged, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else merged


def _renamed(message: Message, name: str, other: str) -> Message:
    if name not in message:
        return message
    return {(other if key == name else key): value for key, value in message.items()}


def with_unique_ids(messages: Sequence[Message], *, short: bool = False) -> list[Message]:
    """Return the messages with an id for each tool call that is unique in the conversation.

    Tool results follow the ids of their calls. `short` also replaces ids that strict servers (Mistral's)
    reject, because these servers accept only nine letters and digits.
    """
    taken: set[str] = set()
    current: dict[str, list[str]] = {}
    """New ids by old id, for the calls that the next tool results answer."""
    written: list[Message] = []
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message.get("role") == "assistant" and isinstance(calls, list) and calls:
            current, fixed = {}, []
            for number, call in enumerate(calls):
                if not isinstance(call, dict):
                    fixed.append(call)
                    continue
                old = call.get("id")
                new = old if isinstance(old, str) and old and old not in taken else ""
                if not new or (short and not re.fullmatch(r"[A-Za-z0-9]{9}", new)):
                    new = short_id(f"{place}/{number}/{old}", taken)
                taken.add(new)
                current.setdefault(str(old), []).append(new)
                fixed.append(call if new == old else {**call, "id": new})
            written.append(message if fixed == calls else {**message, "tool_calls": fixed})
        elif message.get("role") == "tool" and (news := current.get(str(message.get("tool_call_id")))):
            new = news.pop(0) if len(news) > 1 else news[0]
            written.append(message if new == message["tool_call_id"] else {**message, "tool_call_id": new})
        else:
            written.append(message)
    return written
