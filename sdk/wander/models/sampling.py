"""Batched sampling of completions from a causal language model.

Each row has its own random generator, seeded by its request, and samples by inverting the cumulative
distribution. Its result depends on the other rows of the batch only through the last bits of the logits.

Models whose layers all use full attention keep their keys and values between the turns of a conversation
(wander.models.decoding). Other Hugging Face causal models (such as LFM2 with convolutions, or models with
sliding windows) use their own cache and read the conversation again at each turn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from wander.errors import InvalidResponse
from wander.models.decoding import ConversationCache, DecodePlan, Decoder, plan_for

if TYPE_CHECKING:
    from wander.models.chat import ChatFormat

TELLINGS = 8
"""Maximum number of parts in which the answers of a batch are delivered. Each part costs messages to other
processes."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A completion to sample."""

    ids: list[int]
    """Token ids of the whole context."""
    max_tokens: int
    temperature: float = 1.0
    """Temperature; 0 always takes the most probable token."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of most probable tokens to sample from; 0 means all."""
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int = 0

    @property
    def plain(self) -> bool:
        """Whether the distribution is not truncated."""
        return self.top_p >= 1.0 and self.top_k <= 0 and self.min_p <= 0.0


@dataclass(slots=True)
class Sample:
    """A sampled completion."""

    ids: list[int] = field(default_factory=list)
    """Sampled ids, with the end-of-turn token if it was sampled."""
    logprobs: list[float] = field(default_factory=list)
    """Natural-log probability of each id under the distribution that it was drawn from. For greedy choices,
    it is the model's distribution at temperature 1."""
    entropy: float = 0.0
    """Sum over the tokens of the entropy in nats of the untruncated distribution."""
    finish_reason: Literal["stop", "length"] = "length"
    step: int | None = None
    """Training step of the weights, if the engine knows it."""


def parameters_of(requests: Sequence[SampleRequest], vocabulary: int) -> torch.Tensor:
    """Return the parameters of the rows' distributions (`wander.models.decoding.distribution`)."""
    columns = [(r.temperature or 1.0, r.top_p, r.top_k or vocabulary, r.min_p) for r in requests]
    greedy = [float(r.temperature == 0) for r in requests]
    return torch.cat([torch.tensor(columns).T, torch.tensor([greedy])])


def uniform_numbers(requests: Sequence[SampleRequest]) -> torch.Tensor:
    """Return uniform random numbers with shape (rows, longest max_tokens), each row with its own seed."""
    numbers = torch.zeros(len(requests), max(r.max_tokens for r in requests), dtype=torch.float64)
    for row, request in enumerate(requests):
        generator = torch.Generator().manual_seed(request.seed % 2**63)
        numbers[row, : request.max_tokens] = torch.rand(
            request.max_tokens, generator=generator, dtype=torch.float64
        )
    return numbers


class Sampler:
    """Samples from a model. It is not thread-safe, so callers use a single thread."""

    def __init__(
        self, model: Any, tokenizer: Any, *, autocast: bool = False, plan: DecodePlan | None = None
    ) -> None:
        """Create a sampler; with `autocast`, the model computes in bfloat16.

        If `plan` is None, it is the plan for the model's device.
        """
        self.tokenizer = tokenizer
        self.autocast = autocast
        self.end_ids = end_of_turn_ids(model, tokenizer)
        self.keeps_cache = keeps_cache(model.config)
        """Whether conversations can keep their keys and values between turns."""
        self.context_length = context_length_of(model)
        self.plan = plan or plan_for(model, keeps_cache=self.keeps_cache, autocast=autocast)
        layers = int(model.config.get_text_config().num_hidden_layers)
        self.decoder = Decoder(model, layers=layers, context_length=self.context_length, plan=self.plan)

    @property
    def model(self) -> Any:
        """The model. It may be replaced by one with the same architecture."""
        return self.decoder.model

    @model.setter
    def model(self, model: Any) -> None:
        self.decoder.model = model

    def new_cache(self) -> ConversationCache | None:
        """Return an empty cache for continued conversations, or None if the model does not support it."""
        return ConversationCache(self.decoder) if self.keeps_cache else None

    @torch.inference_mode()
    def sample(
        self,
        requests: Sequence[SampleRequest],
        cache: ConversationCache | None = None,
        ended: Callable[[dict[int, Sample]], None] = lambda samples: None,
    ) -> list[Sample]:
        """Sample a completion for each request; `ended` receives completions that finish early, by row.

        The rows of `cache` must be those of the requests, and every request's ids must start with the cached
        ids of its row. Only the remaining ids are computed.
        """
        training = self.model.training
        self.model.eval()
        self.decoder.forget_moved_weights()
        try:
            # Weights that are cast for one token stay cast until the end of the block.
            with torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                return _Turn(self, requests, cache or self.new_cache() or self._one_turn(), ended).run()
        finally:
            self.model.train(training)

    def _one_turn(self) -> ConversationCache:
        """Return the rows of a turn of a model that uses a cache of its own."""
        plan = DecodePlan(self.plan.look_every)
        return ConversationCache(Decoder(self.model, layers=0, context_length=self.context_length, plan=plan))


