"""Common parts of SFT and GRPO with the Hugging Face trainer: arguments, interrupts, full disks."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import PrinterCallback, TrainingArguments

from wander.errors import RunError
from wander.models.loading import torch_device
from wander.train.config import LoggingSection, ModelSection, ScheduleSection
from wander.train.distributed import is_launched
from wander.train.internals import save_checkpoint, wrap_checkpoints
from wander.train.records.checkpoints import SEAL, SavedCheckpoint
from wander.train.records.record import TrainingRecord

CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)
"""Name that this version of transformers uses for the recomputation of layers."""


def make_arguments(
    model: ModelSection, schedule: ScheduleSection, logging: LoggingSection, folder: Path
) -> dict[str, Any]:
    """Return the trainer arguments that do not depend on the algorithm, and that keep all data on this
    machine."""
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
        # `wander.train.watch.reporting` creates these callbacks, because they must come last
        "report_to": "none",
        "project": logging.project,
        "run_name": folder.resolve().name,
        "disable_tqdm": True,
        "push_to_hub": False,
        "dataloader_pin_memory": False,
        "pad_to_multiple_of": None,
    }


FEWEST_CHECKPOINTS = 2
"""Minimum number of checkpoints to keep, because the newest may be damaged or incomplete."""


def checkpoint_arguments(every: int | None, usual: int, kept: int = FEWEST_CHECKPOINTS) -> dict[str, Any]:
    """Return the trainer arguments for a checkpoint every `every` steps, or every `usual` steps if that is
    None.

    If the settings request checkpoints, the newest `kept` are kept (0: all). Otherwise the minimum number is
    kept.
    """
    steps = usual if every is None else every
    keeps_all = every is not None and kept == 0
    return {
        "save_strategy": "steps" if steps else "no",
        "save_steps": steps or 1,
        "save_total_limit": None if keeps_all else max(FEWEST_CHECKPOINTS, kept),
    }


IDLE_SECONDS = 10.0
"""Seconds without a request to the policy after which a stopping run abandons its step."""
_TICK = 0.5


class GraceOver(BaseException):
    """Raised when the time to stop is over."""


def train_until_interrupted(
    trainer: Any,
    record: TrainingRecord,
    checkpoint: SavedCheckpoint | None,
    grace: float,
    idle_seconds: Callable[[], float] = lambda: 0.0,
) -> bool:
    """Train; return whether the run was interrupted.

    After the first Ctrl-C or SIGTERM, the run finishes the step and saves a checkpoint. If that takes longer
    than `grace` seconds, or if `idle_seconds` shows that the step has waited long for environments only, the
    step is abandoned and a checkpoint of the earlier steps is saved. A second signal stops the run without
    saving.
    """
    stop = _Stop(record, grace, idle_seconds)
    trainer.remove_callback(PrinterCallback)
    wrap_checkpoints(trainer, stop.shield)
    before = {}
    if threading.current_thread() is threading.main_thread():  # only the main thread may handle signals
        before = {number: signal.signal(number, stop.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    except GraceOver:
        if hasattr(trainer, "keep_finished_steps"):
            trainer.keep_finished_steps()
        elif not is_launched():  # several processes save only checkpoints that they reach together
            save_now(trainer)
    finally:
        stop.ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    return record.stop_requested


def save_now(trainer: Any) -> None:
    """Save a checkpoint of the finished steps, unless it is sealed or no step is finished."""
    folder = checkpoint_of(trainer.args, trainer.state)
    if trainer.state.global_step and not (folder / SEAL).is_file():
        if not folder.is_dir():
            save_checkpoint(trainer)
        trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


class _Stop:
    """The handling of signals, and the timer that starts with the first signal."""

    def __init__(self, record: TrainingRecord, grace: float, idle_seconds: Callable[[], float]) -> None:
        self._record = record
        self._grace = grace
        self._idle_seconds = idle_seconds
        self._is_saving = False
        self._grace_is_over = False
        self.ended = threading.Event()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._grace_is_over:
            if not (self._is_saving or self._record.is_updating):
                self._grace_is_over = False
                self.ended.set()
                raise GraceOver
        elif self._record.stop_requested:
            raise KeyboardInterrupt
        else:
            self._record.stop_requested = True
            threading.Thread(target=self._watch, name="wander-grace", daemon=True).start()

    def shield(self, save: Callable[..., None]) -> Callable[..., None]:
        """Return a function that is not interrupted."""

        def shielded(*arguments: Any, **given: Any) -> None:
            self._is_saving = True
            try:
                save(*arguments, **given)
            finally:
                self._is_saving = False

        return shielded

    def _watch(self) -> None:
        """Interrupt the main thread when the time is over, and again later if it could not be interrupted."""
        began, main = time.monotonic(), threading.main_thread()
        while not self.ended.wait(_TICK):
            elapsed = time.monotonic() - began
            if elapsed >= self._grace or min(elapsed, self._idle_seconds()) >= IDLE_SECONDS:
                self._grace_is_over = True
                signal.pthread_kill(main.ident or 0, signal.SIGTERM)


@contextlib.contextmanager
def tell_full_disk(run: Path, command: str | None = None) -> Iterator[None]:
    """Convert errors about a full disk to a `RunError`; its hint is the `command` that resumes the run."""
    command = command or f"wander train --resume {run}"
    try:
        yield
    except Exception as error:
        if not _is_of_full_disk(error):
            raise
        hint = f"free some space, then resume from its last checkpoint: `{command}`"
        raise RunError(f"the disk is full: cannot write to `{run}`", hint=hint) from error


def _is_of_full_disk(error: Exception) -> bool:
    """Return whether an error reports a full disk; libraries in other languages report it only as text."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    text = str(error)
    # PyTorch's archive writer reports a short write only with these words.
    return any(
        words in text for words in ("os error 28", "os error 122", "unexpected pos", "PytorchStreamWriter")
    )


def checkpoint_of(args: Any, state: Any) -> Path:
    """Return the folder of the checkpoint after the current step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
