"""Training with the real vLLM, on a CPU, and SmolLM2: minutes, and gigabytes of packages.

`WANDER_TEST_VLLM_PYTHON` names a Python that has vLLM; without it the test makes a virtual environment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_python import vllm_python
from wander import Messages, Rubric, SingleTurnEnv
from wander.environment import LocalEnvironment
from wander.evals.store.folder import RunFolder
from wander.handle import EnvironmentHandle
from wander.models.engines.base import SamplingJob
from wander.models.engines.vllm_server import VLLMServer, VLLMServerEngine
from wander.models.engines.weights import FolderSync, write_checkpoint
from wander.models.loading import LoadedModel, load_model, weights_digest
from wander.models.sampling import Sample, SampleRequest, end_of_turn_ids
from wander.train.config import GRPOSettings, InferenceSection
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander_client.context import CommonOptions, Invocation, set_current
from wander_client.terminal.output import Output
from wander_client.training.run import training_server

PROMPT = "Once upon a time"
FIELDS = {"max_tokens": 8, "temperature": 0.0}


@pytest.fixture(autouse=True)
def invocation() -> Iterator[None]:
    set_current(Invocation(CommonOptions(), Output("quiet")))
    yield
    set_current(None)


def letters(completion: Messages) -> float:
    """Share of the letter `e` in the answer."""
    text = str(completion[-1]["content"])
    return text.count("e") / max(1, len(text))


@contextlib.asynccontextmanager
async def opener(choice: Any) -> AsyncIterator[EnvironmentHandle]:
    rows = [{"question": f"Say something about the number {n}.", "answer": ""} for n in range(8)]
    handle = LocalEnvironment(SingleTurnEnv(rows, rubric=Rubric([letters])))
    yield handle
    await handle.close()


def greedily(url: str, loaded: LoadedModel, folder: Path) -> Sample:
    """Return what the server at `url` finds most probable."""
    servers = [VLLMServer(url)]
    sync = FolderSync(servers, loaded.model, folder)
    engine = VLLMServerEngine(servers, sync, end_ids=end_of_turn_ids(loaded.model, loaded.tokenizer))

    async def ask() -> Sample:
        ids = loaded.tokenizer.encode(PROMPT)
        sample = await engine.sample(SamplingJob("r", 0, SampleRequest(ids, **FIELDS)))
        await engine.close()
        return sample

    return asyncio.run(ask())


def scored(loaded: LoadedModel, completion: list[int]) -> list[float]:
    """Return the log-probabilities that transformers gives these tokens after the prompt."""
    prompt = loaded.tokenizer.encode(PROMPT)
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([prompt + completion])).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    assert [int(row.argmax()) for row in logprobs] == completion
    return [float(row[token]) for row, token in zip(logprobs, completion, strict=True)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_server_samples_from_the_weights_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    loaded = load_model("smollm2", device="cpu")
    first = write_checkpoint(loaded.model, dict(loaded.model.named_parameters()), tmp_path / "weights-0")
    loaded.tokenizer.save_pretrained(first)
    arguments = ["--max-model-len", "512", "--dtype", "float32", "--enforce-eager"]
    section = InferenceSection(engine="vllm-server", python=vllm_python(tmp_path), arguments=arguments)
    with training_server(Invocation(CommonOptions(), Output("quiet")), first, section) as url:
        before = greedily(url, loaded, tmp_path / "unused")
        assert before.logprobs == pytest.approx(scored(loaded, before.ids), abs=1e-3)
        for staleness in (0, 2):
            settings = GRPOSettings.model_validate(
                {
                    "model": {"path": "smollm2", "device": "cpu"},
                    "batch": {"rollouts": 8, "group_size": 4, "rows_at_once": 8, "max_staleness": staleness},
                    "sampling": {"max_tokens": 12},
                    "schedule": {"steps": 2 + staleness, "learning_rate": 2e-5},
                    "inference": {"engine": "vllm-server", "url": url},
                    "evaluation": {"every": 2, "examples": 4},
                    "output": {"rollouts_every": 1},
                }
            )
            result = train_grpo(opener, settings, tmp_path / f"run-{staleness}")
            trained = load_model(result.model, device="cpu")
            after = greedily(url, trained, tmp_path / "unused")
            assert weights_digest(result.model) != weights_digest(loaded.path or first)
            # The server ends with the weights that the run ended with.
            assert after.logprobs == pytest.approx(scored(trained, after.ids), abs=1e-3)
            assert after.logprobs != pytest.approx(before.logprobs, abs=1e-2)
    for entry in read_metrics(tmp_path / "run-0"):
        assert entry["failed"] == 0
        assert entry["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-2)
        assert entry["sampling/sampling_logp_difference/max"] < 1e-2
    ahead = read_metrics(tmp_path / "run-2")
    assert [(entry["staleness"], entry["failed"]) for entry in ahead] == [(0, 0), (1, 0), (2, 0), (2, 0)]
    differences = [entry["sampling/sampling_logp_difference/max"] for entry in ahead]
    assert differences[0] < 1e-2 < min(differences[2:])
    for number, rollout in enumerate(RunFolder.open(tmp_path / "run-2").rollouts()):
        (turn,) = rollout.turns
        assert turn.tokens is not None
        assert turn.tokens.step is not None
        assert max(0, number // 4 - 2) <= turn.tokens.step <= number // 4
