"""Adapters merge to the same bits wherever they are merged, so that they alone need to travel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from wander.models.loading import LoadedModel, load_model, merge_adapters, weights_digest
from wander.train.config import ModelSection
from wander.train.weights import ADAPTERS, merge_again, save_copy, save_policy, wrap_lora


def adapted(folder: Path, dtype: str = "float32") -> tuple[PeftModel, LoadedModel]:
    """A model with adapters that learned something."""
    loaded = load_model(folder, device="cpu", dtype=dtype)
    torch.manual_seed(0)
    model = wrap_lora(loaded.model, ModelSection(path=str(folder), lora_rank=4))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return model, loaded


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().float().flatten() for _, weight in sorted(model.named_parameters())])


def test_merging_equals_peft_except_for_rounding(tiny: Path) -> None:
    ours = merge_adapters(adapted(tiny)[0])
    theirs = adapted(tiny)[0].merge_and_unload()
    assert not any("lora" in name for name, _ in ours.named_parameters())
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=1e-5, atol=1e-6)
    assert not torch.equal(flat(ours), flat(load_model(tiny, device="cpu").model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_model_is_recreated_exactly_from_its_adapters(tiny: Path, tmp_path: Path, dtype: str) -> None:
    model, loaded = adapted(tiny, dtype)
    folder = save_policy(model, loaded, tmp_path / "model")
    saved = weights_digest(folder)
    named = json.loads((folder / ADAPTERS / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == str(tiny)
    (folder / "model.safetensors").unlink()
    torch.set_num_threads(2)  # as another machine has
    assert merge_again(folder) == saved
    assert load_model(folder, device="cpu").name == tmp_path.name, "it is a whole model, not adapters"


def test_a_copy_during_training_is_exact(tiny: Path, tmp_path: Path) -> None:
    model, loaded = adapted(tiny)
    before = flat(model)
    copy = save_copy(model, loaded, tmp_path / "copy")
    assert torch.equal(flat(model), before), "what goes on learning is not touched"
    assert weights_digest(copy) == weights_digest(save_policy(model, loaded, tmp_path / "model"))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # embeddings are tied here
def test_adapters_of_layers_that_are_not_linear_merge_as_peft_does(tiny: Path) -> None:
    def embedding() -> PeftModel:
        torch.manual_seed(1)
        model = load_model(tiny, device="cpu").model
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["embed_tokens"]))
        with torch.no_grad():
            for name, weight in wrapped.named_parameters():
                if "lora_embedding" in name:
                    weight.normal_(std=0.1)
        return wrapped

    assert torch.equal(flat(merge_adapters(embedding())), flat(embedding().merge_and_unload()))
