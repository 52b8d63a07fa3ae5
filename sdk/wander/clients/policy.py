"""The policy under training: token in, token out.

Each rollout keeps the exact ids of its conversation. A turn appends the sampled ids and then only the ids of
the new environment messages, so what is trained on is what was sampled, never a re-tokenised text. Where the
chat template rewrites history, the turn starts from what the template shows, as any client's would, and its
record begins a new sample (`wander.train.rollouts.trajectories_of`).

Batches wait for every rollout in flight and are ordered by when the rollouts began: on a CPU, the same seed
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.batching import Batcher
from wander.clients.transformers import response_of, sample_request_of
from wander.envs.sub_calls import main_rollout_id
from wander.errors import ModelError
from wander.models.chat import ChatFormat, Conversation, RewrittenHistory
from wander.models.kv import ConversationCache
from wander.models.sampling import Sample, Sampler, SampleRequest


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


@dataclass
class _Cohort:
    """Rollouts whose keys and values are cached together."""

    rollout_ids: list[str]
    cache: ConversationCache


@dataclass
class _Episode:
    order: int
    conversation: Conversation | None = None
    cohort: _Cohort | None = None


@dataclass(frozen=True)
class _Job:
    rollout_id: str
    order: int
    sample: SampleRequest


class PolicyClient(Client):
    """Answers with the policy that a trainer is updating.

    `begin` every rollout of a step before the first of them asks: their order then fixes the batches.
    `max_batch_size` rows are computed at once.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "policy", max_batch_size: int = 256
    ) -> None:
        self.model = name
        self.sampler = Sampler(model, tokenizer)
        self.format = ChatFormat(tokenizer, self.sampler.end_ids)
        self.totals = SamplingTotals()
        self._max_batch_size = max_batch_size
        self._episodes: dict[str, _Episode] = {}
        self._begun = 0
        self._batcher: Batcher[_Job, Sample] = Batcher(
            self._sample, order=lambda job: job.order, max_batch_size=max_batch_size, quiet_seconds=None
        )

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight, after those that began before it."""
        if rollout_id not in self._episodes:
            self._episodes[rollout_id] = _Episode(order=self._begun)
            self._begun += 1
        self._batcher.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Forget a rollout and what its code asked."""
        self._episodes.pop(rollout_id, None)
        for sub_call in [each for each in self._episodes if main_rollout_id(each) == rollout_id]:
            del self._episodes[sub_call]
        self._batcher.end(rollout_id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Sample the next turn of a rollout."""
        if request.rollout_id not in self._episodes:
            self.begin(request.rollout_id)
        episode = self._episodes[request.rollout_id]
        conversation = self._continued(episode, request)
        sample_request = sample_request_of(request, list(conversation.ids), self.sampler.context_length)
        sample = await self._batcher.submit(
            request.rollout_id, _Job(request.rollout_id, episode.order, sample_request)
        )
        self.format.append_completion(conversation, sample.ids)
        return response_of(self.format, sample_request, sample)

    def _continued(self, episode: _Episode, request: ModelRequest) -> Conversation:
        """Bring the rollout's conversation up to the request's messages."""
        conversation = episode.conversation
        if conversation is not None and len(request.messages) > conversation.messages:
            try:
                self.format.append_messages(conversation, request.messages, request.tools)
            except RewrittenHistory:
                episode.conversation = self.format.start(request.messages, request.tools)
                episode.cohort = None  # its keys and values are those of the history that was
            return episode.conversation or conversation
        # The first question; or one asked again, which starts anew from the same place.
        fresh = self.format.start(request.messages, request.tools)
        if conversation is not None and fresh.text != conversation.text:
            raise ModelError("the environment took messages back: a conversation under training only grows")
        if conversation is None:
            episode.conversation = conversation = fresh
        else:
            del conversation.ids[conversation.open_at :], conversation.mask[conversation.open_at :]
            episode.cohort = None
        return conversation

    def take_totals(self) -> SamplingTotals:
        """Return the totals and start new ones."""
        totals, self.totals = self.totals, SamplingTotals()
        return totals

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records about the policy."""
        return {
            **super().describe(),
            "chat_template_sha256": self.format.digest,
            "device": str(self.sampler.model.device),
            "dtype": str(self.sampler.model.dtype).removeprefix("torch."),
        }

    async def close(self) -> None:
        """Stop the thread that computes batches."""
        self._batcher.close()

    def _sample(self, jobs: Sequence[_Job]) -> list[Sample]:
        started = perf_counter()
        answers: dict[str, Sample] = {}
        try:
            for part, cohort in self._parts(jobs):
                sampled = self.sampler.sample([job.sample for job in part], cohort.cache if cohort else None)
                answers |= {job.rollout_id: sample for job, sample in zip(part, sampled, strict=True)}
        except RuntimeError as error:
            raise ModelError(
                f"the policy failed on a batch of {len(jobs)}: {str(error).splitlines()[0]}",
                hint="a smaller `batch.rows_at_once` needs less memory",
            ) from error
        self.totals.seconds += perf_counter() - started
        for sample in answers.values():
            self.totals.tokens += len(sample.ids)
            self.totals.entropy += sample.entropy
        return [answers[job.rollout_id] for job in jobs]

    def _parts(self, jobs: Sequence[_Job]) -> list[tuple[list[_Job], _Cohort | None]]:
        """Split a batch into the rows that are computed together, each with its cache."""
        cohorts: dict[int, tuple[_Cohort, list[_Job]]] = {}
        fresh: list[_Job] = []
        for job in jobs:
            episode = self._episodes.get(job.rollout_id)
            if episode is None or episode.cohort is None:
                fresh.append(job)
            else:
                cohorts.setdefault(id(episode.cohort), (episode.cohort, []))[1].append(job)
        parts: list[tuple[list[_Job], _Cohort | None]] = []
        for cohort, part in cohorts.values():
            rows = [cohort.rollout_ids.index(job.rollout_id) for job in part]
            cohort.cache.select(rows)
            cohort.rollout_ids = [job.rollout_id for job in part]
            self.totals.cached_tokens += sum(len(tokens) for tokens in cohort.cache.tokens)
            parts.append((part, cohort))
        for first in range(0, len(fresh), self._max_batch_size):
            part = fresh[first : first + self._max_batch_size]
            parts.append((part, self._new_cohort(part)))
        self.totals.context_tokens += sum(len(job.sample.ids) for job in jobs)
        return parts

    def _new_cohort(self, jobs: list[_Job]) -> _Cohort | None:
        cache = self.sampler.new_cache()
        if cache is None:
            return None
        cohort = _Cohort([job.rollout_id for job in jobs], cache)
        for job in jobs:
            if job.rollout_id in self._episodes:
                self._episodes[job.rollout_id].cohort = cohort
        return cohort
