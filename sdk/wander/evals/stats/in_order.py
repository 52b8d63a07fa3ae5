"""Aggregates of rollouts that end in any order, the same to the last bit whatever the order was.

Sums of floating-point numbers depend on their order, so what is summed up is summed in the manifest's: a
rollout that ended before its predecessors waits for them, without its messages. What a progress bar shows is
counted at once.
"""

from __future__ import annotations

from array import array

from wander.evals.stats.summary import RunningSummary, is_number
from wander.evals.store.examples import Places
from wander.types import Rollout, Usage
from wander.wire import RunManifest, RunSummary


class SummaryInOrder:
    """The aggregates of a run, or of a shard, while its rollouts end in any order."""

    def __init__(self, manifest: RunManifest) -> None:
        self._each = manifest.rollouts_per_example
        self._places = Places(manifest.example_ids, self._each)
        self._shard, self._together = manifest.shard, manifest.played_together
        self._summary = RunningSummary(manifest.environment.info)
        self._waiting: dict[int, Rollout] = {}
        self._next = -1
        self._advance()
        self.rollouts = 0
        self.failed = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._totals = array("d", bytes(8 * len(manifest.example_ids)))
        self._counts = array("L", bytes(array("L").itemsize * len(manifest.example_ids)))
        """Sum of rewards and number of scored rollouts, of each example."""
        self._scored_examples = 0
        self._sum_of_means = 0.0

    @property
    def usage(self) -> Usage:
        """The tokens of all rollouts so far."""
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens)

    @property
    def reward_mean(self) -> float | None:
        """Mean over examples so far, up to rounding; None before the first scored rollout."""
        return self._sum_of_means / self._scored_examples if self._scored_examples else None

    def place_of(self, rollout: Rollout) -> int:
        """Return a rollout's place in the whole run; raises `KeyError` for one that is not of it."""
        if (place := self._places.find(rollout.key)) is None:
            raise KeyError(rollout.key)
        return place

    def add(self, rollout: Rollout) -> None:
        """Count one rollout, of a key that was not counted."""
        self.rollouts += 1
        self._prompt_tokens += rollout.usage.prompt_tokens
        self._completion_tokens += rollout.usage.completion_tokens
        reward, place = rollout.reward, self.place_of(rollout)
        if rollout.failure is None and reward is not None and is_number(reward):
            example = place // self._each
            total, count = self._totals[example], self._counts[example]
            self._scored_examples += count == 0
            self._sum_of_means += (total + reward) / (count + 1) - (total / count if count else 0.0)
            self._totals[example], self._counts[example] = total + reward, count + 1
        else:
            self.failed += 1
        if place != self._next:
            self._waiting[place] = rollout.model_copy(
                update={"prompt": [], "completion": [], "turns": [None] * len(rollout.turns), "info": {}}
            )
            return
        self._summary.add(rollout)
        self._advance()
        while (waited := self._waiting.pop(self._next, None)) is not None:
            self._summary.add(waited)
            self._advance()

    def summary(self, *, expected: int) -> RunSummary:
        """Return the aggregates of all that was added; nothing is added after that."""
        for place in sorted(self._waiting):
            self._summary.add(self._waiting.pop(place))
        return self._summary.summary(expected=expected)

    def _advance(self) -> None:
        """Go to the place of the next rollout that is played here."""
        self._next += 1
        while self._shard is not None and not self._shard.takes(self._next // self._together):
            self._next += 1
