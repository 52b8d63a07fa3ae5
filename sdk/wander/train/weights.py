"""The policy's weights: their adapters, and saving."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from wander.errors import ConfigError
from wander.models.engines.weights import whole_weights
from wander.models.loading import (
    LoadedModel,
    is_quantized,
    load_model,
    merge_adapters,
    note_quantization,
    noted_quantization,
    require_no_code,
    weights_digest,
    with_adapters,
)
from wander.models.quiet import quiet_libraries
from wander.system.folders import replace_folder
from wander.train.config import ModelSection
from wander.train.distributed import is_secondary_process, is_sharded
from wander.train.internals import keep_adapters_exact
from wander.train.settings.library_arguments import build_library_config


def load_learner(section: ModelSection, path: str | None = None) -> LoadedModel:
    """Load the model to train, or another model from `path` with the same device, type and attention."""
    return load_model(
        path or section.path,
        device=section.device,
        dtype=section.dtype,
        attention=section.attention,
        quantization=section.quantization,
        computes_in="bfloat16" if section.autocast else None,
    )


def wrap_lora(model: Any, section: ModelSection) -> Any:
    """Return the model with the adapters in the settings, or the model itself for rank 0.

    By default, PEFT asks the model for its linear layers, so that the names of each architecture are found
    (such as LFM2's in_proj, out_proj, w1, w2 and w3, in addition to the projections of its attention). The
    output layer is never included.
    """
    if section.lora_rank == 0:
        return model
    from peft import LoraConfig, get_peft_model

    own = {
        "r": section.lora_rank,
        "lora_alpha": 4 * section.lora_rank,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
    }
    adapters = build_library_config(LoraConfig, own, section.peft, "model.peft")
    try:
        with quiet_libraries():
            wrapped = get_peft_model(model, adapters)
    except ValueError as error:
        raise ConfigError(
            f"`model.peft`: {str(error).splitlines()[0]}",
            hint='`target_modules = "all-linear"`, the default, finds the layers of any model',
        ) from error
    if is_quantized(model):
        keep_adapters_exact(model)
    return wrapped


class QuantizationNote(TrainerCallback):  # type: ignore[misc]
    """Notes in each checkpoint with adapters that they belong to quantized weights."""

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **unused: Any) -> None:
        """Write the note; the record then seals the checkpoint."""
        if state.is_world_process_zero:
            note_quantization(model, Path(args.output_dir) / f"checkpoint-{state.global_step}")


def turn_off_dropout(model: Any) -> None:
    """Set every dropout of a model to 0, so that training and sampling use the same probabilities.

    TRL's `disable_dropout` changes only modules of the class `Dropout`. Attention layers read their dropout
    from an attribute of the module or of the config, and OPT's `layerdrop` skips whole layers.
    """
    config = model.config
    for holder in (config, config.get_text_config(), *model.modules()):
        if isinstance(holder, torch.nn.Dropout):
            holder.p = 0.0
        for name, value in vars(holder).items():
            if "drop" in name and isinstance(value, float):
                setattr(holder, name, 0.0)


ADAPTERS = "adapters"
"""Folder in a saved model with the adapters that were merged into it."""


def save_policy(model: Any, loaded: LoadedModel, folder: Path) -> Path:
    """Write the policy with merged adapters and its tokenizer in Hugging Face format.

    The folder appears only when it is complete. The adapters are also kept in `adapters`, because they have
    only a hundredth of the size. All processes gather a sharded policy, and the main process writes it.
    """
    whole = None
    if is_sharded(model):
        whole = {
            name: weight.to("cpu") for name, weight in whole_weights(model) if not is_secondary_process()
        }
        if is_secondary_process():
            return folder
    with replace_folder(folder) as place:
        if hasattr(model, "merge_and_unload"):
            model.save_pretrained(place / ADAPTERS, save_embedding_layers=False)
            note_quantization(model, place / ADAPTERS)
            if is_quantized(model):
                with quiet_libraries():
                    model = with_adapters(model, place / ADAPTERS)
            else:
                model = merge_adapters(model)
        model.save_pretrained(place, state_dict=whole)
        loaded.tokenizer.save_pretrained(place)
    return folder


def merge_again(folder: Path, base: str | Path | None = None) -> str | None:
    """Recreate the weights of a saved model from its base and its `adapters`; return their digest.

    The result has the same bits as the saved weights if `base` is the same. None means the base that the
    adapters name.
    """
    require_no_code(folder)
    named = json.loads((folder / ADAPTERS / "adapter_config.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with quiet_libraries():
        loaded = load_model(
            base or named["base_model_name_or_path"],
            device="cpu",
            dtype=config.get("dtype") or "float32",
            quantization=noted_quantization(folder / ADAPTERS),
        )
        with_adapters(loaded.model, folder / ADAPTERS).save_pretrained(folder)
    return weights_digest(folder)


def save_copy(model: Any, loaded: LoadedModel, folder: Path) -> Path:
    """Write the weights during training; adapters are merged in a copy on the CPU.

    Merging adapters into the policy and removing them again would change the last bits of the weights.
    """
    if hasattr(model, "merge_and_unload") and not is_quantized(model):
        known: dict[int, Any] = {
            id(tensor): torch.nn.Parameter(tensor.detach().cpu().clone(), requires_grad=tensor.requires_grad)
            for tensor in model.parameters()
        }
        known |= {id(tensor): tensor.detach().cpu().clone() for tensor in model.buffers()}
        model = copy.deepcopy(model, known)
    return save_policy(model, loaded, folder)
