"""Turns a rollout into what its page shows: messages with their turns, and the parts of its reward."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from wander.types import Message, Rollout, Turn
from wander.wire import RunManifest

from wander_hub.runs.chunks import message_text
from wander_hub.web.text import count, duration

_MOST_MESSAGES = 400
"""Messages of one rollout on a page."""
_LONGEST_TEXT = 60_000
"""Characters of one message on a page; the JSON has the rest."""
_LONGEST_LAID_OUT = 10_000
"""Characters of a call's arguments that are shown line by line: deep ones grow a hundredfold."""
_FOLD_LINES = 20
_FOLD_CHARACTERS = 2500


@dataclass(frozen=True)
class ToolCall:
    """One tool call of an assistant message."""

    name: str
    arguments: str
    omitted: int


@dataclass(frozen=True)
class ShownMessage:
    """One message of a rollout as the page shows it."""

    role: str
    """Role as labelled: system, user, assistant, tool, environment."""
    number: int
    text: str
    omitted: int = 0
    """Characters left out of very long texts, the reasoning and the calls included."""
    reasoning: str = ""
    reasoning_length: int = 0
    """Its characters, also those left out."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    name: str = ""
    player: str = ""
    """Whose conversation it is a part of, where the environment has players."""
    note: str = ""
    """Tokens, time and finish reason of an assistant's turn."""
    folded: bool = False


@dataclass(frozen=True)
class RewardPart:
    """One reward function's share of a rollout's reward."""

    name: str
    value: float | None
    weight: float | None
    """None when the manifest does not name the function."""

    @property
    def contribution(self) -> float | None:
        """Weight times value."""
        return None if self.value is None or self.weight is None else self.value * self.weight


def list_messages(rollout: Rollout) -> tuple[list[ShownMessage], int]:
    """Return the messages of prompt and episode, and how many more there are than a page can show."""
    prompt = rollout.prompt[:_MOST_MESSAGES]
    messages = [_describe_message(message, number, None, "user") for number, message in enumerate(prompt)]
    replies = sum(1 for message in rollout.completion if message.get("role") == "assistant")
    turns = iter(rollout.turns if len(rollout.turns) == replies else [])
    episode = rollout.completion[: _MOST_MESSAGES - len(messages)]
    for number, message in enumerate(episode, len(messages)):
        turn = next(turns, None) if message.get("role") == "assistant" else None
        messages.append(_describe_message(message, number, turn, "environment"))
    return messages, len(rollout.prompt) + len(rollout.completion) - len(messages)


def reward_parts(rollout: Rollout, manifest: RunManifest) -> tuple[list[RewardPart], list[RewardPart]]:
    """Return the weighted reward functions and the metrics, in the environment's order."""
    weights = {one.name: one.weight for one in manifest.environment.info.reward_functions}
    names = list(dict.fromkeys([*weights, *rollout.metrics]))
    parts = [RewardPart(name, rollout.metrics.get(name), weights.get(name)) for name in names]
    return [one for one in parts if one.weight], [one for one in parts if not one.weight]


def _describe_message(message: Message, number: int, turn: Turn | None, user_role: str) -> ShownMessage:
    role = str(message.get("role", "?"))
    text = message_text(message)
    long = text.count("\n") > _FOLD_LINES or len(text) > _FOLD_CHARACTERS
    reasoning = str(message.get("reasoning_content") or "")
    calls = [_tool_call(one) for one in message.get("tool_calls") or [] if isinstance(one, dict)]
    return ShownMessage(
        role=user_role if role == "user" else role,
        number=number,
        text=text[:_LONGEST_TEXT],
        omitted=_beyond(text) + _beyond(reasoning) + sum(one.omitted for one in calls),
        reasoning=reasoning[:_LONGEST_TEXT],
        reasoning_length=len(reasoning),
        tool_calls=calls,
        name=str(message.get("name") or message.get("tool_call_id") or "")[:100],
        player=str(message.get("player") or "")[:100],
        note=_note(turn),
        folded=long and role != "assistant",
    )


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    given = function.get("arguments", "")
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    # What is no JSON is shown as it was written, and so is what would be far longer in lines of its own.
    with suppress(ValueError, RecursionError):
        if len(text) <= _LONGEST_LAID_OUT:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return ToolCall(str(function.get("name", "?")), text[:_LONGEST_TEXT], _beyond(text))


def _beyond(text: str) -> int:
    """Return how many characters of a text are left out."""
    return max(len(text) - _LONGEST_TEXT, 0)


def _note(turn: Turn | None) -> str:
    if turn is None:
        return ""
    parts = []
    if turn.usage.completion_tokens:
        parts.append(f"{count(turn.usage.completion_tokens)} tokens")
    if turn.model_seconds:
        parts.append(duration(turn.model_seconds))
    if turn.finish_reason != "stop":
        parts.append(turn.finish_reason)
    return " · ".join(parts)
