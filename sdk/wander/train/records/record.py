"""The record of every training run while it learns: the metrics of each step, and sealed checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from wander.train.distributed import World
from wander.train.records.checkpoints import seal_checkpoint
from wander.train.records.files import METRICS, read_entries

Progress = Callable[[dict[str, Any]], None]
"""Function that is called with the metrics of every step, which always include `step` and `steps`."""

STEP_SECONDS = ("seconds/step", "seconds/update")
"""Metrics of a step that are measured from the end of the previous step."""


class TrainingRecord(TrainerCallback):  # type: ignore[misc]
    """Appends the metrics of every step to a file, seals checkpoints, and stops the run after an interrupt.

    Each line is flushed immediately, so an interrupted run keeps every finished step. A trainer calls this
    callback after all callbacks that write into a checkpoint, and before all callbacks that read the metrics.
    """

    def __init__(
        self, path: Path, covered: int = 0, progress: Progress | None = None, world: World | None = None
    ) -> None:
        """Open the record; `covered` is the number of steps in the checkpoint that the run resumes from."""
        self.path = path
        self.world = world or World()
        self.entries: list[dict[str, Any]] = []
        self.extra: Callable[[], dict[str, Any]] = dict
        """Function that returns more metrics of a step, which do not come from the trainer."""
        self.first_failure: str | None = None
        """Message of the first rollout of the step that failed."""
        self.stop_requested = False
        self.is_updating = False
        """Whether an update is running, during which the weights may be changed only in part."""
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
            # Work between two steps does not count as time of either step.
            entry |= {name: entry[name] - self._paused for name in STEP_SECONDS if name in entry}
            entry |= {"seconds/evaluation": self._paused, **self._pause_metrics}
        self._paused, self._pause_metrics = 0.0, {}
        # JSON cannot represent NaN, so a mean without values becomes null.
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
        """Subtract the time of an evaluation from the next step, and add its results to the metrics of that
        step."""
        self._paused += seconds
        self._pause_metrics |= values

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the weights are changing until the step has ended."""
        self.is_updating = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After an interrupt, stop after this step with a checkpoint."""
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
        """Mark the checkpoint of a step as complete after all processes have written their parts."""
        self.world.exchange([])
        if self.world.is_main:
            seal_checkpoint(self.path, step, 0)

    def agree(self, wants_stop: bool) -> bool:
        """Return whether any process of the run wants to stop; all processes must call this."""
        return self.world.any(wants_stop)
