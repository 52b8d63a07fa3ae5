"""Batched sampling of completions from a causal language model.

Each row has its own random generator, seeded by its request, and samples by inverting the cumulative
distribution. Its result depends on the other rows of the batch only through the last bits of the logits.

Models whose layers all use full attention keep their keys and values between the turns of a conversation
(wander.models.kv). Other Hugging Face causal models (such as LFM2 with convolutions, or models with sliding
windows) use their own cache and read the conversation again at each turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from wander.errors import InvalidResponse
from wander.models.kv import ConversationCache

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


def distribution(
    logits: torch.Tensor, requests: Sequence[SampleRequest]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities after temperature and truncation, and the entropies before truncation.

    `logits` and the log-probabilities have shape (rows, vocabulary), the entropies have shape (rows,).
    """
    temperature = torch.tensor([r.temperature or 1.0 for r in requests], device=logits.device)
    logprobs = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    probabilities = logprobs.exp()
    entropies = -(probabilities * logprobs.clamp(min=-1e4)).sum(-1)
    if all(request.plain for request in requests):
        return logprobs, entropies
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    size = ordered.shape[1]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    keep = before < column([r.top_p for r in requests])
    keep &= torch.arange(size, device=logits.device) < column([r.top_k or size for r in requests])
    keep &= ordered >= column([r.min_p for r in requests]) * ordered[:, :1]
    kept = torch.zeros_like(keep).scatter(1, order, keep)
    return torch.log_softmax(logprobs.masked_fill(~kept, -torch.inf), dim=-1), entropies


def draw(logprobs: torch.Tensor, requests: Sequence[SampleRequest], uniforms: torch.Tensor) -> torch.Tensor:
    """Pick an id for each row: the first id whose cumulative probability exceeds the row's uniform number."""
    cumulative = logprobs.double().exp().cumsum(-1)
    threshold = uniforms.to(logprobs.device)[:, None] * cumulative[:, -1:]
    picked = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logprobs.shape[1] - 1)
    if all(request.temperature for request in requests):
        return picked
    greedy = torch.tensor([request.temperature == 0 for request in requests], device=logprobs.device)
    return torch.where(greedy, logprobs.argmax(-1), picked)


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

    def __init__(self, model: Any, tokenizer: Any, *, autocast: bool = False) -> None:
        """Create a sampler; with `autocast`, the model computes in bfloat16."""
        self.model = model
        self.tokenizer = tokenizer
        self.autocast = autocast
        self.end_ids = end_of_turn_ids(model, tokenizer)
        self.keeps_cache = keeps_cache(model.config)
        """Whether conversations can keep their keys and values between turns."""
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        self.context_length = context_length_of(model)

    def new_cache(self) -> ConversationCache | None:
        """Return an empty cache for continued conversations, or None if the model does not support it."""
        return ConversationCache(self.layers, self.model.device) if self.keeps_cache else None

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
        try:
            # Weights that are cast for one token stay cast until the end of the block.
            with torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                return _Stepper(self, requests, cache or self.new_cache(), ended).run()
        finally:
            self.model.train(training)


