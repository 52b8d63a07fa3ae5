"""The decode step samples what a plain loop samples, on exact rows and in buckets, as one graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from wander.models.decoding import (
    Buffers,
    ConversationCache,
    DecodePlan,
    StepGraph,
    distribution,
    draw,
    plan_for,
)
from wander.models.engines.base import SamplingJob
from wander.models.engines.transformers import TransformersEngine
from wander.models.loading import load_model
from wander.models.sampling import (
    Sample,
    Sampler,
    SampleRequest,
    count_to_stop,
    parameters_of,
    uniform_numbers,
)

from .test_sampling import Words, model_of

PLANS = [
    DecodePlan(),
    DecodePlan(look_every=8),
    DecodePlan(look_every=8, has_buckets=True),
]
MODEL = model_of("llama")


def plain_sample(model: Any, request: SampleRequest) -> Sample:
    """Sample with a full forward pass for each token, alone and without a cache."""
    sample = Sample()
    uniforms = uniform_numbers([request])
    while len(sample.ids) < request.max_tokens:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([request.ids + sample.ids])).logits[:, -1]
        parameters = parameters_of([request], logits.shape[1])
        logprobs, entropies = distribution(logits, parameters, truncates=not request.plain)
        greedy = None if request.temperature else torch.ones(1)
        token = int(draw(logprobs, uniforms[:, len(sample.ids)], greedy))
        sample.ids.append(token)
        sample.logprobs.append(float(logprobs[0, token]))
        sample.entropy += float(entropies)
        text = Words().decode(sample.ids)
        if token == Words.eos_token_id or any(stop in text for stop in request.stop):
            sample.finish_reason = "stop"
            break
    return sample


def assert_same(found: Sample, expected: Sample) -> None:
    assert found.ids == expected.ids
    assert found.finish_reason == expected.finish_reason
    assert found.logprobs == pytest.approx(expected.logprobs, abs=2e-4)
    assert found.entropy == pytest.approx(expected.entropy, abs=1e-2)


ids = st.integers(2, 96)
stops = st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=2).map(tuple)
truncations = st.sampled_from([{}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {"temperature": 0.0}])
requests = st.builds(
    lambda context, most, seed, stop, truncation: SampleRequest(
        context, max_tokens=most, seed=seed, stop=stop, **truncation
    ),
    st.lists(ids, min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 1000),
    stops,
    truncations,
)


@settings(max_examples=20)  # with 100, it takes 50 s
@given(batch=st.lists(requests, min_size=1, max_size=5))
def test_a_batch_samples_the_same_as_separate_rows(batch: list[SampleRequest]) -> None:
    alone = [plain_sample(MODEL, request) for request in batch]
    for plan in PLANS:
        samples = Sampler(MODEL, Words(), plan=plan).sample(batch)
        for sample, expected in zip(samples, alone, strict=True):
            assert_same(sample, expected)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fill memory that nobody has written with NaN, so that reading it shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("plan", "at_once"), [(PLANS[0], 64), (PLANS[2], 3), (PLANS[2], 64)])
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_conversations_join_and_leave_between_turns(
    plan: DecodePlan, at_once: int, data: st.DataObject
) -> None:
    """Rollouts that wait, return and begin late are computed with the others, from what is cached."""
    engine = TransformersEngine(MODEL, Words(), max_batch_size=at_once)
    engine.sampler = Sampler(MODEL, Words(), plan=plan)
    histories: dict[str, list[int]] = {}
    for turn in range(3):
        for _ in range(data.draw(st.integers(0 if histories else 1, 3))):
            name = str(len(histories))
            histories[name] = data.draw(st.lists(ids, min_size=1, max_size=12))
            engine.begin(name)
        names = data.draw(st.lists(st.sampled_from(sorted(histories)), min_size=1, unique=True))
        jobs = [
            SamplingJob(name, order, SampleRequest(list(histories[name]), 5, seed=turn, stop=("ab", "q")))
            for order, name in enumerate(names)
        ]
        for job, sample in zip(jobs, engine._sample(jobs, lambda known: None), strict=True):
            assert_same(sample, plain_sample(MODEL, job.request))
            histories[job.rollout_id] += [*sample.ids, *data.draw(st.lists(ids, min_size=1, max_size=4))]


@pytest.mark.parametrize("plan", [PLANS[1], pytest.param(PLANS[2], marks=pytest.mark.full)], ids=str)
def test_a_long_row_outgrows_its_buffers_and_the_others_end_early(plan: DecodePlan) -> None:
    model, words = model_of("llama", max_position_embeddings=1024), Words()
    model.generation_config.eos_token_id = words.eos_token_id = None  # type: ignore[assignment]
    batch = [SampleRequest([5 + n % 50, 7], 3 if n else 300, seed=n) for n in range(70)]
    samples = Sampler(model, words, plan=plan).sample(batch)
    exact = Sampler(model, words, plan=DecodePlan()).sample(batch)
    assert [sample.ids for sample in samples] == [sample.ids for sample in exact]
    assert len(samples[0].ids) == 300


class Kernels(TorchDispatchMode):
    """Counts the operations that are kernels on a GPU, and those with which the host waits for the device."""

    VIEWS = "view transpose unsqueeze slice expand t permute select alias detach as_strided split squeeze"

    def __init__(self) -> None:
        super().__init__()
        self.count = self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        self.reads += name in {"_local_scalar_dense", "is_nonzero", "item", "nonzero", "equal"}
        self.count += name not in {*self.VIEWS.split(), "_unsafe_view", "reshape"}
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def stepping(model: Any, rows: int = 4) -> Buffers:
    """Return buffers in a bucket that are ready for a step."""
    sampler = Sampler(model, Words(), plan=DecodePlan(8, has_buckets=True))
    cache = ConversationCache(sampler.decoder)
    cache.start(rows)
    logits = cache.read([[2 + n, 3, 4] for n in range(rows)])
    batch = [SampleRequest([2 + n, 3, 4], 9, seed=n) for n in range(rows)]
    parameters = parameters_of(batch, logits.shape[1])
    cache.held.load(parameters, uniform_numbers(batch), [5] * rows, [3] * rows)
    cache.held.window.is_whole_capacity = True
    return cache.held


@torch.inference_mode()
def test_a_step_has_few_kernels_and_no_synchronization() -> None:
    """Thirty layers, as SmolLM2 has, stay below 1,300 kernels."""
    counts = []
    for layers in (3, 4):
        buffers = stepping(model_of("llama", num_hidden_layers=layers))
        with Kernels() as kernels:
            buffers.step()
        assert kernels.reads == 0
        counts.append(kernels.count)
    assert counts[0] + 27 * (counts[1] - counts[0]) <= 1300


@pytest.mark.parametrize("tokens", [1, 8, 9, 64, 240])
def test_the_host_checks_every_eighth_token(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = Buffers.look

    def counting(buffers: Buffers, rows: int, columns: int) -> Any:
        looks.append(columns)
        return look(buffers, rows, columns)

    monkeypatch.setattr(Buffers, "look", counting)
    model, words = model_of("llama"), Words()
    model.generation_config.eos_token_id = words.eos_token_id = None  # type: ignore[assignment]
    plan = DecodePlan(look_every=8, has_buckets=True)
    Sampler(model, words, plan=plan).sample([SampleRequest([2, 3], tokens, seed=n) for n in range(3)])
    assert sum(looks) == tokens
    assert len(looks) == -(-tokens // 8)


@pytest.mark.full  # to import the compiler takes 5 s; the kernels of a step are counted above
def test_the_step_is_one_graph() -> None:
    """A step that is traced without a break reads no values. The host does not count columns for the traced
    step, as it cannot for a graph that is replayed."""
    expected, traced = stepping(model_of("llama")), stepping(model_of("llama"))
    with torch.inference_mode():
        step = torch.compile(traced.step, fullgraph=True, backend="eager")
        expected.advance(3)
        for _ in range(3):
            step()
        assert torch.equal(traced.results[0], expected.results[0])
        assert torch.allclose(traced.results, expected.results, atol=1e-4)
        assert traced.window.column.item() == 6


class RecordedGraph:
    """Stands for `torch.cuda.CUDAGraph`: replays the step that was captured, which capturing leaves out."""

    captured = 0
    replayed = 0

    def replay(self) -> None:
        RecordedGraph.replayed += 1
        self.step()


def test_a_captured_step_samples_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are captured once, and used again by the next conversations."""

    def run(self: StepGraph, step: Any) -> None:
        if self._graph is None and self._is_warm:
            self._graph = RecordedGraph()
            self._graph.step = step
            RecordedGraph.captured += 1
        original(self, step)

    original = StepGraph.run
    monkeypatch.setattr(StepGraph, "run", run)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    sampler = Sampler(MODEL, Words(), plan=DecodePlan(8, has_buckets=True, captures=True))
    batch = [SampleRequest([5 + n, 7], 20, seed=n, stop=("ab",)) for n in range(5)]
    exact = Sampler(MODEL, Words(), plan=DecodePlan()).sample(batch)
    for _ in range(3):
        assert [sample.ids for sample in sampler.sample(batch)] == [sample.ids for sample in exact]
    assert RecordedGraph.captured == 1
    assert RecordedGraph.replayed > 10
    MODEL.lm_head.weight.data = MODEL.lm_head.weight.data.clone()
    sampler.sample(batch)
    assert RecordedGraph.captured == 2, "the graph reads the old address of the weight"


