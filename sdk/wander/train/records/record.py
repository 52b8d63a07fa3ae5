"""What every training run leaves behind while it learns: the metrics of each step, and whole checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from wander.train.records.checkpoints import seal_checkpoint
from wander.train.records.files import METRICS, read_entries

Progress = Callable[[dict[str, Any]], None]
"""Called with the metrics of every step; `step` and `steps` are always there."""

STEP_SECONDS = ("seconds/step", "seconds/update")
"""Metrics of a step that are measured from the end of the step before."""


class TrainingRecord(TrainerCallback):  # type: ignore[misc]
    """Appends the metrics of every step to a file, seals checkpoints, and stops the run on an interrupt.

    Each line is flushed as it is written, so an interrupted run keeps every finished step. A trainer calls it
    after everything that writes into a checkpoint, and before everything that reads the metrics.
    """

    def __init__(self, path: Path, covered: int = 0, progress: Progress | None = None) -> None:
        """`covered` is the number of steps in the checkpoint from which a run is resumed."""
        self.path = path
        self.entries: list[dict[str, Any]] = []
        self.extra: Callable[[], dict[str, Any]] = dict
        """Returns the metrics of a step that the trainer itself does not know."""
        self.first_failure: str | None = None
        """Message of the first rollout of the step that failed."""
        self.stop_requested = False
        self.is_updating = False
        """Whether weights may be those of no step, half of them changed."""
        self.agree: Callable[[bool], bool] = bool
        """Returns whether any process of the run asks to stop; all of them call it."""
        self._progress = progress
        self._paused = 0.0
        self._pause_metrics: dict[str, float | None] = {}
        file = path / METRICS
        if covered and file.is_file():
            # A resumed run keeps the steps that its checkpoint covers, and repeats the later ones.
            self.entries = [entry for entry in read_entries(file) if entry["step"] <= covered]
        path.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record one step."""
        if not logs or "loss" not in logs:
            return
        entry = {"step": state.global_step, "steps": state.max_steps}
        entry |= {name: value for name, value in logs.items() if isinstance(value, int | float)}
        entry |= self.extra()
        if self._paused:
            # Work between two steps is not part of either.
            entry |= {name: entry[name] - self._paused for name in STEP_SECONDS if name in entry}
            entry |= {"seconds/evaluation": self._paused, **self._pause_metrics}
        self._paused, self._pause_metrics = 0.0, {}
        # JSON has no NaN: a mean over nothing is null.
        entry = {
            name: value if value is not None and math.isfinite(value) else None
            for name, value in entry.items()
        }
        self.entries.append(entry)
        with (self.path / METRICS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
        # The callbacks of trackers are called after this one, with the same dictionary.
        numbers = {name: value for name, value in entry.items() if value is not None}
        logs.update({name: value for name, value in numbers.items() if name not in ("step", "steps")})
        if self._progress is not None:
            self._progress(entry)

    def note_pause(self, seconds: float, values: dict[str, float | None]) -> None:
        """Take the time of an evaluation out of the next step's, and add what it measured to its line."""
        self._paused += seconds
        self._pause_metrics |= values

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the weights change until the step has ended."""
        self.is_updating = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Stop after this step, with a checkpoint, if an interrupt came."""
        self.is_updating = False
        self.stop_requested = self.agree(self.stop_requested)
        if self.stop_requested:
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal a checkpoint that was just written."""
        self.seal(state.global_step)

    def seal(self, step: int) -> None:
        """Declare the checkpoint of a step whole."""
        seal_checkpoint(self.path, step, 0)