class _Turn:
    """A batch while it is sampled."""

    def __init__(
        self,
        sampler: Sampler,
        requests: Sequence[SampleRequest],
        cache: ConversationCache,
        ended: Callable[[dict[int, Sample]], None],
    ) -> None:
        self.sampler = sampler
        self.requests = requests
        self.samples = [Sample() for _ in requests]
        self.cache = cache
        self.ended = ended
        self.untold: list[int] = []
        """Rows that finished and were not yet passed to `ended`."""
        self.live = list(range(len(requests)))
        """Rows that are still sampling."""
        self.batch = list(self.live)
        """Rows that the model computes: the live rows, and rows that finished since the last narrowing."""
        self.current = cache
        """The rows of the batch, which are a copy after the first narrowing."""
        self.copied = 0
        """Columns from this one on are not yet in the cache if `current` is a copy."""
        self.sampled = 0
        """Number of tokens that the live rows have sampled."""
        self.uniforms = uniform_numbers(requests)

    def run(self) -> list[Sample]:
        logits = self._read()
        vocabulary = logits.shape[1]
        first = self.cache.used
        look_every = self.sampler.plan.look_every
        self.cache.reserve(look_every)
        self._load(vocabulary)
        self._describe()
        buffers = self.current.held
        buffers.choose(torch.nn.functional.pad(logits, (0, 0, 0, len(buffers.mask) - len(logits))))
        unseen = 1
        while True:
            steps = min(look_every, self._left()) - unseen
            self.current.held.advance(steps)
            self._look(unseen + steps)
            if not self.live:
                break
            moved = self._narrow()
            if self.current.reserve(look_every) or moved:
                self._load(vocabulary)
            self._describe()
            unseen = 0
        self._merge()
        self.cache.end_turn(first, [sample.ids[:-1] for sample in self.samples])
        return self.samples

    def _left(self) -> int:
        """Return how many more tokens the longest live row may sample."""
        return max(self.requests[row].max_tokens for row in self.live) - self.sampled

    def _look(self, columns: int) -> None:
        """Read the last columns from the device, and find out which rows have ended."""
        found = self.current.held.look(len(self.batch), columns)
        live = set(self.live)
        still: list[int] = []
        for row, ids, logprobs, entropies in zip(self.batch, *found, strict=True):
            if row in live:
                (self.untold if self._extend(row, ids, logprobs, entropies) else still).append(row)
        self.sampled += columns
        self.live = still
        # the remaining answers are returned with the batch
        if still and len(self.untold) >= len(self.requests) / TELLINGS:
            self.ended({row: self.samples[row] for row in self.untold})
            self.untold = []

    def _extend(self, row: int, ids: list[int], logprobs: list[float], entropies: list[float]) -> bool:
        """Add tokens to a row's completion up to its end; return whether it ended."""
        request, sample, tokenizer = self.requests[row], self.samples[row], self.sampler.tokenizer
        ids = ids[: request.max_tokens - len(sample.ids)]
        end = next((n for n, token in enumerate(ids, 1) if token in self.sampler.end_ids), None)
        if request.stop:
            end = count_to_stop(tokenizer, request.stop, sample.ids, ids[:end]) or end
        if not all(map(math.isfinite, entropies[: end or len(ids)])):
            raise RuntimeError(
                "the logits are not finite: the weights diverged or exceed the range of their precision"
            )
        for token, logprob, entropy in zip(ids[:end], logprobs, entropies, strict=False):
            sample.ids.append(token)
            sample.logprobs.append(logprob)
            sample.entropy += entropy
        if end is not None:
            sample.finish_reason = "stop"
        return end is not None or len(sample.ids) == request.max_tokens

    def _read(self) -> torch.Tensor:
        """Compute the contexts and return the logits after each row's last token."""
        contexts = [request.ids for request in self.requests]
        cache = self.cache
        if cache.tokens:
            return cache.read([ids[len(known) :] for ids, known in zip(contexts, cache.tokens, strict=True)])
        if not cache.decoder.layers:
            cache.start(len(contexts))
            return cache.read(contexts)
        # The rollouts of a group share their first prompt, so each distinct context is computed only once.
        distinct = list(dict.fromkeys(tuple(ids) for ids in contexts))
        place = {ids: number for number, ids in enumerate(distinct)}
        shared = len(os.path.commonprefix([ids[:-1] for ids in distinct]))  # noqa: RUF071 - of ids
        if shared * (len(distinct) - 1) < MOST_TWICE:
            cache.start(len(distinct))
            shared = 0
        else:  # the contexts share a long beginning, such as a system prompt or worked examples
            cache.start(1)
            cache.read([list(distinct[0][:shared])])
            cache.select([0] * len(distinct))
        logits = cache.read([list(ids[shared:]) for ids in distinct])
        rows = [place[tuple(ids)] for ids in contexts]
        cache.select(rows)
        return logits[rows]

    def _narrow(self) -> bool:
        """Compute only the live rows from now on, if they are few; return whether they are."""
        decoder = self.cache.decoder
        rows = self.current.held.window.rows
        if (
            not decoder.layers
            or len(self.live) > len(self.batch) // 2
            or decoder.rows_for(len(self.live)) == rows
        ):
            return False
        self._merge()
        place = {row: number for number, row in enumerate(self.batch)}
        self.copied = self.current.used
        self.current = self.current.narrow([place[row] for row in self.live])
        self.batch = list(self.live)
        return True

    def _merge(self) -> None:
        """Copy the new columns of a narrowed batch into the cache."""
        if self.current is not self.cache:
            self.cache.merge(self.current, self.batch, self.copied)

    def _load(self, vocabulary: int) -> None:
        """Give the buffers what they need to sample the next tokens."""
        requests = [self.requests[row] for row in self.batch]
        computed = max(self.sampled - 1, 0)
        self.current.held.load(
            parameters_of(requests, vocabulary),
            self.uniforms[self.batch, computed:],
            [self.samples[row].ids[-1] if self.sampled else 0 for row in self.batch],
            [len(request.ids) + computed for request in requests],
        )

    def _describe(self) -> None:
        """Tell the buffers what the live rows need."""
        buffers = self.current.held
        requests = [self.requests[row] for row in self.live]
        buffers.truncates = not all(request.plain for request in requests)
        buffers.has_greedy = not all(request.temperature for request in requests)
        known = self.current.used - max(self.sampled - 1, 0)
        buffers.is_whole = len(self.live) == len(self.batch) and all(
            len(request.ids) == known for request in requests
        )


