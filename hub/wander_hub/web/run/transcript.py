"""Prepares a rollout for its page: the messages with their turns, and the parts of the reward."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from wander.types import Message, Rollout, Turn
from wander.wire import RunManifest

from wander_hub.runs.chunks import call_text, message_text
from wander_hub.web.run.grids import Grid, View, Words, draw, read_state
from wander_hub.web.text import count, duration

_MOST_MESSAGES = 400
"""Maximum number of messages of a rollout on one page."""
_LONGEST_TEXT = 60_000
"""Maximum number of characters of a message on a page. The JSON has the full text."""
_LONGEST_LAID_OUT = 10_000
"""Maximum length of a call's arguments that are indented. Deeply nested ones could grow a hundredfold."""
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
    """Role as labeled: system, user, assistant, tool, environment."""
    number: int
    text: str
    length: int = 0
    """Characters of the full text."""
    omitted: int = 0
    """Characters left out of the text, the reasoning and the calls."""
    grid: Grid | None = None
    """The state that the message shows, if the environment declares how to read it."""
    reasoning: str = ""
    reasoning_length: int = 0
    """Characters of the full reasoning."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    name: str = ""
    player: str = ""
    """The player whose conversation contains the message. Empty without players."""
    note: str = ""
    """Tokens, time and finish reason of an assistant's turn."""
    turn: int | None = None
    """Number of the turn, if its tokens were recorded."""
    folded: bool = False


@dataclass(frozen=True)
class RewardPart:
    """One reward function's share of a rollout's reward."""

    name: str
    value: float | None
    weight: float | None
    """Weight in the manifest, or None if the manifest does not list this function."""

    @property
    def contribution(self) -> float | None:
        """Weight times value."""
        return None if self.value is None or self.weight is None else self.value * self.weight


def list_messages(
    rollout: Rollout, first: int = 0, view: View | None = None
) -> tuple[list[ShownMessage], int]:
    """Return the messages of a rollout from `first` on, and the number of messages after the page's limit.

    With a view, messages of the environment include the state that they show.
    """
    replies = sum(1 for message in rollout.completion if message.get("role") == "assistant")
    turns = iter(enumerate(rollout.turns) if len(rollout.turns) == replies else ())
    messages, every = [], [*rollout.prompt, *rollout.completion]
    grids: dict[object, Words] = {}
    for number, message in enumerate(every[: first + _MOST_MESSAGES]):
        played = number >= len(rollout.prompt)
        turn = next(turns, None) if played and message.get("role") == "assistant" else None
        grid = _grid(view, message, grids) if view else None
        if number >= first:
            user = "environment" if played else "user"
            messages.append(describe_message(message, number, turn, user, grid))
    return messages, max(len(every) - first - len(messages), 0)


def reward_parts(rollout: Rollout, manifest: RunManifest) -> tuple[list[RewardPart], list[RewardPart]]:
    """Return the weighted reward functions and the metrics, in the environment's order."""
    weights = {one.name: one.weight for one in manifest.environment.info.reward_functions}
    names = list(dict.fromkeys([*weights, *rollout.metrics]))
    parts = [RewardPart(name, rollout.metrics.get(name), weights.get(name)) for name in names]
    return [one for one in parts if one.weight], [one for one in parts if not one.weight]


def describe_message(
    message: Message, number: int, place: tuple[int, Turn] | None, user_role: str, grid: Grid | None
) -> ShownMessage:
    """Return a message for the page. `place` is its turn with the turn's number."""
    turn = place[1] if place else None
    role = str(message.get("role", "?"))
    text = message_text(message)
    long = text.count("\n") > _FOLD_LINES or len(text) > _FOLD_CHARACTERS
    reasoning = str(message.get("reasoning_content") or "")
    calls = [_tool_call(one) for one in message.get("tool_calls") or [] if isinstance(one, dict)]
    return ShownMessage(
        role=user_role if role == "user" else role,
        number=number,
        text=text[:_LONGEST_TEXT],
        length=len(text),
        grid=grid,
        omitted=_beyond(text) + _beyond(reasoning) + sum(one.omitted for one in calls),
        reasoning=reasoning[:_LONGEST_TEXT],
        reasoning_length=len(reasoning),
        tool_calls=calls,
        name=str(message.get("name") or message.get("tool_call_id") or "")[:100],
        player=str(message.get("player") or "")[:100],
        note=_note(turn),
        turn=place[0] if place and place[1].tokens else None,
        folded=long and role != "assistant",
    )


def _tool_call(call: dict[str, Any]) -> ToolCall:
    name, text = call_text(call)
    # Arguments that are not JSON or are too long to indent stay unchanged.
    with suppress(ValueError, RecursionError):
        if len(text) <= _LONGEST_LAID_OUT:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return ToolCall(name, text[:_LONGEST_TEXT], _beyond(text))


def _grid(view: View, message: Message, before: dict[object, Words]) -> Grid | None:
    """Return the state in a message. `before` holds the last state that each player saw."""
    if message.get("role") not in ("user", "tool"):
        return None
    words, player = read_state(view, message_text(message)), str(message.get("player"))
    if words is None:
        return None
    shown = draw(view, words, before.get(player))
    before[player] = words
    return shown


def _beyond(text: str) -> int:
    """Return the number of characters of a text that are left out."""
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
