"""Adapters that learn on weights with 4 bits (QLoRA)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.errors import ConfigError
from wander.models.loading import (
    NOTE,
    load_model,
    noted_quantization,
    quantized_arguments,
    unquantized_copy,
    weights_digest,
)
from wander.train.config import GRPOSettings, ModelSection, SFTSettings
from wander.train.correction import GAP
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.sft import train_sft
from wander.train.weights import ADAPTERS, load_learner, merge_again, save_copy, wrap_lora

from .conftest import bandit, opener_of
from .test_sft import rows
from .test_training_faults import settings_for

installed = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs `pip install bitsandbytes`")
QUANTIZED: dict[str, Any] = {"quantization": "nf4", "lora_rank": 4}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"quantization": "nf4"}}, "lora_rank"),
        ({"model": QUANTIZED, "inference": {"engine": "vllm"}}, "inference.engine"),
        ({"model": QUANTIZED, "inference": {"engine": "vllm-server"}}, "inference.engine"),
        ({"model": QUANTIZED, "batch": {"max_staleness": 1}}, "batch.max_staleness"),
        ({"model": QUANTIZED, "players": {"o": "earlier"}}, "player `earlier`"),
    ],
)
def test_quantization_rejects_settings_that_need_full_weights(
    puller: Path, sections: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        settings_for(puller, **sections)


def test_a_machine_without_bitsandbytes_names_it(puller: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wander.models.loading.find_spec", lambda name: None)
    section = ModelSection(path=str(puller), device="cpu", **QUANTIZED)
    with pytest.raises(ConfigError, match="bitsandbytes") as refused:
        load_learner(section)
    assert refused.value.hint == "run `pip install bitsandbytes`"


def test_each_of_several_processes_loads_onto_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wander.models.loading.find_spec", lambda name: object())
    monkeypatch.setattr("transformers.BitsAndBytesConfig", dict)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    for given, used in (("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")):
        arguments = quantized_arguments("nf4", "float32", torch.device(given))
        assert arguments["device_map"] == {"": torch.device(used)}


def test_another_quantization_on_resume_is_rejected(tmp_path: Path) -> None:
    assert noted_quantization(tmp_path) is None
    (tmp_path / NOTE).write_text('{"quantization": "int2"}')
    with pytest.raises(ConfigError, match="int2"):
        noted_quantization(tmp_path)


@installed
@pytest.mark.parametrize("peft", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_a_saved_policy_computes_the_same_as_the_quantized_one(
    puller: Path, tmp_path: Path, peft: dict[str, Any]
) -> None:
    section = ModelSection(path=str(puller), device="cpu", **QUANTIZED, peft=peft)
    loaded = load_learner(section)
    plain = load_model(puller, device="cpu").model(IDS).logits
    quantized = loaded.model(IDS).logits
    assert (quantized - plain).abs().max() > 0.01, "4 bits round weights"
    torch.testing.assert_close(unquantized_copy(loaded.model)(IDS).logits, quantized, atol=1e-4, rtol=1e-4)
    model = wrap_lora(loaded.model, section)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    expected = model.eval()(IDS).logits
    folder = save_copy(model, loaded, tmp_path / "model")
    assert torch.equal(model(IDS).logits, expected), "the policy that learns is unchanged"
    saved = load_model(folder, device="cpu").model
    assert not hasattr(saved.config, "quantization_config")
    assert (saved(IDS).logits - quantized).abs().max() > 0.01
    torch.testing.assert_close(saved(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    digest = weights_digest(folder)
    (folder / "model.safetensors").unlink()
    assert merge_again(folder) == digest
    loaded.tokenizer.save_pretrained(folder / ADAPTERS)  # as checkpoints have
    adapters = load_model(folder / ADAPTERS, device="cpu").model
    torch.testing.assert_close(adapters(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ConfigError, match="must be merged"):
        load_learner(section, str(folder / ADAPTERS))


@installed
@pytest.mark.parametrize("loss", ["dapo", "rloo"])
def test_adapters_learn_on_weights_with_4_bits(puller: Path, tmp_path: Path, loss: str) -> None:
    def settings(steps: int) -> GRPOSettings:
        return settings_for(
            puller,
            model=QUANTIZED,
            algorithm={"loss": loss},
            schedule={"steps": steps, "learning_rate": 1e-2},
            evaluation={"every": 2, "examples": 4},
            output={"keep_best": "eval/payoff", "checkpoint_every": 1},
        )

    digests = []
    for name in ("one", "again"):
        result = train_grpo(opener_of(bandit), settings(3), tmp_path / name)
        digests.append(weights_digest(result.model))
    assert digests[0] == digests[1]
    entries = read_metrics(tmp_path / "one")
    assert [entry["failed"] for entry in entries] == [0] * 3
    assert max(entry[f"{GAP}/max"] for entry in entries) < 0.05
    assert all(entry["grad_norm"] > 0 for entry in entries)
    checkpoint = load_model(tmp_path / "one" / "checkpoints" / "checkpoint-3", device="cpu").model
    final = load_model(tmp_path / "one" / "model", device="cpu").model
    torch.testing.assert_close(checkpoint(IDS).logits, final(IDS).logits)
    adapters = torch.load(
        tmp_path / "one" / "checkpoints" / "checkpoint-3" / "optimizer.pt", weights_only=True
    )
    assert {state["exp_avg"].dtype for state in adapters["state"].values()} == {torch.float32}


@installed
def test_fine_tuning_learns_on_weights_with_4_bits_and_resumes(tiny: Path, tmp_path: Path) -> None:
    settings = SFTSettings(
        model={"path": str(tiny), "device": "cpu", **QUANTIZED},
        batch={"rows": 8},
        schedule={"steps": 12, "learning_rate": 2e-2, "checkpoint_every": 4},
    )
    result = train_sft(rows(), settings, tmp_path / "run")
    assert result.final_loss < result.first_loss - 1
    assert noted_quantization(tmp_path / "run" / "checkpoints" / "checkpoint-12") == "nf4"
