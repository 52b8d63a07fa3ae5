"""vLLM in the training process, and weights over NCCL: `pytest -m gpu`, with `wander-sdk[train,vllm]`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from wander.models.loading import weights_digest
from wander.models.smollm2 import pull_smollm2
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics

from .conftest import bandit, opener_of

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


def settings_for(**inference: Any) -> GRPOSettings:
    return GRPOSettings.model_validate(
        {
            "model": {"path": "smollm2", "device": "cuda", "autocast": True},
            "batch": {"rollouts": 64, "group_size": 8, "rows_at_once": 16},
            "sampling": {"max_tokens": 24},
            "schedule": {"steps": 3, "learning_rate": 1e-5},
            "inference": inference,
        }
    )


def assert_current(run: Path) -> None:
    """Assert that every step was sampled with its own weights, by its own account."""
    for entry in read_metrics(run):
        assert entry["failed"] == 0
        assert entry["seconds/sync"] > 0
        assert entry["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=0.1)


@needs_vllm
@pytest.mark.gpu
@pytest.mark.parametrize("sleep", [False, True])
def test_vllm_in_this_process_samples_from_the_weights_of_every_step(tmp_path: Path, sleep: bool) -> None:
    settings = settings_for(engine="vllm", memory=0.3, sleep=sleep)
    result = train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert weights_digest(result.model) != weights_digest(pull_smollm2())
    assert_current(tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.parametrize("sync", ["folder", "nccl"])
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_server_on_a_gpu_gets_the_weights_of_every_step(tmp_path: Path, sync: str, staleness: int) -> None:
    """`WANDER_TEST_VLLM_URL` names a server of SmolLM2; NCCL wants it on another GPU than this process."""
    url = os.environ.get("WANDER_TEST_VLLM_URL")
    if url is None:
        pytest.skip("no server is named by WANDER_TEST_VLLM_URL")
    settings = settings_for(engine="vllm-server", url=url, sync=sync)
    batch = settings.batch.model_copy(update={"max_staleness": staleness})
    train_grpo(opener_of(bandit), settings.model_copy(update={"batch": batch}), tmp_path / "run")
    assert_current(tmp_path / "run")
