"""The default engine: a transformers model in this process, which keeps keys and values between turns.

Batches wait for every rollout in flight and are ordered by the start of the rollouts, so on a CPU the same
seed gives the same bits. A turn that finishes early is answered immediately, so that its environment works
while the rest of the batch is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from wander.errors import ModelError
from wander.models.batching import Tell
from wander.models.decoding import ConversationCache
from wander.models.engines.base import BatchedEngine, SamplingJob, Weights
from wander.models.sampling import Sample, Sampler


@dataclass
class _Cohort:
    """Rollouts whose keys and values are cached together."""

    rollout_ids: list[str]
    cache: ConversationCache


class TransformersEngine(BatchedEngine):
    """Samples with a Hugging Face model, with at most `max_batch_size` rows at a time.

    The model is the trainer's own, or a separate complete copy (`live=False`) that `update_weights` keeps
    current: if the trainer's model is sharded over processes, if adapters are merged for sampling, or if the
    weights are sampled in another precision.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch_size: int = 256,
        live: bool = True,
        autocast: bool = False,
        beside: BatchedEngine | None = None,
    ) -> None:
        super().__init__(max_batch_size=max_batch_size, beside=beside)
        self.sampler = Sampler(model, tokenizer, autocast=autocast)
        self.reads_live_weights = live
        self._max_batch_size = max_batch_size
        self._known: set[str] = set()
        self._cohorts: dict[str, _Cohort] = {}

    def begin(self, rollout_id: str) -> None:
        """Let batches wait for a rollout."""
        self._known.add(rollout_id)
        super().begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Stop batches from waiting for a rollout, and discard its keys and values."""
        self._known.discard(rollout_id)
        self._cohorts.pop(rollout_id, None)
        super().end(rollout_id)

    def forget(self, rollout_id: str) -> None:
        """Discard the cached keys and values, so that the next turn reads the whole conversation."""
        self._cohorts.pop(rollout_id, None)

    def update_weights(self, weights: Weights) -> None:
        """Copy the weights into the engine's model, unless it is the live model."""
        if not (own := self.own_weights()):
            return
        with torch.no_grad():
            for name, weight in weights():
                own[name].copy_(weight)

    def own_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights of the engine's model, unless it is the live model."""
        if self.reads_live_weights:
            return {}
        return {name: weight.detach() for name, weight in self.sampler.model.named_parameters()}

    def rest(self) -> None:
        """Free the memory of unused buffers if they take much of the device."""
        self.sampler.decoder.rest()

    def describe(self) -> dict[str, Any]:
        """Return device and precision."""
        return {
            "device": str(self.sampler.model.device),
            "dtype": str(self.sampler.model.dtype).removeprefix("torch."),
        }

    def _sample(self, jobs: Sequence[SamplingJob], tell: Tell[Sample]) -> list[Sample]:
        started = perf_counter()
        answers: dict[str, Sample] = {}
        places = {job.rollout_id: place for place, job in enumerate(jobs)}
        try:
            for part, cohort in self._parts(jobs):

                def ended(known: dict[int, Sample], part: list[SamplingJob] = part) -> None:
                    for sample in known.values():
                        sample.step = self.step
                    tell([(places[part[row].rollout_id], sample) for row, sample in known.items()])

                cache = cohort.cache if cohort else None
                sampled = self.sampler.sample([job.request for job in part], cache, ended)
                answers |= {job.rollout_id: sample for job, sample in zip(part, sampled, strict=True)}
        except RuntimeError as error:
            for job in jobs:  # its columns are incomplete
                self._cohorts.pop(job.rollout_id, None)
            raise ModelError(
                f"the policy failed on a batch of {len(jobs)}: {str(error).splitlines()[0]}",
                hint="a smaller `batch.rows_at_once` needs less memory",
            ) from error
        self.totals.seconds += perf_counter() - started
        for job in jobs:
            self.count(job.request, answers[job.rollout_id])
        return [answers[job.rollout_id] for job in jobs]

    def _parts(self, jobs: Sequence[SamplingJob]) -> list[tuple[list[SamplingJob], _Cohort | None]]:
        """Split a batch into groups of rows that are computed together, each with its cache."""
        held: dict[str, _Cohort] = {}
        fresh: list[SamplingJob] = []
        for job in jobs:
            if (cohort := self._cohorts.get(job.rollout_id)) is None:
                fresh.append(job)
            else:
                held[job.rollout_id] = cohort
        parts: list[tuple[list[SamplingJob], _Cohort | None]] = []
        for part in self._at_most([job for job in jobs if job.rollout_id in held]):
            cohort = self._bring_together({job.rollout_id: held[job.rollout_id] for job in part})
            self.totals.cached_tokens += sum(len(tokens) for tokens in cohort.cache.tokens)
            parts.append((part, cohort))
        for part in self._at_most(fresh):
            cache = self.sampler.new_cache()
            names = [job.rollout_id for job in part]
            parts.append((part, None if cache is None else self._keep(names, cache)))
        self.totals.context_tokens += sum(len(job.request.ids) for job in jobs)
        return parts

    def _at_most(self, jobs: list[SamplingJob]) -> list[list[SamplingJob]]:
        """Split jobs into groups of at most the maximum batch size."""
        size = self._max_batch_size
        return [jobs[first : first + size] for first in range(0, len(jobs), size)]

    def _bring_together(self, held: dict[str, _Cohort]) -> _Cohort:
        """Return a cohort of only these rollouts; the cached data of other active rollouts is kept for
        later."""
        asked: dict[str, tuple[ConversationCache, int]] = {}
        for cohort in {id(held_cohort): held_cohort for held_cohort in held.values()}.values():
            waiting: dict[str, tuple[ConversationCache, int]] = {}
            for row, name in enumerate(cohort.rollout_ids):
                if held.get(name) is cohort:
                    asked[name] = cohort.cache, row
                elif name not in held and self._cohorts.get(name) is cohort:  # another player has the turn
                    waiting[name] = cohort.cache, row
            if waiting:
                self._keep(list(waiting), ConversationCache.of_rows(list(waiting.values())))
        picked = [asked[name] for name in held]
        together = picked[0][0]
        if all(cache is together for cache, _ in picked):
            together.select([row for _, row in picked])
        else:
            together = ConversationCache.of_rows(picked)
        return self._keep(list(held), together)

    def _keep(self, names: list[str], cache: ConversationCache) -> _Cohort:
        """Cache the rollouts together, except the ones that ended."""
        cohort = _Cohort(names, cache)
        self._cohorts |= {name: cohort for name in names if name in self._known}
        return cohort
