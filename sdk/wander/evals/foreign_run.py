"""A run of another library, as the one who reads its files tells it (`wander.evals.imports`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from wander.seeding import derived_seed
from wander.types import Example, Message, Rollout, SamplingArgs

UNKNOWN = "unknown"
"""What stands where the other library recorded nothing."""


@dataclass
class ForeignRun:
    """What a folder of another library says."""

    environment: str
    model: str
    source: str
    """Which library and schema it comes from, for the run's notes."""
    arguments: dict[str, Any] = field(default_factory=dict)
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    base_url: str | None = None
    owner: str | None = None
    """Who published the environment; None where only its name is known."""
    version: str | None = None
    """The environment's."""
    started_at: datetime | None = None
    rollouts_per_example: int | None = None
    reward_names: list[str] = field(default_factory=list)
    examples: dict[str, Example] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Rollouts by example."""

    def add(self, rollout: Rollout) -> None:
        """Add a rollout, whose number is the next of its example."""
        self.rollouts.append(rollout)
        self.counts[rollout.example_id] += 1

    def example(
        self,
        example_id: str,
        prompt: list[Message],
        answer: Any,
        info: dict[str, Any],
        columns: dict[str, Any],
    ) -> Example:
        """Return the example of a row, made when its first rollout comes."""
        if example_id not in self.examples:
            self.examples[example_id] = Example(
                example_id=example_id,
                index=len(self.examples),
                split="eval",
                seed=derived_seed("imported", self.environment, example_id),
                prompt=prompt,
                answer=answer,
                info=info,
                columns=columns,
            )
        return self.examples[example_id]
