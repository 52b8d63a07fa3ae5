"""Experiment trackers: TensorBoard, trackio and W&B, through the callbacks of transformers' `report_to`."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from wander.errors import MissingExtra
from wander.train.config import LoggingSection

TENSORBOARD_FOLDER = "tensorboard"
PROFILE = "profile.json"
"""Trace of the profiler, for chrome://tracing or Perfetto."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise `MissingExtra` for the first tracker whose package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtra(name, needed_for=f"logging to {name}")


@contextlib.contextmanager
def open_reporters(section: LoggingSection, folder: Path, step: int) -> Iterator[list[TrainerCallback]]:
    """Yield the callbacks that report to the run's trackers; the run starts after `step`.

    They must be called after the callback that completes the metrics of a step. The output of trackers goes
    to stderr, because stdout is for results.
    """
    reporters: list[TrainerCallback] = []
    if section.profile_steps:
        reporters.append(Profiler(section.profile_steps, folder))
    with contextlib.ExitStack() as stack:
        if section.trackers:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        for name in dict.fromkeys(section.trackers):
            if name == "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                # A resumed run repeats the steps after its checkpoint, so their earlier values are removed.
                purge = step + 1 if step else None
                writer = SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=purge)
                reporters.append(TensorBoardCallback(writer))
            elif name == "trackio":
                reporters.append(TrackioCallback())
            else:
                _open_wandb(section, folder)
                stack.callback(_close_wandb)
                reporters.append(WandbCallback())
        yield reporters


class Profiler(TrainerCallback):  # type: ignore[misc]
    """Writes what PyTorch's profiler records of some steps, from the second on: the first one warms up."""

    def __init__(self, steps: int, folder: Path) -> None:
        self._steps = steps
        self._folder = folder
        self._running: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Start before the second step."""
        if state.global_step == 1 and self._running is None:
            self._running = torch.profiler.profile()
            self._running.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Write the trace after the last profiled step."""
        if self._running is not None and state.global_step in (1 + self._steps, state.max_steps):
            self._running.stop()
            self._running.export_chrome_trace(str(self._folder / PROFILE))
            self._running = None


def _open_wandb(section: LoggingSection, folder: Path) -> None:
    """Open the W&B run that transformers' callback then writes to; it is offline if W&B has no key."""
    import wandb

    folder = folder.resolve()
    wandb.init(
        project=section.project,
        name=folder.name,
        # A resumed run continues the same run of W&B.
        id=hashlib.sha256(str(folder).encode()).hexdigest()[:26],
        resume="allow",
        dir=str(folder),
        mode=None if wandb.login(prompt=False, verify=False) else "offline",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
    )


def _close_wandb() -> None:
    import wandb

    wandb.finish()
