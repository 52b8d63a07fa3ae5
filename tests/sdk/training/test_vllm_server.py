"""Training with a server that samples, over real HTTP, from a real tiny model (`token_server`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from token_server import TokenServer, token_server
from transformers import AutoModelForCausalLM
from trl import import_utils
from wander.errors import ConfigError, ModelError
from wander.evals.store.folder import RunFolder
from wander.models.chat import ChatFormat
from wander.models.engines import vllm_server
from wander.models.engines.base import SamplingJob
from wander.models.engines.vllm_colocated import require_fitting_vllm
from wander.models.engines.vllm_server import VLLMServer, VLLMServerEngine
from wander.models.engines.weights import FolderSync, whole_weights
from wander.models.loading import LoadedModel, load_model, weights_digest
from wander.models.policy import PolicyClient
from wander.models.quiet import quiet_libraries
from wander.models.sampling import SampleRequest, end_of_turn_ids
from wander.train.config import EvaluationSection, GRPOSettings, InferenceSection
from wander.train.grpo import train_grpo
from wander.train.records.files import read_evaluations, read_metrics

from .conftest import bandit, opener_of

ROOT = Path(__file__).resolve().parents[3]
RATIO = "sampling/importance_sampling_ratio/mean"


@pytest.fixture
def server(puller: Path) -> Iterator[TokenServer]:
    with token_server(puller) as running:
        yield running


@pytest.fixture
def loaded(puller: Path) -> LoadedModel:
    return load_model(puller, device="cpu")


def engine_of(server: TokenServer, loaded: LoadedModel, folder: Path, **kwargs: Any) -> VLLMServerEngine:
    servers = [VLLMServer(server.url)]
    sync = FolderSync(servers, loaded.model, folder)
    return VLLMServerEngine(servers, sync, end_ids=end_of_turn_ids(loaded.model, loaded.tokenizer), **kwargs)


def question(loaded: LoadedModel) -> list[int]:
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))
    return form.encode(form.render([{"role": "user", "content": "Machine 1. Answer <pull>lever</pull>."}]))


def scored(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
    """Return the log-probabilities that the model gives the completion's tokens."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return [float(row[token]) for row, token in zip(logprobs, completion, strict=True)]


async def sampled(engine: VLLMServerEngine, prompt: list[int], **kwargs: Any) -> Any:
    return await engine.sample(SamplingJob("r", 0, SampleRequest(prompt, **{"max_tokens": 6, **kwargs})))


async def test_tokens_are_sent_and_returned_with_log_probabilities(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path
) -> None:
    engine = engine_of(server, loaded, tmp_path)
    prompt = question(loaded)
    samples = await asyncio.gather(*(sampled(engine, prompt, seed=seed) for seed in (1, 2, 1, 3)))
    await engine.close()
    assert samples[0] == samples[2]
    assert len({tuple(sample.ids) for sample in samples}) > 1
    for sample in samples:
        assert sample.logprobs == pytest.approx(scored(loaded.model, prompt, sample.ids), abs=1e-4)
        assert sample.entropy == pytest.approx(-sum(sample.logprobs))
    assert {request["seed"] for request in server.requests} == {1, 2, 3}
    assert engine.totals.tokens == sum(len(sample.ids) for sample in samples)
    assert engine.totals.seconds > 0


async def test_the_server_samples_from_the_new_weights(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path
) -> None:
    engine = engine_of(server, loaded, tmp_path / "served")
    prompt = question(loaded)
    before = await sampled(engine, prompt, seed=1)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    for _ in range(2):
        engine.update_weights(lambda: whole_weights(loaded.model))
    after = await sampled(engine, prompt, seed=1)
    await engine.close()
    assert after.logprobs == pytest.approx(scored(loaded.model, prompt, after.ids), abs=1e-4)
    assert before.logprobs != pytest.approx(scored(loaded.model, prompt, before.ids), abs=1e-2)
    assert server.calls.count("/collective_rpc") == server.calls.count("/reset_prefix_cache") == 2
    # Only the newest checkpoint stays, and it is one that anything loads.
    (newest,) = (tmp_path / "served").iterdir()
    again = AutoModelForCausalLM.from_pretrained(newest)
    theirs = dict(again.named_parameters())
    assert all(torch.equal(theirs[name], weight) for name, weight in whole_weights(loaded.model))


