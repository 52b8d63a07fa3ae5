from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from wander.clients.base import ModelRequest, ModelResponse
from wander.environment import LocalEnvironment
from wander.errors import ConfigError, ContextOverflow, InvalidResponse, ModelError
from wander.models.client import TransformersClient
from wander.models.loading import LoadedModel, load_model
from wander.models.policy import PolicyClient
from wander.models.sampling import Sampler, SampleRequest
from wander.train.rollouts.rows import trajectories_of
from wander.types import Rollout, SamplingArgs

from .conftest import bandit

QUESTION = [{"role": "user", "content": "Machine 1. Answer <pull>lever</pull>."}]


@pytest.fixture
def loaded(tiny: Path) -> LoadedModel:
    return load_model(tiny, device="cpu")


def ask(name: str = "r", seed: int = 0, **sampling: Any) -> ModelRequest:
    return ModelRequest(
        rollout_id=name,
        turn=0,
        messages=QUESTION,
        seed=seed,
        sampling=SamplingArgs(**{"max_tokens": 8, **sampling}),
    )


async def answers(client: Any, requests: list[ModelRequest]) -> list[ModelResponse]:
    for request in requests:
        client.begin(request.rollout_id)
    try:
        return list(await asyncio.gather(*(client.complete(request) for request in requests)))
    finally:
        for request in requests:
            client.end(request.rollout_id)


async def test_batched_requests_get_the_same_answers_as_single_ones(loaded: LoadedModel) -> None:
    client = TransformersClient(loaded, max_batch_size=8)
    batches: list[int] = []
    sample = client.sampler.sample
    client.sampler.sample = lambda requests, cache=None: (
        batches.append(len(requests)),
        sample(requests, cache),
    )[1]  # type: ignore[method-assign]
    requests = [ask(f"r{n}", seed=n) for n in range(12)]
    together = await answers(client, requests)
    assert batches == [8, 4]
    alone = [(await answers(client, [request]))[0] for request in requests]
    assert [a.message for a in together] == [a.message for a in alone]
    await client.close()


async def test_a_response_has_usage_tokens_and_text(loaded: LoadedModel) -> None:
    client = TransformersClient(loaded)
    answer = (await answers(client, [ask(temperature=0.0)]))[0]
    assert answer.tokens is not None
    assert answer.usage.prompt_tokens == len(answer.tokens.prompt_ids)
    assert answer.usage.completion_tokens == len(answer.tokens.completion_ids) == len(answer.tokens.logprobs)
    assert answer.message["role"] == "assistant"
    assert loaded.tokenizer.eos_token not in answer.message["content"]
    assert (
        loaded.tokenizer.decode(answer.tokens.prompt_ids) == f"<|user|>{QUESTION[0]['content']}<|assistant|>"
    )
    await client.close()


async def test_a_stop_text_is_cut_off(loaded: LoadedModel) -> None:
    client = TransformersClient(loaded)
    whole = (await answers(client, [ask(seed=4, max_tokens=30)]))[0].message["content"]
    stop = whole[3:5]
    cut = (await answers(client, [ask(seed=4, max_tokens=30, stop=[stop])]))[0]
    assert cut.message["content"] == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    await client.close()


async def test_unsupported_model_features_are_model_errors(loaded: LoadedModel) -> None:
    client = TransformersClient(loaded)
    with pytest.raises(ModelError, match="do not support the sampling argument `logit_bias`"):
        await client.complete(ask(logit_bias={}))
    long = ModelRequest(rollout_id="r", turn=0, messages=[{"role": "user", "content": "word " * 300}])
    with pytest.raises(ContextOverflow, match="the model accepts 256"):
        await client.complete(long)
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
    with pytest.raises(InvalidResponse, match="supports only text"):
        await client.complete(ModelRequest(rollout_id="r", turn=0, messages=picture))
    await client.close()


async def test_a_failing_model_fails_the_requests_not_the_client(loaded: LoadedModel) -> None:
    client = TransformersClient(loaded)
    sample = client.sampler.sample

    def broken(*args: Any) -> Any:
        raise RuntimeError("not enough memory\nlong trace")

    client.sampler.sample = broken  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="batch of 1: not enough memory"):
        await client.complete(ask())
    client.sampler.sample = sample  # type: ignore[method-assign]
    assert (await client.complete(ask())).message["role"] == "assistant"
    await client.close()


async def test_the_manifest_gets_digests_of_weights_and_template(tiny: Path) -> None:
    client = TransformersClient(tiny, device="cpu")
    described = client.describe()
    assert described["model"] == "tiny"
    assert len(described["weights_sha256"]) == len(described["chat_template_sha256"]) == 64
    assert (described["device"], described["dtype"]) == ("cpu", "float32")
    await client.close()


