"""What SFT and GRPO share of the Hugging Face trainer: arguments, the step log, interrupts."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from wander.errors import RunError
from wander.models.loading import torch_device
from wander.train.config import LoggingSection, ModelSection, OfflineScheduleSection, ScheduleSection
from wander.train.metrics import read_entries

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

STEP_SECONDS = ("seconds/step", "seconds/update")
"""Metrics of a step that are measured from the end of the step before."""


class StepLog(TrainerCallback):  # type: ignore[misc]
    """Appends the metrics of every step to a file, tells progress, and stops the run when asked to.

    Each line is flushed as it is written, so an interrupted run keeps every finished step.
    """

    def __init__(
        self,
        file: Path,
        *readers: Progress,
        keep: Path | None = None,
    ) -> None:
        self.file = file
        self.entries: list[dict[str, Any]] = []
        self.extra: Callable[[], dict[str, Any]] = dict
        """Gives what the trainer itself does not know of the step."""
        self.stop_requested = False
        self.agree: Callable[[bool], bool] = bool
        """Tells whether any process of the run was asked to stop; all of them call it."""
        self.readers = list(readers)
        """Called with every line once it is written."""
        self._paused = 0.0
        self._noted: dict[str, float | None] = {}
        if keep is not None and file.is_file():
            # A resumed run keeps the steps that its checkpoint covers and plays the later ones again.
            covered = count_covered_steps(keep)
            self.entries = [entry for entry in read_entries(file) if entry["step"] <= covered]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record one step."""
        if not logs or "loss" not in logs:
            return
        entry = {"step": state.global_step, "steps": state.max_steps}
        entry |= {name: value for name, value in logs.items() if isinstance(value, int | float)}
        entry |= self.extra()
        if self._paused:
            # What was done between steps is no part of one.
            entry |= {name: entry[name] - self._paused for name in STEP_SECONDS if name in entry}
            entry |= {"seconds/evaluation": self._paused, **self._noted}
        self._paused, self._noted = 0.0, {}
        # JSON has no NaN: a mean over nothing is null.
        entry = {
            name: value if value is not None and math.isfinite(value) else None
            for name, value in entry.items()
        }
        self.entries.append(entry)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
        # The callbacks of trackers are called after this one, with the same dictionary.
        told = ((name, value) for name, value in entry.items() if name not in ("step", "steps"))
        logs.update((name, value) for name, value in told if value is not None)
        for read in self.readers:
            read(entry)

    def note_pause(self, seconds: float, values: dict[str, float | None]) -> None:
        """Take the time of an evaluation out of the next step's, and add what it measured to its line."""
        self._paused += seconds
        self._noted |= values

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Stop after this step, checkpoint first, when an interrupt came."""
        self.stop_requested = self.agree(self.stop_requested)
        if self.stop_requested:
            control.should_save = True
            control.should_training_stop = True
        return control


class OnSave(TrainerCallback):  # type: ignore[misc]
    """Does a piece of work with the step of every checkpoint, once that is written."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        self.work = work

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do it."""
        self.work(state.global_step)


def train_until_interrupted(trainer: Any, log: StepLog, checkpoint: Path | None) -> bool:
    """Train; the first Ctrl-C or SIGTERM finishes the step and saves a checkpoint, the second stops at once.

    Returns whether the run was interrupted.
    """

    def note(number: int, frame: FrameType | None) -> None:
        if log.stop_requested:
            raise KeyboardInterrupt
        log.stop_requested = True

    trainer.remove_callback(PrinterCallback)
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may handle signals
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return log.stop_requested


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
