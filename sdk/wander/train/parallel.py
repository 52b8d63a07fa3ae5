"""A policy that is sharded over a run's processes with FSDP2: `parallel.policy`, or `accelerate launch`.

Each process holds its part of every weight, of its gradient and of the optimizer's state; a layer is gathered
while it is computed. accelerate does so, where it finds GPUs. FSDP2 itself needs none, so here it shards on
CPUs too, and what runs on GPUs is what the tests run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from wander.errors import ConfigError
from wander.train.config import GRPOSettings
from wander.train.processes import World, require_divisible

_TOLD_BY_ENVIRONMENT = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
"""Variables by which transformers and accelerate tell each other of a sharded policy."""


def shards_policy(settings: GRPOSettings) -> bool:
    """Return whether the policy of a run is sharded over its processes."""
    return settings.parallel.policy == "fsdp2" or _launched_sharded()


def is_sharded(model: Any) -> bool:
    """Return whether this process holds but a part of a model's weights."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


@contextlib.contextmanager
def shared_out(settings: GRPOSettings, world: World) -> Iterator[None]:
    """Check that the processes can share what the settings want; what sharding leaves ends with the block.

    Raises `ConfigError` for groups that cannot be dealt out evenly and a policy that cannot be sharded.
    """
    world.together(lambda: _require_shared(settings, world))
    before = {name: os.environ.get(name) for name in _TOLD_BY_ENVIRONMENT}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sharding_arguments(settings: GRPOSettings) -> dict[str, Any]:
    """Return the trainer arguments of a sharded policy; none where the launcher brings its own."""
    if not shards_policy(settings) or _launched_sharded():
        return {}
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            "state_dict_type": "FULL_STATE_DICT",
        },
    }


def shard_on_any_device() -> None:
    """Have the accelerator that is made next shard on CPUs too.

    accelerate turns several processes on GPUs into sharding ones and leaves those on CPUs alone: so these
    call themselves the former for the moment in which it decides.
    """
    from accelerate import PartialState  # type: ignore[import-untyped]
    from accelerate.utils import DistributedType  # type: ignore[import-untyped]

    if PartialState().distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def _launched_sharded() -> bool:
    return _is_set("ACCELERATE_USE_FSDP")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in ("1", "true", "yes")


def _require_shared(settings: GRPOSettings, world: World) -> None:
    require_divisible(settings, world)
    if shards_policy(settings):
        _require_shardable(settings, world)


def _require_shardable(settings: GRPOSettings, world: World) -> None:
    if world.size == 1:
        raise ConfigError(
            "a policy is sharded over several processes, and this is one",
            hint="start them with `torchrun --standalone --nproc-per-node 2 -m wander_client train ...`",
        )
    if settings.model.lora_rank:
        raise ConfigError(
            "adapters (`model.lora_rank`) cannot be sharded: they leave nothing large to shard",
            hint='set `parallel.policy = "replicated"`, or `model.lora_rank = 0`',
        )
    if not _launched_sharded():
        return
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError(
            "the launcher shards by FSDP1, which is not supported",
            hint="write `fsdp_version: 2` in its configuration",
        )
    if os.environ.get("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT") != "FULL_STATE_DICT":
        raise ConfigError(
            "the launcher's checkpoints would hold no weights that anything else can load",
            hint="write `fsdp_state_dict_type: FULL_STATE_DICT` in its configuration",
        )
    if _is_set("FSDP_ACTIVATION_CHECKPOINTING"):
        raise ConfigError(
            "`fsdp_activation_checkpointing` of the launcher would give weights other names",
            hint="leave it out, and set `model.gradient_checkpointing = true`",
        )
