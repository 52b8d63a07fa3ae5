"""Adapters of low rank on the layers of any architecture."""

from __future__ import annotations

from typing import Any

from wander.errors import ConfigError
from wander.models.quiet import quiet_libraries
from wander.train.config import ModelSection


def wrap_lora(model: Any, section: ModelSection) -> Any:
    """Return the model with adapters as the settings say, or itself for rank 0.

    `auto` asks the model for its linear layers, so each architecture's own names are found (LFM2: in_proj,
    out_proj, w1, w2, w3 beside the projections of its attention); the output layer is never one of them.
    """
    if section.lora_rank == 0:
        return model
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        r=section.lora_rank,
        lora_alpha=section.lora_alpha or 4 * section.lora_rank,
        target_modules="all-linear" if section.lora_targets == "auto" else list(section.lora_targets),
        task_type="CAUSAL_LM",
    )
    try:
        with quiet_libraries():
            return get_peft_model(model, adapters)
    except ValueError as error:
        raise ConfigError(
            f"`model.lora_targets`: {str(error).splitlines()[0]}", hint="`auto` finds the layers of any model"
        ) from error