def test_an_unknown_model_name_is_explained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot load a model"):
        TransformersClient(tmp_path)


async def played(client: PolicyClient | TransformersClient, count: int = 6) -> list[Rollout]:
    handle = LocalEnvironment(bandit())
    examples = await handle.examples("train", 0, count)
    names = [f"{n}" for n in range(count)]
    for name in names:
        client.begin(name)
    return await asyncio.gather(
        *(
            handle.rollout(client, example, rollout_id=name, sampling=SamplingArgs(max_tokens=6))
            for name, example in zip(names, examples, strict=True)
        )
    )


async def test_the_policy_continues_its_own_tokens(loaded: LoadedModel) -> None:
    client = PolicyClient(loaded.model, loaded.tokenizer)
    for rollout in await played(client):
        assert rollout.failure is None
        first, second = (turn.tokens for turn in rollout.turns)
        assert first is not None
        assert second is not None
        known = first.prompt_ids + first.completion_ids
        assert second.prompt_ids[: len(known)] == known
        (whole,) = trajectories_of(rollout)
        assert whole.prompt_ids == first.prompt_ids
        assert sum(whole.mask) == len(first.completion_ids) + len(second.completion_ids)
        assert len(whole.completion_ids) == len(whole.mask) == len(whole.logprobs)
        assert [p for p, own in zip(whole.logprobs, whole.mask, strict=True) if not own] == [
            0.0
        ] * whole.mask.count(0)
        between = second.prompt_ids[len(known) :]
        assert "Pull again." in loaded.tokenizer.decode(between)
    assert client.engine.totals.tokens > 0
    assert client.engine.totals.cached_tokens > 0
    await client.close()


async def test_the_cache_between_turns_does_not_change_what_is_sampled(loaded: LoadedModel) -> None:
    cached = PolicyClient(loaded.model, loaded.tokenizer)
    with_cache = await played(cached)
    plain = PolicyClient(loaded.model, loaded.tokenizer, max_batch_size=4)
    plain.engine.sampler.keeps_cache = False
    without = await played(plain)
    assert [r.completion for r in with_cache] == [r.completion for r in without]
    assert plain.engine.totals.cached_tokens == 0
    await cached.close()
    await plain.close()


def counted(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets how many tokens each forward pass computes."""
    read: list[int] = []
    forward = sampler.model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        read.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    monkeypatch.setattr(sampler.model, "forward", counting)
    return read


async def test_an_evaluation_reuses_its_cached_context(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of four of six rollouts hold some whose last turn was in another batch."""
    plain = TransformersClient(loaded)
    plain.sampler.keeps_cache = False
    without = await played(plain)
    for size in (64, 4):
        client = TransformersClient(loaded, max_batch_size=size)
        read = counted(client.sampler, monkeypatch)
        with_cache = await played(client)
        assert [r.completion for r in with_cache] == [r.completion for r in without]
        if size == 64:  # no column is computed twice, but where rows of a batch differ in length
            contexts = [len(turn.tokens.prompt_ids) for r in with_cache for turn in r.turns if turn.tokens]
            assert sum(read) < sum(contexts)
        await client.close()
    await plain.close()


def test_shared_beginnings_are_computed_once(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(loaded.model, loaded.tokenizer)
    shown = loaded.tokenizer.encode("Worked examples. " * 30)
    requests = [
        SampleRequest(ids=[*shown, *loaded.tokenizer.encode(f"Question {n}.")], max_tokens=5, seed=n)
        for n in range(8)
    ]
    together = sampler.sample(requests)
    assert [each.ids for each in together] == [sampler.sample([request])[0].ids for request in requests]
    read = counted(sampler, monkeypatch)
    sampler.sample(requests)
    assert read[0] >= len(shown) - 1
    assert sum(read) < 2 * len(shown)


async def test_rollouts_are_exactly_reproducible(loaded: LoadedModel) -> None:
    seen = []
    for _ in range(2):
        client = PolicyClient(loaded.model, loaded.tokenizer, max_batch_size=4)
        seen.append([turn.tokens for rollout in await played(client, 9) for turn in rollout.turns])
        await client.close()
    assert seen[0] == seen[1]


async def test_repeating_a_request_does_not_duplicate_the_conversation(loaded: LoadedModel) -> None:
    client = PolicyClient(loaded.model, loaded.tokenizer)
    client.begin("r")
    first = await client.complete(ask())
    again = await client.complete(ask())
    assert first.tokens is not None
    assert again.tokens is not None
    assert again.tokens == first.tokens
    await client.close()
