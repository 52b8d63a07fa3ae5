"""Sampling from a copy of the weights: adapters merged, in another precision, and corrected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from wander.models.engines.transformers import TransformersEngine
from wander.train.correction import GAP, RATIO, is_corrected
from wander.train.engine import samples_a_copy, sampling_dtype
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics

from .conftest import bandit, opener_of
from .test_training_faults import settings_for

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[TransformersEngine]:
    """The engines that get weights."""
    updated: list[TransformersEngine] = []
    update = TransformersEngine.update_weights

    def watched(self: TransformersEngine, weights: Any) -> None:
        updated.append(self)
        update(self, weights)

    monkeypatch.setattr(TransformersEngine, "update_weights", watched)
    return updated


def require_merged(engine: TransformersEngine, dtype: torch.dtype) -> None:
    names = dict(engine.sampler.model.named_parameters())
    assert not any("lora" in name for name in names)
    assert {weight.dtype for weight in names.values()} == {dtype}


def test_adapters_are_merged_in_the_copy_and_change_no_probability(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: list[TransformersEngine]
) -> None:
    settings = settings_for(puller, model={"lora_rank": 4}, schedule={"learning_rate": 1e-2, "steps": 3})
    train_grpo(opener_of(bandit), settings, tmp_path / "live")
    assert engines == [], "on a CPU, the policy itself is sampled"
    monkeypatch.setattr("wander.train.engine.samples_a_copy", lambda *given: True)
    train_grpo(opener_of(bandit), settings, tmp_path / "copied")
    assert len(engines) == 4, "the weights are sent before the first step and after each step"
    require_merged(engines[-1], torch.float32)
    for live, copied in zip(*(read_metrics(tmp_path / run) for run in ("live", "copied")), strict=True):
        assert copied["reward"] == live["reward"]
        assert copied[f"{GAP}/max"] < 1e-4, "the copy has the weights of its step"
        assert f"{RATIO}/mean" not in copied


def test_a_copy_in_bfloat16_is_corrected(
    puller: Path, tmp_path: Path, engines: list[TransformersEngine]
) -> None:
    settings = settings_for(
        puller,
        model={"lora_rank": 4},
        inference={"dtype": "bfloat16"},
        schedule={"learning_rate": 1e-2, "steps": 3},
    )
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    require_merged(engines[-1], torch.bfloat16)
    assert engines[-1].describe()["dtype"] == "bfloat16"
    for entry in read_metrics(tmp_path / "run"):
        assert entry["failed"] == 0
        assert entry[f"{GAP}/max"] > 1e-4
        assert entry[f"{GAP}/mean"] < 0.05
        assert entry[f"{RATIO}/mean"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("model", "inference", "on_cpu", "on_gpu"),
    [
        ({}, {}, (False, "float32"), (False, "float32")),
        ({"autocast": True}, {}, (False, "float32"), (True, "bfloat16")),
        ({"lora_rank": 4}, {}, (False, "float32"), (True, "float32")),
        ({"lora_rank": 4, "autocast": True}, {}, (False, "float32"), (True, "bfloat16")),
        ({"lora_rank": 4, "dtype": "bfloat16"}, {}, (False, "bfloat16"), (True, "bfloat16")),
        ({}, {"dtype": "bfloat16"}, (True, "bfloat16"), (True, "bfloat16")),
        ({"autocast": True}, {"dtype": "float32"}, (False, "float32"), (False, "float32")),
    ],
)
def test_samples_depend_on_the_device(
    model: dict[str, Any], inference: dict[str, Any], on_cpu: tuple[bool, str], on_gpu: tuple[bool, str]
) -> None:
    settings = settings_for(Path("any"), model=model, inference=inference)
    for device, expected in ((CPU, on_cpu), (GPU, on_gpu)):
        assert (samples_a_copy(settings, device), sampling_dtype(settings, device)) == expected
        if expected[1] != settings.model.dtype:
            assert is_corrected(settings)
