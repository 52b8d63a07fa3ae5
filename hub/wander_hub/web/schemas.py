"""What the templates are given, beside the wire models."""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class ToolCall:
    """One tool call of an assistant message."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ShownMessage:
    """One message of a rollout as the page shows it."""

    role: str
    """Role as labelled: system, user, assistant, tool, environment."""
    number: int
    text: str
    omitted: int = 0
    """Characters left out of a very long text."""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    name: str = ""
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


@dataclass(frozen=True)
class Curve:
    """One metric of a training run, drawn."""

    name: str
    chart: Markup
    first: float
    last: float
    points: int
    bucketed: bool
    table: list[tuple[float, float]] = field(default_factory=list)
    """Some of its points, step and value, for who cannot see the drawing."""


@dataclass(frozen=True)
class RolloutQuery:
    """Which rollouts of a run a page lists."""

    offset: int = 0
    limit: int = 50
    sort: str = "number"
    """number, reward or -reward."""
    only: str = "all"
    """all, scored or failed."""
