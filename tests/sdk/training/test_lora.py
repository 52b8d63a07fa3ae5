"""Adapters hit the layers that they should, whatever an architecture calls them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM
from wander.errors import ConfigError
from wander.train.config import ModelSection
from wander.train.weights import wrap_lora

TRANSFORMER = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
LAYERS = {
    "llama": TRANSFORMER,
    "qwen2": TRANSFORMER,
    "qwen3": TRANSFORMER,
    "smollm3": TRANSFORMER,
    "lfm2": {"q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "smollm3": {"pad_token_id": 0},
}


def model_of(kind: str) -> Any:
    config = AutoConfig.for_model(
        kind,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        **OPTIONS.get(kind, {}),
    )
    return AutoModelForCausalLM.from_config(config)


def adapted(model: Any) -> set[str]:
    """Names of the layers that have an adapter."""
    return {
        name.partition(".lora_A")[0].rpartition(".")[2]
        for name, _ in model.named_parameters()
        if "lora_A" in name
    }


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_adapters_are_on_every_linear_layer_but_the_output(kind: str) -> None:
    model = wrap_lora(model_of(kind), ModelSection(path="any", lora_rank=4))
    assert adapted(model) == LAYERS[kind]
    learned = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert learned
    assert all("lora_" in name for name in learned)
    assert model.peft_config["default"].lora_alpha == 16


def test_layers_and_alpha_can_be_chosen() -> None:
    section = ModelSection(
        path="any", lora_rank=4, peft={"lora_alpha": 8, "target_modules": ["q_proj", "w2"]}
    )
    model = wrap_lora(model_of("lfm2"), section)
    assert adapted(model) == {"q_proj", "w2"}
    assert model.peft_config["default"].lora_alpha == 8
    with pytest.raises(ConfigError, match="w9"):
        wrap_lora(model_of("llama"), ModelSection(path="any", lora_rank=4, peft={"target_modules": ["w9"]}))


def test_without_a_rank_the_model_is_unchanged() -> None:
    model = model_of("llama")
    assert wrap_lora(model, ModelSection(path="any")) is model
