"""Reads the tool calls of an assistant message. Nothing that a model writes can break a rollout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wander.envs.tool.schema import TOOL_NAME, InvalidArguments, parse_arguments
from wander.seeding import short_id
from wander.types import Message


@dataclass(frozen=True)
class ToolCall:
    """A call as it is recorded in the conversation, with its arguments or the problem with them."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: InvalidArguments | None = None

    def checked_arguments(self) -> dict[str, Any]:
        """Return the arguments, or raise the problem with them."""
        if self.problem is not None:
            raise self.problem
        return self.arguments


def tool_calls(message: Message) -> list[Any]:
    """Return the calls of a message as the endpoint sent them, or no calls if the field is not a list."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def read_calls(message: Message, turn: int, earlier: Iterable[Message] = ()) -> list[ToolCall]:
    """Read the calls of a message. Each gets an id that no other call of the conversation has.

    `earlier` are the messages before it. Generated ids have nine letters and digits, as strict servers
    (Mistral's) require.
    """
    calls: list[ToolCall] = []
    taken = {
        str(call.get("id")) for before in earlier for call in tool_calls(before) if isinstance(call, dict)
    }
    attempts = message.get("attempts")
    attempts = attempts if isinstance(attempts, list) else []
    for position, raw in enumerate(tool_calls(message)):
        function = raw.get("function") if isinstance(raw, dict) else None
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        call_id = raw.get("id") if isinstance(raw, dict) else None
        if not isinstance(call_id, str) or not call_id or call_id in taken:
            call_id = short_id(f"{turn}/{position}", taken)
        taken.add(call_id)
        arguments, problem = {}, None
        try:
            _refuse_unreadable(attempts, position)
            arguments = parse_arguments(function.get("arguments"))
        except InvalidArguments as error:
            problem = error
        calls.append(ToolCall(call_id, name if isinstance(name, str) else "", arguments, problem))
    return calls


def _refuse_unreadable(attempts: Sequence[Any], position: int) -> None:
    """Raise the problem that made a local model's call unreadable (`wander.types.CallAttempt`)."""
    attempt = attempts[position] if position < len(attempts) else None
    if isinstance(attempt, dict) and attempt.get("problem"):
        raise InvalidArguments(
            f"the call cannot be read ({attempt['problem']}): {str(attempt.get('raw'))[:500]}"
        )


def with_calls(message: Message, calls: Sequence[ToolCall]) -> Message:
    """Return the message with calls that every endpoint accepts.

    Endpoints reject a conversation with a repeated id, a name with other characters, or arguments that are
    not a JSON object with status 400, which would end the rollout at its next turn. Such calls are corrected,
    and the tool message quotes the model's original. The turn keeps the original message. A valid message is
    returned unchanged.
    """
    fixed = []
    for raw, call in zip(tool_calls(message), calls, strict=True):
        if _is_in_order(raw, call):
            fixed.append(raw)
            continue
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:64] or "unnamed"
        function = {"name": name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        other_fields = (
            raw if isinstance(raw, dict) else {}
        )  # Gemini's bridge puts signatures of calls into a separate field
        fixed.append({**other_fields, "id": call.call_id, "type": "function", "function": function})
    return message if fixed == tool_calls(message) else {**message, "tool_calls": fixed}


def _is_in_order(raw: Any, call: ToolCall) -> bool:
    """Return whether a call can be recorded in the conversation exactly as the model wrote it."""
    if call.problem is not None or not isinstance(raw, dict) or raw.get("id") != call.call_id:
        return False
    arguments = raw["function"].get("arguments") if TOOL_NAME.fullmatch(call.name) else None
    return isinstance(arguments, str) and arguments.lstrip().startswith("{")
