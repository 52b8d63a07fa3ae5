"""What the rollouts of a run have come to while they are played: which are done, and what progress tells.

The aggregates are made at the end, from the record in the manifest's order: sums of floating-point numbers
depend on their order, and rollouts end in any.
"""

from __future__ import annotations

from wander.evals.stats.summary import is_number
from wander.evals.store.bookmark import Bookmark
from wander.evals.store.examples import Places
from wander.types import Rollout, Usage
from wander.wire import RunManifest

DONE, FAILED = 1, 2
"""What a rollout has come to; 0 of one that is missing."""


class Tally:
    """Counts the rollouts of a run, in a byte each."""

    def __init__(self, manifest: RunManifest) -> None:
        self._run_id = manifest.run_id
        self.places = Places(manifest.example_ids, manifest.rollouts_per_example)
        self.state = bytearray(len(self.places))
        self.rollouts = 0
        self.scored = 0
        self._reward_sum = 0.0
        self._prompt_tokens = self._completion_tokens = 0

    @property
    def usage(self) -> Usage:
        """The tokens of all rollouts so far."""
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens)

    @property
    def reward_mean(self) -> float | None:
        """Mean of the rollouts so far; None before the first scored one."""
        return self._reward_sum / self.scored if self.scored else None

    def add(self, rollout: Rollout) -> None:
        """Count one rollout, of a key that was not counted."""
        self.rollouts += 1
        self._prompt_tokens += rollout.usage.prompt_tokens
        self._completion_tokens += rollout.usage.completion_tokens
        self.state[self.places.place_of(rollout)] = DONE if rollout.failure is None else FAILED
        reward = rollout.reward
        if rollout.failure is None and reward is not None and is_number(reward):
            self.scored += 1
            self._reward_sum += reward

    def bookmark(self, length: int, spent: Usage, answers: int) -> Bookmark:
        """Return what a resumption needs of so many bytes of the record."""
        return Bookmark(
            run_id=self._run_id,
            length=length,
            state=bytes(self.state),
            scored=self.scored,
            reward_sum=self._reward_sum,
            usage=self.usage,
            spent=spent,
            answers=answers,
        )

    def restore(self, mark: Bookmark) -> None:
        """Go on from a bookmark; what failed before it counts as not played."""
        self.state[:] = mark.state
        self.rollouts, self.scored = self.state.count(DONE), mark.scored
        self._reward_sum = mark.reward_sum
        self._prompt_tokens, self._completion_tokens = mark.usage.prompt_tokens, mark.usage.completion_tokens