def count_to_stop(tokenizer: Any, stops: Sequence[str], before: list[int], new: list[int]) -> int | None:
    """Return the number of new ids after which the text contains a stop string; None if it does not.

    The text before them contains no stop string, so only its end is decoded. The first characters of an end
    may differ from those of the whole text, because a character may consist of several tokens.
    """

    def text_of(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    def is_stopped(ids: list[int]) -> bool:
        text = text_of(ids)
        return any(stop in text for stop in stops)

    reach = max(map(len, stops)) + UNSURE_CHARACTERS
    start = max(0, len(before) - reach)
    while start and len(text_of(before[start:])) < reach:
        start = max(0, start - reach)
    if not is_stopped(before[start:] + new):
        return None
    return next((n for n in range(1, len(new) + 1) if is_stopped(before + new[:n])), None)


UNSURE_CHARACTERS = 16
"""Number of additional characters to decode. If only the last tokens of a text are decoded, the first
characters may differ from those of the whole text."""

MOST_TWICE = 1024
"""Maximum number of tokens in a shared beginning of new conversations that are computed repeatedly. A longer
shared beginning is computed once, in advance."""

CACHED_TYPES = frozenset({"llama", "qwen2", "qwen3", "smollm3"})
"""Model types whose layers use a plain key-value cache; tests check each with a tiny configuration."""


def keeps_cache(config: Any) -> bool:
    """Return whether a plain key-value cache is sufficient to continue a conversation with this model."""
    config = config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return config.model_type in CACHED_TYPES and all(kind == "full_attention" for kind in kinds)


def end_of_turn_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return all ids that end a completion, declared by the tokenizer or by the model."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    return frozenset(token for token in ids if token is not None)


def find_unknown_end(form: ChatFormat) -> str | None:
    """Return the special token that closes a turn if it is not among the ids that end a completion.

    A turn then continues after the model has sampled this token. None if turns can end.
    """
    mark = "content"
    try:
        text = form.render(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}], prompt=False
        )
    except InvalidResponse:
        return None
    ids = form.encode(text.rpartition(mark)[2])
    added = form.tokenizer.added_tokens_decoder
    if form.end_ids.intersection(ids):
        return None
    return next((added[token].content for token in ids if token in added and added[token].special), None)


def ending_problem(form: ChatFormat) -> str | None:
    """Return why the turns of a model cannot end, with the remedy; None if they can."""
    token = find_unknown_end(form)
    if token is None:
        return None
    return (
        f"the model's turns cannot end: its chat template closes them with `{token}`, which neither the "
        "tokenizer nor generation_config.json declares as an end, so each turn runs up to its limit. Add "
        f"{form.tokenizer.convert_tokens_to_ids(token)} to `eos_token_id` in its generation_config.json"
    )


def context_length_of(model: Any) -> int:
    """Return the model's context length, or a very large number if the model does not state it."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 2**31) or 2**31)