class _Stepper:
    """The state of a batch while it is sampled."""

    def __init__(
        self,
        sampler: Sampler,
        requests: Sequence[SampleRequest],
        cache: ConversationCache | None,
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
        self.past: Any = None
        self.mask = torch.zeros(0)
        self.uniforms = uniform_numbers(requests)

    def run(self) -> list[Sample]:
        logits = self._read()
        step = 0
        while True:
            self._choose(logits, step)
            if not self.live:
                break
            logits = self._step()
            step += 1
        if self.cache is not None:
            self.cache.focus(None)
        return self.samples

    def _choose(self, logits: torch.Tensor, step: int) -> None:
        if len(self.live) < len(self.batch):
            place = {row: number for number, row in enumerate(self.batch)}
            logits = logits[[place[row] for row in self.live]]
        requests = [self.requests[row] for row in self.live]
        logprobs, entropies = distribution(logits, requests)
        if not torch.isfinite(entropies).all():
            raise RuntimeError(
                "the logits are not finite: the weights diverged or exceed the range of their precision"
            )
        picked = draw(logprobs, requests, self.uniforms[self.live, step])
        chosen = logprobs.gather(1, picked[:, None])[:, 0].tolist()
        still: list[int] = []
        for row, token, logprob, entropy in zip(
            self.live, picked.tolist(), chosen, entropies.tolist(), strict=True
        ):
            sample = self.samples[row]
            sample.ids.append(token)
            sample.logprobs.append(logprob)
            sample.entropy += entropy
            (self.untold if self._finishes(row, sample, token) else still).append(row)
        self.live = still
        # the remaining answers are returned with the batch
        if still and len(self.untold) >= len(self.requests) / TELLINGS:
            self.ended({row: self.samples[row] for row in self.untold})
            self.untold = []

    def _finishes(self, row: int, sample: Sample, token: int) -> bool:
        """Return whether this token ends the completion, and note that it stopped by itself."""
        request = self.requests[row]
        text = ""
        if request.stop:
            text = self.sampler.tokenizer.decode(sample.ids, skip_special_tokens=True)
        if token in self.sampler.end_ids or any(stop in text for stop in request.stop):
            sample.finish_reason = "stop"
            return True
        return len(sample.ids) >= request.max_tokens

    def _read(self) -> torch.Tensor:
        """Compute the contexts and return the logits after each row's last token."""
        contexts = [request.ids for request in self.requests]
        cache = self.cache
        if cache is None:
            width = max(len(ids) for ids in contexts)
            padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in contexts])
            self.mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in contexts])
            positions = (self.mask.cumsum(1) - 1).clamp(min=0)
            return self._forward(
                {"input_ids": padded, "attention_mask": self.mask, "position_ids": positions}
            )
        if cache.tokens:
            block = [ids[len(known) :] for ids, known in zip(contexts, cache.tokens, strict=True)]
            return self._forward(cache.append(block))
        # The rollouts of a group share their first prompt, so each distinct context is computed only once.
        distinct = list(dict.fromkeys(tuple(ids) for ids in contexts))
        place = {ids: number for number, ids in enumerate(distinct)}
        shared = len(os.path.commonprefix([ids[:-1] for ids in distinct]))  # noqa: RUF071 - of ids
        if shared * (len(distinct) - 1) < MOST_TWICE:
            cache.start(len(distinct))
            shared = 0
        else:  # the contexts share a long beginning, such as a system prompt or worked examples
            cache.start(1)
            self._forward(cache.append([list(distinct[0][:shared])]))
            cache.select([0] * len(distinct))
        logits = self._forward(cache.append([list(ids[shared:]) for ids in distinct]))
        rows = [place[tuple(ids)] for ids in contexts]
        cache.select(rows)
        return logits[rows]

    def _step(self) -> torch.Tensor:
        """Compute the logits after the tokens that were just chosen."""
        if self.cache is None:
            last = torch.tensor([[sample.ids[-1]] for sample in self.samples])
            alive = torch.zeros(len(self.samples), 1, dtype=torch.long)
            alive[self.live] = 1
            self.mask = torch.cat([self.mask, alive], dim=1)
            positions = self.mask.sum(1, keepdim=True) - 1
            return self._forward({"input_ids": last, "attention_mask": self.mask, "position_ids": positions})
        if len(self.live) <= len(self.batch) // 2:
            self.batch = list(self.live)
            self.cache.focus(self.batch)
        live = set(self.live)
        return self._forward(
            self.cache.append([self.samples[row].ids[-1:] if row in live else [] for row in self.batch])
        )

    def _forward(self, inputs: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
        device = self.sampler.model.device
        output = self.sampler.model(
            **{name: None if value is None else value.to(device) for name, value in inputs.items()},
            past_key_values=self.past if self.cache is None else self.cache.past,
            use_cache=True,
            logits_to_keep=1,
        )
        self.past = output.past_key_values
        logits: torch.Tensor = output.logits[:, -1]
        return logits


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
