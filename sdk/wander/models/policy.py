"""The policy under training: token in, token out.

Each rollout keeps the exact ids of its conversation. A turn appends the sampled ids and then only the ids of
the new environment messages, so what is trained on is what was sampled, never a re-tokenised text. Where the
chat template rewrites history, the turn starts from what the template shows, as any client's would, and its
record begins a new sample (`wander.train.rollouts.source.trajectories_of`).

What samples is an engine (`wander.models.engines`): transformers in this process, where on a CPU the same
seed gives the same bits, or vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.sub_calls import main_rollout_id
from wander.errors import ModelError
from wander.models.chat import ChatFormat, Conversation, RewrittenHistory
from wander.models.client import response_of, sample_request_of
from wander.models.engines.base import Engine, Job, SamplingTotals
from wander.models.engines.transformers import TransformersEngine
from wander.models.sampling import context_length_of, end_of_turn_ids


@dataclass
class _Episode:
    order: int
    conversation: Conversation | None = None


class PolicyClient(Client):
    """Answers with the policy that a trainer is updating.

    `begin` every rollout of a step before the first of them asks: their order then fixes the batches.
    `max_batch_size` rows are computed at once. `engine` None samples from `model` itself, in this process.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "policy",
        max_batch_size: int = 256,
        engine: Engine | None = None,
    ) -> None:
        self.model = name
        self.engine = engine or TransformersEngine(model, tokenizer, max_batch_size=max_batch_size)
        self.format = ChatFormat(tokenizer, end_of_turn_ids(model, tokenizer))
        self.context_length = context_length_of(model)
        self.refresh: Callable[[], None] = lambda: None
        """Brings the engine to the policy's weights; called before rollouts are played, in every process."""
        self._episodes: dict[str, _Episode] = {}
        self._sub_calls: dict[str, list[str]] = {}
        """What the code of a rollout asked, by the rollout."""
        self._begun = 0

    def limit_context(self, tokens: int | None) -> None:
        """End rollouts that reach so many tokens, as if the model's context ended there."""
        if tokens is not None:
            self.context_length = min(self.context_length, tokens)

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight, after those that began before it."""
        if rollout_id not in self._episodes:
            self._episodes[rollout_id] = _Episode(order=self._begun)
            self._begun += 1
            if (main_id := main_rollout_id(rollout_id)) != rollout_id:
                self._sub_calls.setdefault(main_id, []).append(rollout_id)
        self.engine.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Forget a rollout and what its code asked."""
        self._episodes.pop(rollout_id, None)
        for sub_call in self._sub_calls.pop(rollout_id, ()):
            if self._episodes.pop(sub_call, None) is not None:
                self.engine.forget(sub_call)
        self.engine.end(rollout_id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Sample the next turn of a rollout."""
        if request.rollout_id not in self._episodes:
            self.begin(request.rollout_id)
        episode = self._episodes[request.rollout_id]
        conversation = self._continue(episode, request)
        sample_request = sample_request_of(request, list(conversation.ids), self.context_length)
        sample = await self.engine.sample(Job(request.rollout_id, episode.order, sample_request))
        self.format.append_completion(conversation, sample.ids)
        return response_of(self.format, request, sample_request, sample)

    def _continue(self, episode: _Episode, request: ModelRequest) -> Conversation:
        """Bring the rollout's conversation up to the request's messages."""
        conversation = episode.conversation
        if conversation is not None and len(request.messages) > conversation.messages:
            try:
                self.format.append_messages(conversation, request.messages, request.tools)
            except RewrittenHistory:
                episode.conversation = self.format.start(request.messages, request.tools)
                self.engine.forget(request.rollout_id)  # what it cached is of the history that was
            return episode.conversation or conversation
        # The first question; or one asked again, which starts anew from the same place.
        fresh = self.format.start(request.messages, request.tools)
        if conversation is not None and fresh.text != conversation.text:
            raise ModelError("the environment took messages back: a conversation under training only grows")
        if conversation is None:
            episode.conversation = conversation = fresh
        else:
            del conversation.ids[conversation.open_at :], conversation.mask[conversation.open_at :]
            self.engine.forget(request.rollout_id)
        return conversation

    def take_totals(self) -> SamplingTotals:
        """Return the totals and start new ones."""
        return self.engine.take_totals()

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records about the policy."""
        return {
            **super().describe(),
            "chat_template_sha256": self.format.digest,
            **self.engine.describe(),
        }

    async def close(self) -> None:
        """Release the engine."""
        await self.engine.close()
