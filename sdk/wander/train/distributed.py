"""A run in several processes: the role of each process, and communication between them.

`torchrun` or `accelerate launch` starts all processes with the same program. Each of them plays its share of
a step's groups, and the gradients are averaged. All processes compute from the same values which examples
come next and whether to stop. Only the main process writes the run's folder. The others write to temporary
folders, so that other code does not have to distinguish them.

A process that fails reports it to the others at their next exchange, and they exit. A process that dies
closes its connections, which also ends the others. The main process prints the error. The others wait until
it has done so, because launchers kill all processes as soon as the first one exits.

The policy can be sharded over the processes with FSDP2 (`parallel.policy`, or `accelerate launch`). Each
process then holds its part of every weight, of its gradient and of the optimizer's state, and a layer is
gathered while it is computed. accelerate shards only on GPUs. FSDP2 itself also works on CPUs, so the tests
shard there.

Importing this module does not load PyTorch, because the command line needs it to find the role of its
process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from wander.errors import ConfigError, RunError

if TYPE_CHECKING:
    from wander.train.config import GRPOSettings

Result = TypeVar("Result")

EXCHANGE_LIMIT = timedelta(hours=24)
"""Maximum time that processes wait for a process with slower rollouts."""

LEAVING_LIMIT = timedelta(minutes=5)
"""Maximum time that the other processes wait while the main process prints the error."""


class PeerFailed(RunError):
    """Raised if another process of the run failed."""


class PeerLost(PeerFailed):
    """Raised if another process of the run exited without an error."""


class _Failure(NamedTuple):
    """The error of a process, as sent to the other processes."""

    words: str
    hint: str | None


class World:
    """The processes of a run, seen from one of them. In a single process every method returns immediately."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._failure_is_known = False

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run."""
        return self.rank == 0

    def exchange(self, items: list[Any]) -> list[Any]:
        """Return the items of all processes, in the order of their ranks.

        Raises `PeerFailed` if another process failed before this exchange.
        """
        return [item for own in self._gather(items, None) for item in own]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return any(self.exchange([flag]))

    def together(self, work: Callable[[], Result]) -> Result:
        """Call a function in every process; if it fails in one process, it fails in all of them."""
        try:
            result = work()
        except PeerFailed:
            raise
        except BaseException as error:
            self._tell(error)
            raise
        self._gather([], None)
        return result

    def from_main(self, make: Callable[[], Result]) -> Result:
        """Return the main process's result of a function in all processes."""
        return self.exchange([self.together(make if self.is_main else lambda: None)])[0]  # type: ignore[no-any-return]

    def wait_for_main_failure(self) -> bool:
        """Wait for the main process; return whether it prints the failure that ends this process.

        Returns False immediately in the main process, and if the other processes do not know of the failure.
        """
        if self.is_main or not self._failure_is_known:
            return False
        from torch import distributed

        with contextlib.suppress(RuntimeError):  # the main process has already exited
            distributed.monitored_barrier(group=self._group, timeout=LEAVING_LIMIT)
        return True

    def _tell(self, error: BaseException) -> None:
        try:
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._gather([], _Failure(words, getattr(error, "hint", None)))
        except PeerLost:
            return
        except PeerFailed:
            pass  # both processes failed, and both know of a failure
        self._failure_is_known = True

    def _gather(self, items: list[Any], failure: _Failure | None) -> list[list[Any]]:
        if self.size == 1:
            return [items]
        from torch import distributed

        answers: list[Any] = [None] * self.size
        try:
            distributed.all_gather_object(answers, (items, failure), group=self._group)
        except RuntimeError as error:
            raise PeerLost("another process of the run exited without an error") from error
        for rank, (_, failed) in enumerate(answers):
            if failed is not None and rank != self.rank:
                self._failure_is_known = True
                raise PeerFailed(f"process {rank} of {self.size} failed: {failed.words}", hint=failed.hint)
        return [own for own, _ in answers]


_world: World | None = None
"""Processes of the run that this process has joined."""


