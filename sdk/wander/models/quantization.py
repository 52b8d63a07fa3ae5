"""4-bit weights (NF4 of bitsandbytes), on which adapters learn: QLoRA.

Only the linear layers of a policy are quantized, and only while it learns. What it learned is merged into a
copy with dequantized weights, which computes what the policy computes. A folder with adapters of a quantized
model contains a file that says so, because the same adapters on other weights are another policy.
"""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wander.errors import ConfigError

if TYPE_CHECKING:
    import torch

Quantization = Literal["nf4"]
"""Kinds of weights with 4 bits. `nf4` has 16 values at the quantiles of a normal distribution."""

NOTE = "quantization.json"
"""File next to adapters that names the quantization of the weights that they belong to."""


def quantized_arguments(kind: Quantization, dtype: str, place: torch.device) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load a model in 4 bits.

    The layers compute in `dtype`. Raises `ConfigError` if bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise ConfigError("`model.quantization` needs bitsandbytes", hint="run `pip install bitsandbytes`")
    import torch
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )
    return {"quantization_config": config, "device_map": {"": place}}


def is_quantized(model: Any) -> bool:
    """Return whether a model, or the model below its adapters, has weights with 4 bits."""
    return getattr(model, "quantization_method", None) is not None


def keep_weights(model: Any) -> None:
    """Make a quantized model sample with the weights that it learns with.

    On some CPUs, bitsandbytes 0.50 rounds the scales of the weights to bfloat16 when a model first samples,
    also for its later training, and fails for layers with fewer than 64 inputs.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def unquantized_copy(model: Any) -> Any:
    """Return a copy of a quantized model on the CPU, with dequantized weights and without adapters."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    plain = model.get_base_model() if hasattr(model, "peft_config") else model
    config = copy.deepcopy(plain.config)
    del config.quantization_config
    twin = type(plain)(config).to(plain.dtype)
    weights = {}
    for name, module in plain.named_modules():
        layer = getattr(module, "base_layer", module)
        if hasattr(getattr(layer, "weight", None), "quant_state"):
            weights[f"{name}.weight"] = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    for name, parameter in plain.named_parameters():
        if "lora_" not in name:
            weights.setdefault(name.replace(".base_layer", ""), parameter.detach())
    with torch.no_grad():
        for name, own in twin.named_parameters():
            own.copy_(weights[name])
    twin.generation_config = copy.deepcopy(plain.generation_config)
    return twin.eval()


def note_quantization(model: Any, folder: Path) -> None:
    """Write the quantization of a model into the folder with its adapters, if it is quantized."""
    if is_quantized(model):
        (folder / NOTE).write_text(json.dumps({"quantization": "nf4"}) + "\n", encoding="utf-8")


def noted_quantization(folder: Path) -> Quantization | None:
    """Return the quantization of the weights that the adapters in a folder belong to; None if there is none.

    Raises `ConfigError` for an unknown quantization.
    """
    file = folder / NOTE
    if not file.is_file():
        return None
    kind = json.loads(file.read_text(encoding="utf-8")).get("quantization")
    if kind != "nf4":
        raise ConfigError(f"`{file}`: `{kind}` is not a known quantization")
    return "nf4"
