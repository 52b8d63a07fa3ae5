"""The first engine: a transformers model in this process, with keys and values kept between turns.

Batches wait for every rollout in flight and are ordered by when the rollouts began: on a CPU, the same seed
gives the same bits. A turn that ends before the others of its batch is answered at once, so that its
environment works while those are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from wander.errors import ModelError
from wander.models.batching import Tell
from wander.models.engines.base import BatchedEngine, Job, Weights
from wander.models.kv import ConversationCache
from wander.models.sampling import Sample, Sampler


@dataclass
class _Cohort:
    """Rollouts whose keys and values are cached together."""

    rollout_ids: list[str]
    cache: ConversationCache


class TransformersEngine(BatchedEngine):
    """Samples with a Hugging Face model, `max_batch_size` rows at once.

    The model is the trainer's own, or, where that is sharded over processes, a whole one beside it
    (`live=False`), which `update_weights` keeps current. With several `waves`, one is sampled while the
    environments of the others work.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch_size: int = 256,
        live: bool = True,
        waves: int = 1,
        beside: BatchedEngine | None = None,
    ) -> None:
        super().__init__(max_batch_size=max_batch_size, waves=waves, beside=beside)
        self.sampler = Sampler(model, tokenizer)
        self.reads_live_weights = live
        self._max_batch_size = max_batch_size
        self._known: set[str] = set()
        self._cohorts: dict[str, _Cohort] = {}

    def begin(self, rollout_id: str) -> None:
        """Let batches wait for a rollout."""
        self._known.add(rollout_id)
        super().begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Let batches go without a rollout, and drop its keys and values."""
        self._known.discard(rollout_id)
        self._cohorts.pop(rollout_id, None)
        super().end(rollout_id)

    def forget(self, rollout_id: str) -> None:
        """Read the conversation anew at its next turn."""
        self._cohorts.pop(rollout_id, None)

    def update_weights(self, weights: Weights) -> None:
        """Copy the weights into the engine's own model; those of the live model are current anyway."""
        if self.reads_live_weights:
            return
        own = dict(self.sampler.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights():
                own[name].copy_(weight)

    def describe(self) -> dict[str, Any]:
        """Return device and precision."""
        return {
            "device": str(self.sampler.model.device),
            "dtype": str(self.sampler.model.dtype).removeprefix("torch."),
        }

    def _sample(self, jobs: Sequence[Job], tell: Tell[Sample]) -> list[Sample]:
        started = perf_counter()
        answers: dict[str, Sample] = {}
        places = {job.rollout_id: place for place, job in enumerate(jobs)}
        try:
            for part, cohort in self._parts(jobs):

                def ended(known: dict[int, Sample], part: list[Job] = part) -> None:
                    for sample in known.values():
                        sample.step = self.step
                    tell([(places[part[row].rollout_id], sample) for row, sample in known.items()])

                cache = cohort.cache if cohort else None
                sampled = self.sampler.sample([job.request for job in part], cache, ended)
                answers |= {job.rollout_id: sample for job, sample in zip(part, sampled, strict=True)}
        except RuntimeError as error:
            raise ModelError(
                f"the policy failed on a batch of {len(jobs)}: {str(error).splitlines()[0]}",
                hint="a smaller `batch.rows_at_once` needs less memory",
            ) from error
        self.totals.seconds += perf_counter() - started
        for job in jobs:
            self.count(job.request, answers[job.rollout_id])
        return [answers[job.rollout_id] for job in jobs]

    def _parts(self, jobs: Sequence[Job]) -> list[tuple[list[Job], _Cohort | None]]:
        """Split a batch into the rows that are computed together, each with its cache."""
        cohorts: dict[int, tuple[_Cohort, list[Job]]] = {}
        fresh: list[Job] = []
        for job in jobs:
            cohort = self._cohorts.get(job.rollout_id)
            if cohort is None:
                fresh.append(job)
            else:
                cohorts.setdefault(id(cohort), (cohort, []))[1].append(job)
        parts: list[tuple[list[Job], _Cohort | None]] = []
        for cohort, part in cohorts.values():
            rows = [cohort.rollout_ids.index(job.rollout_id) for job in part]
            cohort.cache.select(rows)
            # Who does not ask now has ended, or is a player whose turn it is not: that one is read anew.
            for name in set(cohort.rollout_ids).difference(job.rollout_id for job in part):
                self._cohorts.pop(name, None)
            cohort.rollout_ids = [job.rollout_id for job in part]
            self.totals.cached_tokens += sum(len(tokens) for tokens in cohort.cache.tokens)
            parts.append((part, cohort))
        for first in range(0, len(fresh), self._max_batch_size):
            part = fresh[first : first + self._max_batch_size]
            cache = self.sampler.new_cache()
            cohort = None if cache is None else _Cohort([job.rollout_id for job in part], cache)
            if cohort is not None:
                self._cohorts |= {job.rollout_id: cohort for job in part if job.rollout_id in self._known}
            parts.append((part, cohort))
        self.totals.context_tokens += sum(len(job.request.ids) for job in jobs)
        return parts
