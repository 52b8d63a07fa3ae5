"""Loading of local language models: `smollm2`, a folder, a model of a hub, or a Hugging Face repository."""

from __future__ import annotations

import copy
import json
import os
import stat
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from wander.errors import ConfigError, ModelNotFound, require_extra
from wander.models.hugging_face import only_cached
from wander.models.pulled import find_pulled, pulled_at, require_sound
from wander.models.quiet import quiet_libraries
from wander.models.smollm2 import SMOLLM2, pull_smollm2
from wander.system.plain_files import open_file
from wander.wire.models import MOST_PLAIN_BYTES, SCHEME, WEIGHTS, weights_of
from wander.wire.postings import file_digest

if TYPE_CHECKING:
    import torch

    from wander.models.chat import ChatFormat, ChatOptions

_CODE = (".py", ".pyc", ".pyx", ".so")
"""Suffixes of files that contain code."""
_TEXTS = (".json", ".txt", ".jinja", ".md", ".model")
_CODE_KEYS = ("auto_map", "custom_pipelines", "auto_mapping", "megatron_config")
"""Settings that name code in a repository, or a module that peft imports."""
_ATTENTION_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
"""Settings that name an attention kernel. A name with a slash is a repository, which transformers would
load."""
NOTE = "quantization.json"
"""File next to adapters that names the quantization of the weights that they belong to. The same adapters on
other weights are another policy."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in this process, with its tokenizer."""

    model: Any
    tokenizer: Any
    name: str
    """Name of the model, as shown on a leaderboard."""
    path: Path | None
    """Folder that the model was loaded from, if it is a local one."""
    revision: str | None = None
    """Revision of a model that was pulled from a hub."""