async def test_a_turn_is_sampled_by_one_version_of_the_weights(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path
) -> None:
    engine = engine_of(server, loaded, tmp_path)
    beside, prompt, loop = engine.twin(), question(loaded), asyncio.get_running_loop()
    server.delay = 0.1
    under_way = asyncio.create_task(sampled(beside, prompt))
    while not server.sampling:  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(0)
    held = loop.run_in_executor(None, engine.pause)
    while beside._gate._opens is None:  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(0)
    late = [asyncio.create_task(sampled(each, prompt)) for each in (engine, beside, beside)]
    await held
    assert server.sampling == 0
    assert (await under_way).step is None
    late.pop().cancel()
    await asyncio.sleep(0)
    assert len(server.requests) == 1, "the others wait"
    engine.resume(7)
    assert [(await each).step for each in late] == [7, 7]
    assert (engine.totals.tokens > 0, server.disturbed) == (True, 0)
    await engine.close()
    await beside.close()


def test_a_server_with_a_busy_cache_is_asked_again(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = FolderSync([VLLMServer(server.url)], loaded.model, tmp_path)
    server.held_blocks = 2
    folders.send(lambda: whole_weights(loaded.model))
    assert server.calls.count("/reset_prefix_cache") == 3
    monkeypatch.setattr(vllm_server, "BUSY_SECONDS", 0)
    server.held_blocks = 100
    with pytest.raises(ConfigError, match="its prefix cache cannot be cleared"):
        folders.send(lambda: whole_weights(loaded.model))


async def test_a_server_that_sleeps_is_woken_for_new_weights(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path
) -> None:
    engine = engine_of(server, loaded, tmp_path, sleeps=True)
    prompt = question(loaded)
    engine.rest()
    assert engine.wants_weights
    with pytest.raises(ModelError, match="the engine sleeps"):
        await sampled(engine, prompt)
    engine.update_weights(lambda: whole_weights(loaded.model))
    assert not engine.wants_weights
    assert (await sampled(engine, prompt)).ids
    await engine.close()
    woken = [call for call in server.calls if "sleep" in call or "wake" in call or "rpc" in call]
    wanted = ["/sleep?level=2", "/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"]
    assert woken == wanted


def settings_for(start: Path, server: TokenServer, **inference: Any) -> GRPOSettings:
    return GRPOSettings.model_validate(
        {
            "model": {"path": str(start), "device": "cpu"},
            "batch": {"rollouts": 16, "group_size": 8, "rows_at_once": 16},
            "sampling": {"max_tokens": 6},
            "schedule": {"steps": 2, "learning_rate": 2e-2},
            "inference": {"engine": "vllm-server", "url": server.url, **inference},
        }
    )


def test_a_run_learns_from_what_the_server_samples(server: TokenServer, puller: Path, tmp_path: Path) -> None:
    result = train_grpo(opener_of(bandit), settings_for(puller, server), tmp_path / "run")
    assert result.steps == 2
    assert weights_digest(result.model) != weights_digest(puller)
    entries = read_metrics(tmp_path / "run")
    for entry in entries:
        assert entry["failed"] == 0
        assert entry["seconds/sync"] > 0
        assert entry["seconds/generation"] > 0
        # The server has the weights of this very step: the policy gives its tokens the same probability.
        assert entry[RATIO] == pytest.approx(1.0, abs=1e-3)
    # Those it began with, and those after each step: the last are there to be evaluated.
    assert len(server.digests) == len(set(server.digests)) == 3
    assert len(server.requests) >= 2 * 16 * 2
    assert len({request["seed"] for request in server.requests}) > 16


@pytest.mark.full
def test_a_server_that_keeps_old_weights_is_detected(
    server: TokenServer, puller: Path, tmp_path: Path
) -> None:
    server.obeys = False
    train_grpo(opener_of(bandit), settings_for(puller, server), tmp_path / "run")
    first, second = read_metrics(tmp_path / "run")
    assert first[RATIO] == pytest.approx(1.0, abs=1e-3)
    assert abs(second["sampling/sampling_logp_difference/mean"]) > 1e-2


@pytest.mark.full
def test_a_run_in_this_process_learns_equally(server: TokenServer, puller: Path, tmp_path: Path) -> None:
    """The server draws by the same seeds: what it is told changes nothing but the last bits."""
    there = train_grpo(opener_of(bandit), settings_for(puller, server), tmp_path / "there")
    here = train_grpo(
        opener_of(bandit), settings_for(puller, server, engine="transformers"), tmp_path / "here"
    )
    theirs = dict(load_model(there.model, device="cpu").model.named_parameters())
    for name, weight in load_model(here.model, device="cpu").model.named_parameters():
        assert torch.allclose(weight, theirs[name], atol=1e-3), name


async def test_adapters_are_merged_for_the_server_and_stay_separate(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    names = sorted(name for name, _ in loaded.model.named_parameters())
    with quiet_libraries():
        model = get_peft_model(loaded.model, adapters)
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    servers = [VLLMServer(server.url)]
    FolderSync(servers, model, tmp_path).send(lambda: whole_weights(model))
    assert sorted(name for name, _ in whole_weights(model)) == names
    assert all(torch.equal(weight, kept[name]) for name, weight in model.state_dict().items())
    prompt = question(loaded)
    engine = engine_of(server, loaded, tmp_path / "unused")
    sample = await sampled(engine, prompt, seed=3)
    await engine.close()
    assert sample.logprobs == pytest.approx(scored(model, prompt, sample.ids), abs=1e-4)


def with_adapters(start: Path, server: TokenServer, peft: dict[str, Any], **inference: Any) -> GRPOSettings:
    settings = settings_for(start, server, **inference)
    model = settings.model.model_copy(update={"lora_rank": 4, "peft": peft})
    return settings.model_copy(update={"model": model})


@pytest.mark.parametrize(
    "peft",
    [{}, pytest.param({"use_rslora": True, "init_lora_weights": "gaussian"}, marks=pytest.mark.full)],
)
def test_adapters_reach_a_server_that_serves_them_as_adapters(
    server: TokenServer, puller: Path, tmp_path: Path, peft: dict[str, Any]
) -> None:
    server.largest_rank = 8
    result = train_grpo(opener_of(bandit), with_adapters(puller, server, peft), tmp_path / "run")
    assert weights_digest(result.model) != weights_digest(puller)
    for entry in read_metrics(tmp_path / "run"):
        assert entry["failed"] == 0
        assert entry[RATIO] == pytest.approx(1.0, abs=1e-3)
    assert "/collective_rpc" not in server.calls, "no whole weights travel"
    assert server.calls.count("/v1/load_lora_adapter") == server.calls.count("/reset_prefix_cache") == 3
    probe, *turns = server.requests
    assert "model" not in probe
    assert {turn["model"] for turn in turns} == {"wander-policy"}
    assert server.disturbed == 0
    (newest,) = (tmp_path / "run" / "served").iterdir()
    assert {file.name for file in newest.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert (
        sum(file.stat().st_size for file in newest.iterdir()) < (puller / "model.safetensors").stat().st_size
    )
    details = RunFolder.open(tmp_path / "run").manifest.model.details
    assert details["adapters"] is True


def test_a_server_that_the_run_starts_serves_the_base_and_its_adapters(puller: Path, tmp_path: Path) -> None:
    started: list[InferenceSection] = []
    servers: list[TokenServer] = []

    @contextlib.contextmanager
    def serve(first: Path, section: InferenceSection) -> Iterator[str]:
        started.append(section)
        with token_server(first) as running:
            running.largest_rank = 8
            servers.append(running)
            yield running.url

    # PiSSA moves the largest part of each weight from the base into the adapters.
    peft = {"init_lora_weights": "pissa"}
    data = {"model": {"path": str(puller), "device": "cpu", "lora_rank": 4, "peft": peft}}
    settings = GRPOSettings.model_validate(
        {
            **data,
            "batch": {"rollouts": 16, "group_size": 8, "rows_at_once": 16},
            "sampling": {"max_tokens": 6},
            "schedule": {"steps": 1, "learning_rate": 1e-3},
            "inference": {"engine": "vllm-server", "arguments": ["--dtype", "float32"]},
        }
    )
    train_grpo(opener_of(bandit), settings, tmp_path / "run", serve=serve)
    assert started[0].arguments == ["--enable-lora", "--max-lora-rank", "8", "--dtype", "float32"]
    assert "/v1/load_lora_adapter" in servers[0].calls
    (entry,) = read_metrics(tmp_path / "run")
    assert entry[RATIO] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("number", ["0.21.2", "0.22.0", "0.24.0+cu129", "0.31.0", "0.31.1", "0.33.0", None])
def test_the_extra_installs_the_versions_of_vllm_that_trl_drives(
    monkeypatch: pytest.MonkeyPatch, number: str | None
) -> None:
    project = tomllib.loads((ROOT / "sdk/pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = map(Requirement, project["optional-dependencies"]["vllm"])
    installed = (number is not None, number)
    monkeypatch.setattr(import_utils, "_is_package_available", lambda *names, **given: installed)
    if number is not None and extra.specifier.contains(number.partition("+")[0]):
        require_fitting_vllm("it")
        return
    said = "is not installed" if number is None else f"You have version {number}"
    with pytest.raises(ConfigError, match=f"it needs vLLM in this Python, but it .*{said}") as refused:
        require_fitting_vllm("it")
    assert "own virtual environment" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("peft", "largest_rank"),
    [
        ({"use_dora": True}, 8),
        pytest.param({"alpha_pattern": {"q_proj": 2}}, 8, marks=pytest.mark.full),
        pytest.param({}, None, marks=pytest.mark.full),
    ],
)
def test_adapters_are_merged_if_the_server_would_not_compute_what_they_compute(
    server: TokenServer, puller: Path, tmp_path: Path, peft: dict[str, Any], largest_rank: int | None
) -> None:
    server.largest_rank = largest_rank
    train_grpo(opener_of(bandit), with_adapters(puller, server, peft), tmp_path / "run")
    assert server.calls.count("/collective_rpc") == 3
    assert "/v1/load_lora_adapter" not in server.calls
    assert {request["model"] for request in server.requests} == {"policy"}
    for entry in read_metrics(tmp_path / "run"):
        assert entry[RATIO] == pytest.approx(1.0, abs=1e-3)


def test_adapters_that_a_server_cannot_add_are_rejected(
    server: TokenServer, puller: Path, tmp_path: Path
) -> None:
    def refusal() -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            train_grpo(opener_of(bandit), with_adapters(puller, server, {}), tmp_path / "run")
        return caught.value

    server.largest_rank = 2
    assert "adapters up to rank 2" in str(refusal())
    assert "--max-lora-rank 8" in str(refusal().hint)
    server.largest_rank = 8
    server.updates_adapters = False
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in str(refusal().hint)
    with torch.no_grad():
        for parameter in server.loaded.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    assert "has other weights than `model.path`" in str(refusal())


def test_a_server_with_adapters_keeps_its_weights_while_it_sleeps(
    server: TokenServer, puller: Path, tmp_path: Path
) -> None:
    server.largest_rank = 8
    train_grpo(opener_of(bandit), with_adapters(puller, server, {}, sleep=True), tmp_path / "run")
    slept = {call for call in server.calls if call.startswith("/sleep")}
    assert slept == {"/sleep?level=1"}, "level 2 discards the weights that the adapters are added to"


def test_a_server_unsuitable_for_training_is_rejected_with_a_hint(
    server: TokenServer, loaded: LoadedModel, puller: Path, tmp_path: Path
) -> None:
    def refusal() -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            train_grpo(opener_of(bandit), settings_for(puller, server), tmp_path / "run")
        return caught.value

    server.device = "cpu"
    assert "would keep its old output layer" in str(refusal())
    server.logprobs_mode = "raw_logprobs"
    assert "--logprobs-mode processed_logprobs" in str(refusal().hint)
    server.dev_mode = False
    assert "VLLM_SERVER_DEV_MODE=1" in str(refusal().hint)
    server.url = "http://127.0.0.1:9"
    assert "no vLLM server answers at `http://127.0.0.1:9`" in str(refusal())


async def test_a_policy_client_samples_turn_by_turn_from_the_server(
    server: TokenServer, loaded: LoadedModel, tmp_path: Path
) -> None:
    from wander.environment import LocalEnvironment
    from wander.train.rollouts.rows import trajectories_of
    from wander.types import SamplingArgs

    client = PolicyClient(loaded.model, loaded.tokenizer, engine=engine_of(server, loaded, tmp_path))
    handle = LocalEnvironment(bandit())
    (example,) = await handle.examples("train", 0, 1)
    rollout = await handle.rollout(client, example, sampling=SamplingArgs(max_tokens=6))
    await client.close()
    (whole,) = trajectories_of(rollout)
    assert whole.prompt_ids + whole.completion_ids[: len(whole.completion_ids)] == [
        *server.requests[-1]["prompt"],
        *rollout.turns[-1].tokens.completion_ids,  # type: ignore[union-attr]
    ]
    assert client.describe()["engine"] == "vllm-server"


@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_run_that_evaluates_closes_every_connection(
    server: TokenServer, puller: Path, tmp_path: Path, staleness: int
) -> None:
    settings = settings_for(puller, server)
    batch = settings.batch.model_copy(update={"max_staleness": staleness})
    evaluation = EvaluationSection(every=1, examples=4)
    evaluating = settings.model_copy(update={"batch": batch, "evaluation": evaluation})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train_grpo(opener_of(bandit), evaluating, tmp_path / "run")
        gc.collect()
    assert len(read_evaluations(tmp_path / "run")) == 3
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []
