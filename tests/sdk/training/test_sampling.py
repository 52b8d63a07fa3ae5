from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from wander.models.decoding import distribution, draw
from wander.models.engines.base import SamplingJob
from wander.models.engines.transformers import TransformersEngine
from wander.models.loading import LoadedModel, load_model
from wander.models.sampling import (
    CACHED_TYPES,
    Sample,
    Sampler,
    SampleRequest,
    parameters_of,
    uniform_numbers,
)

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "smollm3": {},
    "lfm2": {"full_attn_idxs": [1], "block_multiple_of": 8, "conv_L_cache": 3},
    "gemma3_text": {
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
    },
}


class Words:
    """The part of a tokenizer that sampling uses."""

    eos_token_id = 1

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        return "".join(chr(96 + i % 26) for i in ids)


def model_of(family: str, **config: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**COMMON, **FAMILIES[family], **config})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        # Large random weights, so that a mistake in positions or masks changes the distribution visibly.
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def reference_logprobs(model: Any, context: list[int], completion: list[int]) -> list[float]:
    """Score a completion in one forward pass, alone and without padding."""
    ids = torch.tensor([[*context, *completion]])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0].float().log_softmax(-1)
    return [float(logprobs[len(context) - 1 + i, token]) for i, token in enumerate(completion)]


def contexts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, 97, (n,), generator=generator).tolist() for n in (3, 17, 9, 9, 30)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logprobs_equal_those_without_padding(family: str) -> None:
    model = model_of(family)
    requests = [SampleRequest(ids, max_tokens=4 + 3 * n, seed=n) for n, ids in enumerate(contexts())]
    for request, sample in zip(requests, Sampler(model, Words()).sample(requests), strict=True):
        assert 1 <= len(sample.ids) <= request.max_tokens
        expected = reference_logprobs(model, request.ids, sample.ids)
        assert sample.logprobs == pytest.approx(expected, abs=2e-4)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fill memory that nobody has written with NaN, so that reading it shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("family", sorted(CACHED_TYPES))
def test_reusing_the_cache_over_turns_changes_nothing(family: str) -> None:
    model = model_of(family)
    sampler = Sampler(model, Words())
    cache = sampler.new_cache()
    assert cache is not None
    rows = contexts()
    histories = [list(ids) for ids in rows]
    alive = cached = list(range(len(rows)))
    for turn in range(3):
        requests = [
            SampleRequest(list(histories[row]), max_tokens=2 + 4 * row, seed=10 * turn + row) for row in alive
        ]
        if cache.tokens:
            cache.select([cached.index(row) for row in alive])
        samples = sampler.sample(requests, cache)
        fresh = sampler.sample(requests)
        for row, sample, again in zip(alive, samples, fresh, strict=True):
            assert sample.ids == again.ids
            assert sample.logprobs == pytest.approx(again.logprobs, abs=2e-4)
            assert sample.logprobs == pytest.approx(
                reference_logprobs(model, histories[row], sample.ids), abs=2e-4
            )
            histories[row] += [*sample.ids, *([7, 8, 9] * (row + 1))[: row + 2]]
        cached = alive
        alive = [row for row in alive if row != turn]


@pytest.mark.parametrize("lengths", [pytest.param([50, 50], marks=pytest.mark.full), [50, 40]])
def test_a_long_completion_depends_on_its_whole_context(lengths: list[int]) -> None:
    """Far more tokens than a cache has free columns after it was narrowed to fewer rows."""
    model, words = model_of("llama"), Words()
    model.generation_config.eos_token_id = words.eos_token_id = None  # type: ignore[assignment]
    sampler = Sampler(model, words)
    asked = zip(lengths, [20, 200], strict=True)
    requests = [
        SampleRequest([2 + (7 * n + place) % 90 for n in range(length)], tokens, seed=place)
        for place, (length, tokens) in enumerate(asked)
    ]
    samples = sampler.sample(requests)
    sampler.keeps_cache = False
    for request, sample, plain in zip(requests, samples, sampler.sample(requests), strict=True):
        assert len(sample.ids) == request.max_tokens
        assert sample.ids == plain.ids
        assert sample.logprobs == pytest.approx(plain.logprobs, abs=2e-4)
        assert sample.logprobs == pytest.approx(reference_logprobs(model, request.ids, sample.ids), abs=2e-4)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("at_once", [2, 16])
def test_idle_conversations_keep_their_cache(at_once: int) -> None:
    """Two players of five games, who ask in any order: nothing is read twice, and nothing changes."""
    model = model_of("llama")
    engine = TransformersEngine(model, Words(), max_batch_size=at_once)
    histories = {f"{game}#{player}": contexts()[game] for game in range(5) for player in "XO"}
    known: dict[str, int] = {}
    for name in histories:
        engine.begin(name)
    for turn, players in enumerate(["XXOXO", "OXXOO", "XOXXO", "OOOXX", "XX XO"]):
        names = [f"{game}#{player}" for game, player in enumerate(players) if player != " "]
        requests = [SampleRequest(list(histories[name]), 5, seed=turn) for name in names]
        jobs = [
            SamplingJob(name, order, request)
            for order, (name, request) in enumerate(zip(names, requests, strict=True))
        ]
        samples = engine._sample(jobs, lambda known: None)
        assert engine.take_totals().cached_tokens == sum(known.get(name, 0) for name in names)
        for name, request, sample in zip(names, requests, samples, strict=True):
            assert sample.logprobs == pytest.approx(
                reference_logprobs(model, request.ids, sample.ids), abs=2e-4
            )
            histories[name] += [*sample.ids, 7, 8, 9]
            known[name] = len(request.ids) + len(sample.ids) - 1
        if turn == 3:
            engine.end("2#X")
            engine.end("2#O")
    assert set(engine._cohorts) == {name for name in known if not name.startswith("2")}


