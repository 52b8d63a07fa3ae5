"""What SFT and GRPO share of the Hugging Face trainer: arguments, interrupts, full disks."""

from __future__ import annotations

import contextlib
import errno
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from transformers import PrinterCallback, TrainingArguments

from wander.errors import RunError
from wander.models.loading import torch_device
from wander.train.config import LoggingSection, ModelSection, OfflineScheduleSection, ScheduleSection

CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)
"""What this version of transformers calls the recomputation of layers."""


def make_arguments(
    model: ModelSection, schedule: ScheduleSection, logging: LoggingSection, folder: Path
) -> dict[str, Any]:
    """Return the trainer arguments that do not depend on the algorithm: nothing leaves this machine."""
    return {
        "output_dir": str(folder / "checkpoints"),
        "learning_rate": schedule.learning_rate,
        "lr_scheduler_type": schedule.decay,
        "warmup_steps": schedule.warmup_steps,
        "max_grad_norm": schedule.max_grad_norm,
        "seed": schedule.seed,
        "use_cpu": torch_device(model.device).type == "cpu",
        "bf16": model.autocast,
        CHECKPOINTING: model.gradient_checkpointing,
        "logging_steps": 1,
        "report_to": "none",  # `wander.train.watch.reporting` makes the callbacks: they must come last
        "project": logging.project,
        "run_name": folder.resolve().name,
        "disable_tqdm": True,
        "push_to_hub": False,
        "dataloader_pin_memory": False,
        "pad_to_multiple_of": None,
    }


FEWEST_CHECKPOINTS = 2
"""That stay: the newest may be damaged, or still be written."""


def checkpoint_arguments(every: int | None, *, usual: int, kept: int) -> dict[str, Any]:
    """Return the trainer's arguments of checkpoints: one every so many steps, `usual` where `every` is None.

    Of those that were asked for the newest `kept` stay (0: all), of others the fewest.
    """
    steps = usual if every is None else every
    keeps_all = every is not None and kept == 0
    return {
        "save_strategy": "steps" if steps else "no",
        "save_steps": steps or 1,
        "save_total_limit": None if keeps_all else max(FEWEST_CHECKPOINTS, kept),
    }


OFFLINE_CHECKPOINT_STEPS = 200
"""Steps on rows that a kill costs at most, where the settings say nothing of checkpoints."""


def offline_checkpoint_arguments(schedule: OfflineScheduleSection) -> dict[str, Any]:
    """Return the trainer's arguments of the checkpoints of a run that learns from rows."""
    return checkpoint_arguments(
        schedule.checkpoint_every, usual=OFFLINE_CHECKPOINT_STEPS, kept=FEWEST_CHECKPOINTS
    )


Progress = Callable[[dict[str, Any]], None]
"""Called with the metrics of every step; `step` and `steps` are always there."""


class Interruptible(Protocol):
    """What an interrupt is noted in."""

    stop_requested: bool


def train_until_interrupted(trainer: Any, record: Interruptible, checkpoint: Path | None) -> bool:
    """Train; the first Ctrl-C or SIGTERM finishes the step and saves a checkpoint, the second stops at once.

    Returns whether the run was interrupted.
    """

    def note(number: int, frame: FrameType | None) -> None:
        if record.stop_requested:
            raise KeyboardInterrupt
        record.stop_requested = True

    trainer.remove_callback(PrinterCallback)
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may handle signals
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return record.stop_requested


@contextlib.contextmanager
def tell_full_disk(run: Path, command: str | None = None) -> Iterator[None]:
    """Turn what libraries raise when the disk is full into a `RunError`; `command` goes on with the run."""
    command = command or f"wander train --resume {run}"
    try:
        yield
    except Exception as error:
        if not _is_of_full_disk(error):
            raise
        hint = f"free space, then go on from its last checkpoint: `{command}`"
        raise RunError(f"the disk is full: cannot write to `{run}`", hint=hint) from error


def _is_of_full_disk(error: Exception) -> bool:
    """Tell whether an error means that there is no space left: libraries in other languages give its text."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    told = str(error)
    # PyTorch's archive has no other words for a write that came out short.
    return any(
        words in told for words in ("os error 28", "os error 122", "unexpected pos", "PytorchStreamWriter")
    )


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of `folder` when the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        made = Path(work) / "new"
        made.mkdir()
        yield made
        if folder.exists():
            folder.rename(Path(work) / "old")
        made.rename(folder)


def checkpoint_of(args: Any, state: Any) -> Path:
    """Return the folder of the checkpoint of the step that was just made."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def count_covered_steps(checkpoint: Path | None) -> int:
    """Return after how many steps a checkpoint was saved; 0 for none."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint is not None else 0