@pytest.mark.parametrize(
    ("attention", "rope", "autocast", "buckets", "captures"),
    [
        ("sdpa", "default", False, True, True),
        ("sdpa", "default", True, True, False),
        ("sdpa", "dynamic", False, True, False),
        ("eager", "default", False, False, False),
    ],
)
def test_a_plan_captures_only_steps_that_can_be_replayed(
    attention: str, rope: str, autocast: bool, buckets: bool, captures: bool
) -> None:
    model = model_of("llama", rope_parameters={"rope_type": rope, "rope_theta": 1e4, "factor": 2.0})
    model.set_attn_implementation(attention)
    assert plan_for(model, keeps_cache=True, autocast=autocast) == DecodePlan()
    on_gpu = SimpleNamespace(device=torch.device("cuda"), config=model.config)
    assert plan_for(on_gpu, keeps_cache=True, autocast=autocast) == DecodePlan(8, buckets, captures)


@pytest.mark.gpu
def test_graphs_on_a_gpu_sample_what_single_steps_sample() -> None:
    model = model_of("llama").cuda()
    graphs = Sampler(model, Words())
    assert graphs.plan.captures
    steps = Sampler(model, Words(), plan=DecodePlan())
    batch = [SampleRequest([5 + n % 50, 7, 9][: 1 + n % 3], 4 + n, seed=n) for n in range(70)]
    for _ in range(3):
        for found, expected in zip(graphs.sample(batch), steps.sample(batch), strict=True):
            assert_same(found, expected)


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return load_model(tiny, device="cpu").tokenizer


@given(data=st.data())
def test_the_end_of_a_text_finds_the_same_stop_as_the_whole_text(tokenizer: Any, data: st.DataObject) -> None:
    text = data.draw(st.text("ab é🙂.", max_size=60))
    sampled = tokenizer.encode(text) + data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=20))
    stop = tuple(data.draw(st.lists(st.text("ab é🙂.", min_size=1, max_size=4), min_size=1, max_size=3)))

    def is_stopped(count: int) -> bool:
        text = tokenizer.decode(sampled[:count], skip_special_tokens=True)
        return any(one in text for one in stop)

    expected = next((n for n in range(1, len(sampled) + 1) if is_stopped(n)), None)
    for size in (1, 3, 8):
        found = None
        for first in range(0, len(sampled), size):
            count = count_to_stop(tokenizer, stop, sampled[:first], sampled[first : first + size])
            if count is not None:
                found = first + count
                break
        assert found == expected