def load_model(
    name: str | Path,
    *,
    device: str | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    attention: str = "sdpa",
    quantization: str | None = None,
    computes_in: str | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer.

    `name` is `smollm2` (downloaded on first use), a folder in Hugging Face format, `hub:owner/name` for a
    model that `wander model pull` fetched, or a Hugging Face repository. If `device` is None, a GPU is used
    if available. If `quantization` is `nf4`, the linear layers have 4 bits and compute in `computes_in` (None
    means `dtype`). Raises `ModelNotFound` for an unknown name, `ConfigError` if weights and tokenizer do not
    fit together, and `EndpointUnreachable` if Hugging Face does not respond and the model is not in its
    cache.
    """
    with require_extra("transformers", needed_for="running a model in this process"):
        import transformers
    if "/" in attention:
        raise ConfigError(
            f"`{attention}` is a kernel of a repository, whose code is not run",
            hint="use `sdpa`, `eager` or `flash_attention_2`",
        )
    source, shown = resolve_model(name)
    local = Path(source) if Path(source).is_dir() else None
    base = find_adapted_model(local)
    require_no_code(source)
    if base is not None:
        require_no_code(base)
    given: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    if local is None:
        given["local_files_only"] = only_cached(source, revision)
    place = torch_device(device)
    noted = noted_quantization(local) if local is not None and base is not None else None
    if quantization is not None and base is not None:
        raise ConfigError(
            f"`{name}` contains adapters, which must be merged before the weights are quantized",
            hint="use the folder `model` of the run, which contains merged weights",
        )
    kind = quantization or noted
    bits = quantized_arguments(kind, computes_in or dtype, place) if kind is not None else {}
    try:
        with quiet_libraries():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, padding_side="left", **given)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                base or source, dtype=dtype, attn_implementation=attention, **bits, **given
            )
            if local is not None and base is not None:
                model = with_adapters(model, local)
            if quantization is not None:
                keep_weights(model)
    except Exception as error:  # the libraries raise any exception for a damaged folder
        raise ModelNotFound(
            f"cannot load a model from `{name}`: {_first_line(error)}",
            hint="pass a folder with config.json, tokenizer and weights, `smollm2`, or a Hugging Face name",
        ) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    _require_fit(name, tokenizer, model)
    if place.type == "cuda":
        import torch

        # cuDNN plans attention for every new length, and a conversation has a new length at every token.
        torch.backends.cuda.enable_cudnn_sdp(False)
    model = model.to(place).eval()
    pulled = pulled_at(local) if local is not None else None
    revision = pulled.record.revision if pulled is not None else None
    return LoadedModel(model=model, tokenizer=tokenizer, name=shown, path=local, revision=revision)


def require_no_code(place: str | Path) -> None:
    """Raise `ConfigError` if a model's folder contains code, which is never run.

    Special files and very large text files, which a library would read, are rejected, too. Names of
    repositories are not checked, because the library rejects repositories with code itself.
    """
    folder = Path(place)
    if not folder.is_dir():
        return
    code = []
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        code += [str(Path(path, name).relative_to(folder)) for name in names if name.endswith(_CODE)]
        for file in (Path(path, name) for name in names if not name.endswith(_CODE)):
            _require_file(file)
    for file in sorted(folder.glob("*.json")):
        if file.name.endswith("config.json") and _names_code(_read_config(file)):
            code.append(f"{file.name} (`auto_map`)")
    if code:
        raise ConfigError(
            f"`{folder}` contains custom code, which is never run: {', '.join(sorted(code)[:5])}",
            hint="use a model whose code is part of transformers, without Python files in its folder",
        )


def _require_file(file: Path) -> None:
    """Raise `ConfigError` unless the path is a regular file, with a limited size if it does not hold
    weights."""
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"`{file}` cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"`{file}` is a special file", hint="remove it from the model's folder")
    if file.name.endswith(_TEXTS) and status.st_size > MOST_PLAIN_BYTES:
        raise ConfigError(f"`{file}` has more than {MOST_PLAIN_BYTES:,} bytes", hint="leave it out")


def _read_config(file: Path) -> Any:
    try:
        with open_file(file) as stream:  # the file may be a link in the Hugging Face cache
            text = stream.read(MOST_PLAIN_BYTES + 1)
        if len(text) > MOST_PLAIN_BYTES:
            raise ValueError(f"it has more than {MOST_PLAIN_BYTES:,} bytes")
        return from_json(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"`{file}` cannot be read: {error}") from error


def _names_code(config: Any) -> bool:
    """Return whether settings of a model name custom code, or a module to import."""
    if isinstance(config, list):
        return any(map(_names_code, config))
    if not isinstance(config, dict):
        return False
    attention = (config.get(name) for name in _ATTENTION_KEYS)
    names_repository = any(isinstance(kernel, str) and "/" in kernel for kernel in attention)
    return (
        names_repository
        or any(config.get(name) for name in _CODE_KEYS)
        or any(map(_names_code, config.values()))
    )


def _require_fit(name: str | Path, tokenizer: Any, model: Any) -> None:
    """Raise `ConfigError` if the tokenizer can produce a token id that the weights have no row for.

    Special tokens that never result from text may have larger ids. Gemma 3 has such a token for images.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    used = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id}
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    vocabulary = tokenizer.get_vocab().values()
    highest = max((number for number in vocabulary if number not in special - used), default=-1)
    if highest >= rows:
        raise ConfigError(
            f"weights and tokenizer of `{name}` do not fit: a token has id {highest}, "
            f"but the weights have {rows} rows",
            hint="use the tokenizer that the model was trained with",
        )


def load_chat_format(name: str | Path, options: ChatOptions | None = None) -> ChatFormat:
    """Return the chat format of a model without loading its weights; raises `ModelNotFound`."""
    with require_extra("transformers", needed_for="reading the calls of a local model"):
        import transformers
    from wander.models.chat import ChatFormat

    require_no_code(name)
    try:
        with quiet_libraries():
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the library raises any exception for a damaged folder
        raise ModelNotFound(f"`{name}` has no tokenizer: {_first_line(error)}") from error
    return ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]), options)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def find_adapted_model(folder: Path | None) -> str | None:
    """Return the model that the adapters in a folder belong to; None for a folder with a whole model.

    Checkpoints of runs with `lora_rank` are folders with adapters.
    """
    if folder is None or (folder / "config.json").is_file():
        return None
    config = _read_config(folder / "adapter_config.json")
    if not isinstance(config, dict) or not isinstance(config.get("base_model_name_or_path"), str):
        raise ConfigError(f"`{folder / 'adapter_config.json'}` does not name a model")
    return str(config["base_model_name_or_path"])


