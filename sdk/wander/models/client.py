"""A client for a language model in this process, which concurrent rollouts share.

Rollouts in flight are counted (`begin`, `end`). A batch starts when all of them wait, when it is full, or
when no request arrived for a moment. Each request samples with its own seed, so its result depends on the
batch only through the last bits of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ContextOverflow, ModelError
from wander.models.batching import Batcher
from wander.models.chat import ChatFormat, ChatOptions, Conversation
from wander.models.compaction import update_conversation
from wander.models.decoding import ConversationCache
from wander.models.engines.base import SamplingJob
from wander.models.loading import LoadedModel, load_model, weights_digest
from wander.models.sampling import Sample, Sampler, SampleRequest, ending_problem
from wander.types import SamplingArgs, TurnTokens, Usage

DEFAULT_MAX_TOKENS = 512
"""Maximum number of tokens in a turn if the request does not set it."""

QUIET_SECONDS = 0.02
"""Seconds that an incomplete batch waits for another request."""

KNOWN_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop", "compact_at"}
)


class TransformersClient(Client):
    """Answers with a Hugging Face causal language model, batching the requests of concurrent rollouts.

    `model` is a name that `wander.models.loading.load_model` accepts, or a loaded model. Unset sampling
    arguments mean temperature 1, no truncation and 512 tokens per turn.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        device: str | None = None,
        dtype: str = "float32",
        max_batch_size: int = 64,
        quiet_seconds: float = QUIET_SECONDS,
        chat: ChatOptions | None = None,
    ) -> None:
        loaded = model if isinstance(model, LoadedModel) else load_model(model, device=device, dtype=dtype)
        self.model = loaded.name
        self.loaded = loaded
        self.dtype = str(loaded.model.dtype).removeprefix("torch.")
        self.sampler = Sampler(loaded.model, loaded.tokenizer)
        self.format = ChatFormat(loaded.tokenizer, self.sampler.end_ids, chat)
        self._begun: dict[str, dict[str, Conversation]] = {}
        """Conversations of each rollout in flight; a rollout has one, or one for each player."""
        self._cached: tuple[list[str], ConversationCache] | None = None
        """Conversations of the last batch, with their keys and values."""
        self._batcher: Batcher[tuple[str, SamplingJob], Sample] = Batcher(
            lambda asked, tell: self._sample(asked),
            # Requests of similar length share a batch, because padding takes time.
            order=lambda asked: (len(asked[1].request.ids), asked[1].rollout_id),
            max_batch_size=max_batch_size,
            quiet_seconds=quiet_seconds,
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the sampled completion for a request.

        The turns of a started rollout continue the sampled ids, as in training (`wander.models.policy`).
        """
        if request.tools:
            self.format.check_tools()
        kept = self._begun.get(request.rollout_id, {})
        conversation, _ = update_conversation(
            self.format, kept.get(request.conversation), request, room_of(request)
        )
        sample_request = sample_request_of(request, list(conversation.ids), self.sampler.context_length)
        job = SamplingJob(request.rollout_id, 0, sample_request)
        sample = await self._batcher.submit(request.rollout_id, (request.conversation, job))
        response = response_of(self.format, request, sample_request, sample, conversation.left_out)
        if request.rollout_id in self._begun:
            self.format.append_completion(conversation, sample.ids)
            conversation.said = response.message
            kept[request.conversation] = conversation
        return response

    def check_tools(self) -> None:
        """Raise `InvalidResponse` if the chat template does not show tools, or calls cannot be read."""
        self.format.check_tools()

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Raise `ModelError` for a sampling argument that is unknown, or exceeds the model's context."""
        require_sampling(sampling, self.sampler.context_length)

    def warnings(self) -> list[str]:
        """Return what a person should know about how the model writes turns."""
        problem = ending_problem(self.format)
        return [] if problem is None else [problem]

    def _sample(self, jobs: Sequence[tuple[str, SamplingJob]]) -> list[Sample]:
        names, requests = [name for name, _ in jobs], [job.request for _, job in jobs]
        cache = self._cache_of(names, requests)
        # Remove the cache while it is written, so that it is not reused if sampling fails.
        self._cached = None
        try:
            samples = self.sampler.sample(requests, cache)
            if cache is not None and self._begun:  # otherwise it will not be used again
                self._cached = (names, cache)
            return samples
        except RuntimeError as error:  # torch raises it, mostly if it runs out of memory
            raise ModelError(
                f"the model failed on a batch of {len(jobs)}: {str(error).splitlines()[0]}",
                hint="use a smaller batch size, which needs less memory",
            ) from error

    def _cache_of(self, names: list[str], requests: list[SampleRequest]) -> ConversationCache | None:
        """Return the cache of the last batch if conversations continue from it, or a new cache.

        Conversations that are not in the cache are computed from their start. All conversations are, if none
        is in the cache or if most of its columns are holes.
        """
        known, cache = self._cached or ([], None)
        if cache is not None and cache.used <= 2 * max(len(request.ids) for request in requests):
            places: dict[str, int] = {name: place for place, name in enumerate(known)}
            rows = [
                place
                if (place := places.get(name)) is not None
                and len(cache.tokens[place]) < len(request.ids)
                and cache.tokens[place] == request.ids[: len(cache.tokens[place])]
                else None
                for name, request in zip(names, requests, strict=True)
            ]
            if any(row is not None for row in rows):
                cache.select(rows)
                return cache
        return self.sampler.new_cache()

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight, so that batches wait for its requests."""
        self._begun.setdefault(rollout_id, {})
        self._batcher.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Stop waiting for a rollout."""
        self._begun.pop(rollout_id, None)
        if not self._begun:
            self._cached = None  # it will not be used again
        self._batcher.end(rollout_id)

    def describe(self) -> dict[str, Any]:
        """Return the facts that identify the model: digests of its weights and chat template, device,
        dtype."""
        return {
            **super().describe(),
            "revision": self.loaded.revision,
            "weights_sha256": weights_digest(self.loaded.path) if self.loaded.path else None,
            **self.format.describe(),
            "device": str(self.loaded.model.device),
            "dtype": self.dtype,
        }

    async def close(self) -> None:
        """Stop the thread that computes batches."""
        self._batcher.close()


def room_of(request: ModelRequest) -> int:
    """Return the maximum number of tokens of the next turn."""
    return request.sampling.max_tokens or DEFAULT_MAX_TOKENS


def require_sampling(sampling: SamplingArgs, context_length: int) -> dict[str, Any]:
    """Return the given sampling arguments; raises `ModelError` for an argument that is not supported."""
    given = sampling.given()
    unknown = sorted(set(given) - KNOWN_SAMPLING)
    if unknown:
        raise ModelError(
            f"models in this process do not support the sampling argument `{unknown[0]}`",
            hint=f"supported arguments are {', '.join(sorted(KNOWN_SAMPLING))}",
        )
    if (limit := sampling.compact_at) is not None and limit > context_length:
        raise ModelError(
            f"`compact_at` is {limit}, but the model accepts at most {context_length} tokens",
            hint=f"use {context_length} or less",
        )
    return given


def sample_request_of(request: ModelRequest, ids: list[int], context_length: int) -> SampleRequest:
    """Convert a request's sampling arguments to those of the sampler.

    Raises `ContextOverflow` if the context has no room for another token, and `ModelError` for an unsupported
    sampling argument.
    """
    given = require_sampling(request.sampling, context_length)
    room = (request.sampling.compact_at or context_length) - len(ids)
    if room < 1:
        raise ContextOverflow(f"the conversation has {len(ids)} tokens, the model accepts {context_length}")
    return SampleRequest(
        ids=ids,
        max_tokens=min(room_of(request), room),
        temperature=given.get("temperature", 1.0),
        top_p=given.get("top_p", 1.0),
        top_k=int(given.get("top_k", 0)),
        min_p=float(given.get("min_p", 0.0)),
        stop=tuple(given.get("stop", ())),
        seed=request.seed,
    )


def response_of(
    form: ChatFormat,
    asked: ModelRequest,
    request: SampleRequest,
    sample: Sample,
    left_out: tuple[int, int] | None = None,
) -> ModelResponse:
    """Build the response from a sample. It is not validated, because all values come from this package."""
    return ModelResponse.assemble(
        message=form.read(request.ids, sample.ids, request.stop, asked.tools, asked.turn),
        finish_reason=sample.finish_reason,
        usage=Usage(prompt_tokens=len(request.ids), completion_tokens=len(sample.ids)),
        tokens=TurnTokens.assemble(
            prompt_ids=request.ids, completion_ids=sample.ids, logprobs=sample.logprobs, step=sample.step
        ),
        left_out=left_out,
        seconds=None,
        cached=False,
    )
