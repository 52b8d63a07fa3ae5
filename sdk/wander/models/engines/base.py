"""The interface between a policy client, which keeps conversations, and the engine that samples their turns.

An engine receives token ids and returns token ids with the log-probabilities that they were drawn with. An
engine that reads the trainer's own weights (`reads_live_weights`) is always current. Other engines hold a
copy. `update_weights` updates it before rollouts are played, in all processes of the run together.
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
"""Function that yields every complete weight with its name in the checkpoint, one after the other.

If the policy is sharded over processes, each iteration gathers a weight, so all processes must iterate to the
end.
"""


@dataclass
class SamplingTotals:
    """Totals of sampling since they were last taken."""

    tokens: int = 0
    entropy: float = 0.0
    """Sum over tokens, in nats."""
    seconds: float = 0.0
    """Seconds that the model was computing."""
    cached_tokens: int = 0
    """Number of context tokens that came from the cache."""
    context_tokens: int = 0

    @property
    def mean_entropy(self) -> float:
        """Mean entropy of a sampled token in nats."""
        return self.entropy / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class SamplingJob:
    """A turn to sample."""

    rollout_id: str
    order: int
    """Position of the rollout in the order in which its client's rollouts started."""
    request: SampleRequest


class Engine(ABC):
    """Samples the turns of rollouts."""

    reads_live_weights = False
    """Whether it samples from the trainer's own tensors, so that no update is needed."""

    def __init__(self) -> None:
        self.totals = SamplingTotals()
        self.step: int | None = None
        """Training step of the weights, which every sample records if steps are played ahead."""

    def begin(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Note that a rollout started, so that batches can wait for its turns."""

    def end(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Note that a rollout ended, and discard its cached data."""

    def forget(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Discard the cache of a conversation whose history changed."""

    @abstractmethod
    async def sample(self, job: SamplingJob) -> Sample:
        """Sample a turn; raises `ModelError`."""

    def update_weights(self, weights: Weights) -> None:  # noqa: B027 - an optional hook
        """Sample from these weights from now on."""

    def own_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights that `update_weights` copied, by name; empty without a copy in this process."""
        return {}

    def pause(self) -> None:  # noqa: B027 - an optional hook
        """Wait for the turns that are being sampled, and hold back new turns until `resume`."""

    def resume(self, step: int | None) -> None:
        """End a `pause`. `step` is the training step of the weights that sample from now on."""
        self.step = step

    def rest(self) -> None:  # noqa: B027 - an optional hook
        """Release memory until the next `update_weights`, because the rollouts of a step are finished."""

    def take_totals(self) -> SamplingTotals:
        """Return the totals and reset them."""
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
        """Whether turns are being sampled; False while rollouts wait for the rest of their batch."""

    @property
    def wants_weights(self) -> bool:
        """Whether it cannot sample before the next `update_weights`."""
        return False

    def describe(self) -> dict[str, Any]:
        """Return the facts about the engine that a manifest records."""
        return {}

    async def close(self) -> None:  # noqa: B027 - an optional hook
        """Release the engine's resources."""


class BatchedEngine(Engine):
    """An engine in this process that samples the next turns of all rollouts in flight in batches.

    A batch waits for all rollouts (`wander.models.batching.Batcher`). If another model plays in the same
    rollouts, the first engine is passed to the second. Batches then contain the turns of both. Otherwise each
    engine would wait for rollouts that wait for the other.
    """

    def __init__(self, *, max_batch_size: int, beside: BatchedEngine | None = None) -> None:
        super().__init__()
        self._batcher: Batcher[tuple[BatchedEngine, SamplingJob], Sample] = (
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
        """Stop batches from waiting for a rollout."""
        self._batcher.end(rollout_id)

    async def sample(self, job: SamplingJob) -> Sample:
        """Sample a turn in a batch with those of other rollouts."""
        return await self._batcher.submit(job.rollout_id, (self, job))

    @property
    def is_sampling(self) -> bool:
        """Whether a batch is being computed."""
        return self._batcher.is_computing

    @abstractmethod
    def _sample(self, jobs: Sequence[SamplingJob], tell: Tell[Sample]) -> list[Sample]:
        """Sample a batch, in the batcher's thread; `tell` may receive turns that finish early."""

    def take_totals(self) -> SamplingTotals:
        """Return the totals and reset them, after the current batch.

        A batch may still be running even if all of its rollouts have ended, for example because they were
        canceled, and weights must not change during a batch.
        """
        self._batcher.wait()
        return super().take_totals()

    async def close(self) -> None:
        """Stop the thread that computes batches."""
        self._batcher.close()


def _sample_batch(asked: Sequence[tuple[BatchedEngine, SamplingJob]], tell: Tell[Sample]) -> list[Sample]:
    """Sample the turns of each engine, one engine after the other."""
    samples: dict[int, Sample] = {}
    for engine in dict.fromkeys(engine for engine, _ in asked):
        places = [place for place, (of, _) in enumerate(asked) if of is engine]

        def ended(known: Sequence[tuple[int, Sample]], places: list[int] = places) -> None:
            tell([(places[number], sample) for number, sample in known])

        sampled = engine._sample([asked[place][1] for place in places], ended)
        samples |= zip(places, sampled, strict=True)
    return [samples[place] for place in range(len(asked))]