def with_adapters(model: Any, folder: Path) -> Any:
    """Return a model with the adapters in a folder merged into its weights.

    If the adapters belong to quantized weights, these are dequantized first.
    """
    with require_extra("train", needed_for="loading adapters"):
        from peft import PeftModel
    require_no_code(folder)
    plain = unquantized_copy(model) if noted_quantization(folder) else model
    merged = merge_adapters(PeftModel.from_pretrained(plain, str(folder)))
    return merged.requires_grad_(True)  # the merged weights can be trained again


def merge_adapters(model: Any) -> Any:
    """Return a model with its adapters merged into its weights, with the same bits on every device.

    Devices sum the product of two matrices in different orders. Here, the ranks are therefore added one after
    the other, so that a run's adapters can be merged on another machine with the same result.
    """
    import torch
    from peft.tuners import lora

    layers = [layer for layer in model.modules() if isinstance(layer, lora.LoraLayer)]
    if any(type(layer) is not lora.Linear or layer.fan_in_fan_out or layer.lora_variant for layer in layers):
        return model.merge_and_unload()
    with torch.no_grad():
        for layer in layers:
            weight = layer.get_base_layer().weight
            for name in layer.active_adapters:
                down, up = layer.lora_A[name].weight.float(), layer.lora_B[name].weight.float()
                change = torch.zeros(weight.shape, device=weight.device)
                for rank in range(len(down)):
                    change += up[:, rank, None] * down[rank]
                weight.copy_(weight.float() + change * layer.scaling[name])
    return model.unload()


def quantized_arguments(kind: str, dtype: str, place: torch.device) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load a model in 4 bits.

    The layers compute in `dtype`. Raises `ConfigError` if bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise ConfigError("`model.quantization` needs bitsandbytes", hint="run `pip install bitsandbytes`")
    import torch
    import transformers

    if place.type == "cuda" and place.index is None:
        # accelerate compares this device with that of the process, which has an index if there are several.
        place = torch.device("cuda", torch.cuda.current_device())
    config = transformers.BitsAndBytesConfig(
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


def noted_quantization(folder: Path) -> str | None:
    """Return the quantization of the weights that the adapters in a folder belong to, or None.

    Raises `ConfigError` for an unknown quantization.
    """
    file = folder / NOTE
    if not file.is_file():
        return None
    kind = json.loads(file.read_text(encoding="utf-8")).get("quantization")
    if kind != "nf4":
        raise ConfigError(f"`{file}`: `{kind}` is not a known quantization")
    return "nf4"


def resolve_model(name: str | Path) -> tuple[str, str]:
    """Return the path or repository to load a model from, and the model's name."""
    text = str(name)
    pulled = find_pulled(text) if text.startswith(SCHEME) else pulled_at(Path(text).expanduser())
    if pulled is not None:
        require_sound(pulled)
        return str(pulled.folder), pulled.name
    folder = Path(text).expanduser()
    if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
        return str(folder), model_name(folder)
    if folder.is_dir():
        raise ModelNotFound(
            f"`{folder}` does not contain a model: it has no config.json",
            hint="create a model with `wander model new tiny`, or pass the folder of a checkpoint",
        )
    if text.lower() in {"smollm2", SMOLLM2.lower(), f"HuggingFaceTB/{SMOLLM2}".lower()}:
        return str(pull_smollm2()), SMOLLM2
    # If there is a folder `runs`, then `runs/model` is a missing folder, not a repository to look up.
    if text.startswith((".", "/", "~")) or text.count("/") > 1 or Path(text.partition("/")[0]).is_dir():
        raise ModelNotFound(
            f"there is no folder `{text}`", hint="run `wander model list` to see the models here"
        )
    return text, text


def model_name(folder: Path) -> str:
    """Return the name of the model in a folder: the folder's name, or its parent's if it is called `model`.

    A model that was pulled from a hub has its name on the hub.
    """
    whole = folder.resolve()
    if (pulled := pulled_at(whole)) is not None:
        return pulled.name
    return whole.parent.name if whole.name == "model" else whole.name


def torch_device(device: str | None) -> torch.device:
    """Return the device to run on; None means a GPU if available."""
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def weights_digest(folder: Path) -> str | None:
    """Return the SHA-256 of the names and bytes of the safetensors files in a folder; None without such
    files."""
    return weights_of({file.name: file_digest(file) for file in folder.glob(f"*{WEIGHTS}")})