def is_launched() -> bool:
    """Return whether `torchrun` or `accelerate launch` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_secondary_process() -> bool:
    """Return whether this process is one of several, and not the first."""
    return is_launched() and int(os.environ.get("RANK", "0")) > 0


def current_world(device: str | None = None) -> World:
    """Return the processes of this run; the first call in a launched process joins them.

    `device` is the device in the settings; with `cpu`, gloo also transfers the gradients.
    """
    global _world
    if not is_launched():
        return World()
    if _world is None:
        from accelerate import PartialState  # type: ignore[import-untyped]
        from torch import distributed

        from wander.models.loading import torch_device

        state = PartialState(cpu=torch_device(device).type == "cpu")
        # Objects always use gloo, which works without a GPU and allows long waits.
        group = distributed.new_group(backend="gloo", timeout=EXCHANGE_LIMIT)
        _world = World(state.process_index, state.num_processes, group)
    return _world


def join_world() -> World:
    """Return the processes that this one has joined, or a single process."""
    return _world or World()


def rows_and_accumulation(settings: GRPOSettings, size: int) -> tuple[int, int]:
    """Return the number of rows in a backward pass of one process, and of backward passes in an update."""
    share = settings.batch.rollouts // size
    rows = min(settings.batch.rows_at_once, share)
    while share % rows:
        rows -= 1
    return rows, share // rows


@contextlib.contextmanager
def process_folder(folder: Path, world: World) -> Iterator[Path]:
    """Yield the folder that this process writes to: the run's folder, or a temporary one.

    The temporary folder starts with the files of a resumed run, because later steps may depend on them.
    """
    if world.is_main:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=f"wander-process-{world.rank}-") as scratch:
        own = Path(scratch) / folder.name
        if folder.is_dir():
            own.mkdir()
            for file in folder.glob("*.json*"):
                if not file.name.startswith(("run.json", "rollouts")):
                    shutil.copy2(file, own / file.name)
        yield own


_TOLD_BY_ENVIRONMENT = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
"""Environment variables that transformers and accelerate use for a sharded policy."""


def shards_policy(settings: GRPOSettings) -> bool:
    """Return whether the policy of a run is sharded over its processes."""
    return settings.parallel.policy == "fsdp2" or _is_launched_sharded()


def is_sharded(model: Any) -> bool:
    """Return whether this process holds only a part of a model's weights."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


@contextlib.contextmanager
def sharing_work(settings: GRPOSettings, world: World) -> Iterator[None]:
    """Check that the processes can share the work, and restore the environment variables after the block.

    Raises `ConfigError` for groups that cannot be shared evenly, and for a policy that cannot be sharded.
    """
    world.together(lambda: _require_shareable(settings, world))
    before = {name: os.environ.get(name) for name in _TOLD_BY_ENVIRONMENT}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make_sharding_arguments(settings: GRPOSettings) -> dict[str, Any]:
    """Return the trainer arguments of a sharded policy; empty if the launcher has its own."""
    if not shards_policy(settings) or _is_launched_sharded():
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


def _is_launched_sharded() -> bool:
    return _is_set("ACCELERATE_USE_FSDP")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in ("1", "true", "yes")


def _require_shareable(settings: GRPOSettings, world: World) -> None:
    """Raise `ConfigError` if the processes cannot share the groups of a step, or the policy."""
    batch = settings.batch
    if batch.groups % world.size:
        raise ConfigError(
            f"{batch.groups} groups per step cannot be shared evenly by {world.size} processes",
            hint=f"make `batch.rollouts` a multiple of {world.size * batch.group_size}, "
            "processes x group_size",
        )
    if not shards_policy(settings):
        return
    if world.size == 1:
        raise ConfigError(
            "a sharded policy needs several processes, but there is only this one",
            hint="start them with `torchrun --standalone --nproc-per-node 2 -m wander_client train ...`",
        )
    if settings.model.lora_rank:
        raise ConfigError(
            "adapters (`model.lora_rank`) cannot be sharded: their gradients and optimizer state are small",
            hint='set `parallel.policy = "replicated"`, or `model.lora_rank = 0`',
        )
    if not _is_launched_sharded():
        return
    if settings.algorithm.loss == "distill":
        raise ConfigError("the loss `distill` does not support a sharded policy", hint="launch without FSDP")
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError(
            "the launcher shards by FSDP1, which is not supported",
            hint="write `fsdp_version: 2` in its configuration",
        )
    if os.environ.get("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT") != "FULL_STATE_DICT":
        raise ConfigError(
            "other programs could not load the weights in the launcher's checkpoints",
            hint="write `fsdp_state_dict_type: FULL_STATE_DICT` in its configuration",
        )
    if _is_set("FSDP_ACTIVATION_CHECKPOINTING"):
        raise ConfigError(
            "`fsdp_activation_checkpointing` of the launcher would change the names of weights",
            hint="leave it out, and set `model.gradient_checkpointing = true`",
        )
