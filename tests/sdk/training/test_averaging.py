"""The mean of the weights over the last steps of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from wander.models.loading import weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.weights import MEAN

from .conftest import bandit, opener_of


def settings_for(start: Path, average_steps: int) -> GRPOSettings:
    return GRPOSettings.model_validate(
        {
            "model": {"path": str(start), "device": "cpu"},
            "algorithm": {"average_steps": average_steps},
            "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 8},
            "sampling": {"max_tokens": 6},
            "schedule": {"steps": 4, "learning_rate": 5e-3},
            "output": {"rollouts_every": 0, "checkpoint_every": 1},
        }
    )


def weights(folder: Path) -> dict[str, Any]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.fixture(scope="module")
def averaged(puller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("averaging") / "run"
    train_grpo(opener_of(bandit), settings_for(puller, 3), folder)
    return folder


@pytest.mark.full
def test_the_final_policy_is_the_mean_over_the_last_steps(
    puller: Path, averaged: Path, tmp_path: Path
) -> None:
    train_grpo(opener_of(bandit), settings_for(puller, 0), tmp_path / "plain")
    steps = [weights(tmp_path / f"plain/checkpoints/checkpoint-{step}") for step in (2, 3, 4)]
    found = weights(averaged / "model")
    assert found.keys() == steps[0].keys()
    for name, weight in found.items():
        assert torch.allclose(weight, sum(each[name] for each in steps) / 3, atol=1e-6), name
    assert weights_digest(averaged / "model") != weights_digest(tmp_path / "plain/model")
    # Until the last step the runs are the same.
    for step in (1, 2, 3):
        assert weights_digest(averaged / f"checkpoints/checkpoint-{step}") == weights_digest(
            tmp_path / f"plain/checkpoints/checkpoint-{step}"
        )


def test_a_resumed_run_averages_what_an_uninterrupted_one_does(
    puller: Path, averaged: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(averaged, tmp_path / "run"))
    assert not (folder / "checkpoints/checkpoint-1" / MEAN).exists()
    assert (folder / "checkpoints/checkpoint-3" / MEAN).is_file()
    shutil.rmtree(folder / "model")
    train_grpo(opener_of(bandit), settings_for(puller, 3), folder, resume=True, checkpoint=3)
    assert weights_digest(folder / "model") == weights_digest(averaged / "model")
