"""The client of a policy under training, which works with token ids.

Each rollout keeps the exact ids of its conversation. A turn appends the sampled ids and then only the ids of
the new environment messages. The policy therefore learns from the sampled tokens, never from text that was
tokenized again. The turn starts from the template's text and begins a new sequence
(`wander.train.rollouts.rows.trajectories_of`) in three cases: the chat template rewrites history, the
environment removes messages, or the oldest turns are left out (`wander.models.compaction`).

An engine samples (`wander.models.engines`): transformers in this process, where the same seed gives the same
bits on a CPU, or vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.sub_calls import main_rollout_id
from wander.models.chat import ChatFormat, ChatOptions, Conversation
from wander.models.client import require_sampling, response_of, room_of, sample_request_of
from wander.models.compaction import update_conversation
from wander.models.engines.base import Engine, SamplingJob, SamplingTotals
from wander.models.engines.transformers import TransformersEngine
from wander.models.sampling import context_length_of, end_of_turn_ids
from wander.types import SamplingArgs


@dataclass
class _Episode:
    order: int
    conversation: Conversation | None = None


class PolicyClient(Client):
    """Answers with the policy that a trainer is updating.

    Call `begin` for all rollouts of a step before the first of them makes a request, because their order
    determines the batches. At most `max_batch_size` rows are computed at a time. If `engine` is None, `model`
    itself is sampled in this process.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "policy",
        max_batch_size: int = 256,
        engine: Engine | None = None,
        chat: ChatOptions | None = None,
    ) -> None:
        self.model = name
        self.engine = engine or TransformersEngine(model, tokenizer, max_batch_size=max_batch_size)
        self.format = ChatFormat(tokenizer, end_of_turn_ids(model, tokenizer), chat)
        self.context_length = context_length_of(model)
        self.refresh: Callable[[], None] = lambda: None
        """Function that brings the policy's weights to the engine; called before rollouts are played, in
        every process."""
        self._episodes: dict[str, _Episode] = {}
        self._parts: dict[str, list[str]] = {}
        """Conversations of a rollout's code and of its players, by rollout."""
        self._begun = 0
        self.answered_at = 0.0
        """Time of the last answer, on the monotonic clock."""

    def limit_context(self, tokens: int | None) -> None:
        """End rollouts at this number of tokens, as if it were the model's context length."""
        if tokens is not None:
            self.context_length = min(self.context_length, tokens)

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight, after the rollouts that started earlier."""
        if rollout_id not in self._episodes:
            self._episodes[rollout_id] = _Episode(order=self._begun)
            self._begun += 1
            if (main_id := main_rollout_id(rollout_id)) != rollout_id:
                self._parts.setdefault(main_id, []).append(rollout_id)
        self.engine.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Remove a rollout with the conversations of its code and of its players."""
        self._episodes.pop(rollout_id, None)
        for part in self._parts.pop(rollout_id, ()):
            if self._episodes.pop(part, None) is not None:
                self.engine.end(part)
        self.engine.end(rollout_id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Sample the next turn of a rollout."""
        name = request.conversation
        if name not in self._episodes:
            self.begin(name)
        episode = self._episodes[name]
        if request.tools:
            self.format.check_tools()
        conversation, restarted = update_conversation(
            self.format, episode.conversation, request, room_of(request)
        )
        episode.conversation = conversation
        if restarted:
            self.engine.forget(name)  # its cache contains the old history
        sample_request = sample_request_of(request, list(conversation.ids), self.context_length)
        # Only one player of a rollout has an open request at a time, so all players use the rollout's
        # position in a batch.
        order = self._episodes.get(request.rollout_id, episode).order
        sample = await self.engine.sample(SamplingJob(name, order, sample_request))
        self.format.append_completion(conversation, sample.ids)
        response = response_of(self.format, request, sample_request, sample, conversation.left_out)
        conversation.said = response.message
        self.answered_at = monotonic()
        return response

    def check_tools(self) -> None:
        """Raise `InvalidResponse` if the chat template does not show tools, or calls cannot be read."""
        self.format.check_tools()

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Raise `ModelError` for a sampling argument that is unknown, or exceeds the model's context."""
        require_sampling(sampling, self.context_length)

    def take_totals(self) -> SamplingTotals:
        """Return the totals and reset them."""
        return self.engine.take_totals()

    def describe(self) -> dict[str, Any]:
        """Return the facts about the policy that a manifest records."""
        return {
            **super().describe(),
            **self.format.describe(),
            **self.engine.describe(),
        }

    async def close(self) -> None:
        """Release the engine."""
        await self.engine.close()
