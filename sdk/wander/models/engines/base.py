"""The seam between a policy client, which keeps conversations, and what samples their next turns.

An engine samples from token ids and answers with token ids and the log-probabilities that they were drawn
with. One that reads the trainer's own weights (`reads_live_weights`) is always current. Another holds a copy:
`update_weights` brings it up to date before rollouts are played, on every process of the run together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wander.models.batching import Batcher, Tell

if TYPE_CHECKING:
    import torch

    from wander.models.sampling import Sample, SampleRequest

Weights = Callable[[], "Iterable[tuple[str, torch.Tensor]]"]
"""Gives every weight, whole and under its name in the checkpoint, one after the other.

Where the policy is sharded over processes, each step gathers one weight: all of them iterate, to the end.
"""


@dataclass
class SamplingTotals:
    """What was sampled since the totals were last taken."""

    tokens: int = 0
    entropy: float = 0.0
    """Sum over tokens, nats."""
    seconds: float = 0.0
    """Time the model was computing."""
    cached_tokens: int = 0
    """Context tokens that came from the cache instead of being computed again."""
    context_tokens: int = 0

    @property
    def mean_entropy(self) -> float:
        """Entropy per sampled token in nats."""
        return self.entropy / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Job:
    """One turn to sample."""

    rollout_id: str
    order: int
    """When the rollout began among those of its client."""
    request: SampleRequest


class Engine(ABC):
    """Samples the turns of rollouts."""

    reads_live_weights = False
    """True when it samples from the trainer's own tensors, so that there is nothing to bring up to date."""

    def __init__(self) -> None:
        self.totals = SamplingTotals()
        self.step: int | None = None
        """Steps that the weights have learnt; every sample tells it, where steps are played ahead."""

    def begin(self, rollout_id: str) -> None:  # noqa: B027 - most have nothing to do here
        """Count a rollout whose turns may be waited for."""

    def end(self, rollout_id: str) -> None:  # noqa: B027 - most have nothing to do here
        """Stop waiting for a rollout and drop what is kept of it."""

    def forget(self, rollout_id: str) -> None:  # noqa: B027 - most have nothing to do here
        """Drop what is cached of a conversation that does not go on from where it stood."""

    @abstractmethod
    async def sample(self, job: Job) -> Sample:
        """Sample one turn; raises `ModelError`."""

    def update_weights(self, weights: Weights) -> None:  # noqa: B027 - most have nothing to do here
        """Sample from these weights from now on."""

    def pause(self) -> None:  # noqa: B027 - most are never asked while they sample
        """Wait for the turns that are being sampled, and hold new ones back until `resume`."""

    def resume(self, step: int | None) -> None:
        """Sample with weights that learnt so many steps."""
        self.step = step

    def rest(self) -> None:  # noqa: B027 - most have nothing to do here
        """Give memory back until the next `update_weights`: the rollouts of a step are played."""

    def take_totals(self) -> SamplingTotals:
        """Return the totals and start new ones."""
        totals, self.totals = self.totals, SamplingTotals()
        return totals

    def count(self, request: SampleRequest, sample: Sample) -> None:
        """Add a sample to the totals."""
        self.totals.tokens += len(sample.ids)
        self.totals.entropy += sample.entropy
        sample.step = self.step

    @property
    @abstractmethod
    def is_sampling(self) -> bool:
        """True while turns are being sampled: not while rollouts wait for the others of their batch."""

    @property
    def wants_weights(self) -> bool:
        """True when it cannot sample before the next `update_weights`, whatever the step."""
        return False

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records about the engine."""
        return {}

    async def close(self) -> None:  # noqa: B027 - most have nothing to do here
        """Release what it holds."""


class BatchedEngine(Engine):
    """An engine in this process: the next turns of all rollouts in flight are sampled together, in batches.

    A batch waits for all of them (`wander.models.batching.Batcher`). If another model plays in the same
    rollouts, its engine is created with `beside`, the engine of the first model. A batch then holds the turns
    of both models: otherwise, each would wait for rollouts that wait for the other.
    """

    def __init__(self, *, max_batch_size: int, beside: BatchedEngine | None = None) -> None:
        super().__init__()
        self._batcher: Batcher[tuple[BatchedEngine, Job], Sample] = (
            beside._batcher
            if beside is not None
            else Batcher(
                _sample_batch,
                order=lambda asked: asked[1].order,
                max_batch_size=max_batch_size,
                quiet_seconds=None,
            )
        )

    def begin(self, rollout_id: str) -> None:
        """Let batches wait for a rollout."""
        self._batcher.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Let batches go without a rollout."""
        self._batcher.end(rollout_id)

    async def sample(self, job: Job) -> Sample:
        """Sample one turn, together with those of the other rollouts."""
        return await self._batcher.submit(job.rollout_id, (self, job))

    @property
    def is_sampling(self) -> bool:
        """True while a batch is computed."""
        return self._batcher.is_computing

    @abstractmethod
    def _sample(self, jobs: Sequence[Job], tell: Tell[Sample]) -> list[Sample]:
        """Sample a batch, in the batcher's thread; `tell` may hear of turns that end before the others."""

    def take_totals(self) -> SamplingTotals:
        """Return the totals and start new ones, after the batch that is being computed.

        That one goes on where all of its rollouts ended that were not answered yet; weights must not change.
        """
        self._batcher.wait()
        return super().take_totals()

    async def close(self) -> None:
        """Stop the thread that computes batches."""
        self._batcher.close()


def _sample_batch(asked: Sequence[tuple[BatchedEngine, Job]], tell: Tell[Sample]) -> list[Sample]:
    """Sample the turns of one engine after those of another."""
    samples: dict[int, Sample] = {}
    for engine in dict.fromkeys(engine for engine, _ in asked):
        places = [place for place, (of, _) in enumerate(asked) if of is engine]

        def ended(known: Sequence[tuple[int, Sample]], places: list[int] = places) -> None:
            tell([(places[number], sample) for number, sample in known])

        sampled = engine._sample([asked[place][1] for place in places], ended)
        samples |= zip(places, sampled, strict=True)
    return [samples[place] for place in range(len(asked))]
