"""Pass settings on to TRL (`[trl]`) and PEFT (`model.peft`), except arguments that Wander sets itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from wander.errors import ConfigError, did_you_mean

FREE = ("lora_alpha", "target_modules", "use_bias_correction_kl")
"""Arguments that Wander sets, but that the settings may replace."""

INSTEAD = {
    "beta": "algorithm.kl",
    "bf16": "model.autocast",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "entropy_coef": "algorithm.entropy_bonus",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "learning_rate": "schedule.learning_rate",
    "loss_type": "algorithm.loss",
    "lr_scheduler_type": "schedule.decay",
    "mask_truncated_completions": "algorithm.mask_truncated_completions",
    "max_completion_length": "sampling.max_tokens",
    "max_grad_norm": "schedule.max_grad_norm",
    "max_steps": "schedule.steps",
    "min_p": "sampling.min_p",
    "num_generations": "batch.group_size",
    "num_iterations": "algorithm.num_iterations",
    "num_train_epochs": "schedule.epochs",
    "off_policy_mask_threshold": "algorithm.off_policy_mask_threshold",
    "per_device_train_batch_size": "batch.rows_at_once",
    "r": "model.lora_rank",
    "scale_rewards": "algorithm.scale_rewards",
    "seed": "schedule.seed",
    "temperature": "sampling.temperature",
    "top_entropy_quantile": "algorithm.top_entropy_quantile",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "use_vllm": "inference.engine",
    "warmup_steps": "schedule.warmup_steps",
}
"""Wander's settings that replace arguments of the libraries, by argument."""

OWNED = (
    "accelerator_config",
    "chat_template",
    "dataloader_",
    "dataset_",
    "deepspeed",
    "disable_dropout",
    "do_",
    "eval_",
    "fp16",
    "fsdp",
    "generation_",
    "gradient_accumulation",
    "hub_",
    "include_",
    "label_names",
    "load_best",
    "log_",
    "logging_",
    "max_length",
    "model_init",
    "num_generations_eval",
    "packing",
    "padding_free",
    "parallelism_config",
    "per_device_eval",
    "push_to_hub",
    "repetition_penalty",
    "report_to",
    "resume_from",
    "reward_",
    "save_",
    "steps_per_generation",
    "trust_remote_code",
    "use_cpu",
    "use_transformers_",
    "vllm_",
    "warmup_ratio",
    "cache_implementation",
    "data_seed",
    "full_determinism",
    "auto_mapping",
    "base_model",
    "inference_mode",
    "megatron_",
    "peft_type",
    "revision",
    "task_type",
)
"""Prefixes of more arguments that Wander sets: for rollouts, rows, records, checkpoints and devices."""


def build_library_config(config: Any, own: Mapping[str, Any], more: Mapping[str, Any], section: str) -> Any:
    """Return a library's configuration, with Wander's arguments `own` and the arguments `more` of a section.

    Raises `ConfigError` for an argument that Wander sets itself, that the library does not know, or whose
    value the library rejects.
    """
    known = {field.name for field in dataclasses.fields(config) if field.init}
    for name in more:
        if name in INSTEAD or (name not in FREE and (name in own or name.startswith(OWNED))):
            setting = INSTEAD.get(name)
            raise ConfigError(
                f"`{section}.{name}`: Wander sets this argument itself",
                hint=f"set `{setting}`" if setting else "leave it out",
            )
        if name not in known:
            raise ConfigError(
                f"`{section}.{name}`: `{config.__name__}` has no such argument",
                hint=did_you_mean(name, known) or f"see the documentation of `{config.__name__}`",
            )
    optimizer = str(more.get("optim", ""))
    if ("bnb" in optimizer or "8bit" in optimizer) and find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"`{section}.optim`: `{optimizer}` needs bitsandbytes", hint="run `pip install bitsandbytes`"
        )
    if not more:
        return config(**own)
    try:
        return config(**{**own, **more})
    except (ImportError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"`{section}`: {reason}") from error