def test_models_without_a_plain_cache_are_not_cached() -> None:
    assert Sampler(model_of("lfm2"), Words()).new_cache() is None
    assert Sampler(model_of("gemma3_text"), Words()).new_cache() is None


def test_a_sample_does_not_depend_on_its_batch() -> None:
    sampler = Sampler(model_of("llama"), Words())
    requests = [SampleRequest(ids, max_tokens=12, seed=n) for n, ids in enumerate(contexts())]
    together = sampler.sample(requests)
    alone = [sampler.sample([request])[0] for request in reversed(requests)][::-1]
    assert [sample.ids for sample in together] == [sample.ids for sample in alone]
    repeated = sampler.sample([requests[0]] * 3)
    assert repeated[0].ids == repeated[1].ids == repeated[2].ids


def test_early_rows_are_reported_once_and_complete() -> None:
    sampler = Sampler(model_of("llama"), Words())
    requests = [SampleRequest([2, 3 + n], max_tokens=1 + n // 2, seed=n) for n in range(20)]
    told: list[dict[int, Sample]] = []
    copies: list[dict[int, list[int]]] = []

    def ended(samples: dict[int, Sample]) -> None:
        told.append(samples)
        copies.append({row: list(sample.ids) for row, sample in samples.items()})

    samples = sampler.sample(requests, sampler.new_cache(), ended)
    rows = [row for part in told for row in part]
    assert rows
    assert len(rows) == len(set(rows)) < 20  # the last ones are returned
    assert all(samples[row] is sample for part in told for row, sample in part.items())
    assert all(samples[row].ids == ids for part in copies for row, ids in part.items())
    assert [len(sample.ids) for sample in samples] == [
        len(sample.ids) for sample in sampler.sample(requests, sampler.new_cache())
    ]


def test_greedy_sampling_equals_generate() -> None:
    model = model_of("llama")
    requests = [SampleRequest(ids, max_tokens=10, temperature=0.0) for ids in contexts()]
    for request, sample in zip(requests, Sampler(model, Words()).sample(requests), strict=True):
        ids = torch.tensor([request.ids])
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10)
        assert sample.ids == whole[0, len(request.ids) :].tolist()


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    requests = [SampleRequest([2], max_tokens=1, seed=seed) for seed in range(4000)]
    logprobs = probabilities.log().expand(4000, 4)
    picked = draw(logprobs, uniform_numbers(requests)[:, 0])
    shares = torch.bincount(picked, minlength=4) / 4000
    assert shares[1] == 0
    assert torch.allclose(shares, probabilities, atol=0.03)


def test_truncation_keeps_the_right_tokens() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]] * 4))
    requests = [
        SampleRequest([2], 1, top_p=0.6),
        SampleRequest([2], 1, top_k=1),
        SampleRequest([2], 1, min_p=0.35),
        SampleRequest([2], 1, temperature=0.5),
    ]
    logprobs, entropies = distribution(logits, parameters_of(requests, 4), truncates=True)
    probabilities = logprobs.exp()
    assert probabilities[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-6)
    assert probabilities[1].tolist() == pytest.approx([1, 0, 0, 0], abs=1e-6)
    assert probabilities[2].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-6)
    squares = [0.25, 0.0625, 0.0225, 0.01]
    assert probabilities[3].tolist() == pytest.approx([s / sum(squares) for s in squares], abs=1e-6)
    assert entropies[0] == pytest.approx(
        -sum(p * torch.tensor(p).log().item() for p in (0.5, 0.25, 0.15, 0.1))
    )


def test_rows_end_at_the_end_token_a_stop_text_or_the_limit(tiny: Path) -> None:
    loaded: LoadedModel = load_model(tiny, device="cpu")
    sampler = Sampler(loaded.model, loaded.tokenizer)
    context = loaded.tokenizer.encode("<|user|>hi<|assistant|>")
    long = sampler.sample([SampleRequest(context, max_tokens=40, seed=n) for n in range(20)])
    for sample in long:
        ended = sample.ids[-1] == loaded.tokenizer.eos_token_id
        assert sample.finish_reason == ("stop" if ended else "length")
        assert ended or len(sample.ids) == 40
        assert loaded.tokenizer.eos_token_id not in sample.ids[:-1]
    text = loaded.tokenizer.decode(next(s.ids for s in long if s.finish_reason == "length"))
    number = next(n for n, s in enumerate(long) if s.finish_reason == "length")
    stop = text[5:7]
    stopped = sampler.sample([SampleRequest(context, max_tokens=40, seed=number, stop=(stop,))])[0]
    assert stopped.finish_reason == "stop"
    assert stop in loaded.tokenizer.decode(stopped.ids)
    assert len(stopped.ids) < 40


def test_logits_that_are_not_finite_are_an_error() -> None:
    model = model_of("llama")
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(RuntimeError, match="logits are not finite"):
        Sampler(model, Words()).sample([SampleRequest([2, 3], max_tokens=2)])
