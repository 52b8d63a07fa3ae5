"""Evaluates the policy at its turn while it is trained, and keeps the weights that did best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from wander.train.evaluation.evaluator import (
    EVALUATION,
    CellEvaluation,
    Evaluator,
    pick_value,
    read_evaluations,
    values_of,
    write_evaluations,
)
from wander.train.records.checkpoints import BEST_MODEL, seal_model
from wander.train.records.outcome import BestCheckpoint, forget_best, read_best, write_best
from wander.train.records.record import TrainingRecord
from wander.train.trainer import count_covered_steps

SaveBest = Callable[[int, Path], str | None]
"""Saves the weights of a step in a folder, on record, and returns their digest."""


class Evaluation(TrainerCallback):  # type: ignore[misc]
    """Evaluates before the first step, every so many steps, and after the last.

    A checkpoint holds the evaluation of its step: a resumed run makes those that came later again.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        record: TrainingRecord,
        save_best: SaveBest,
        checkpoint: Path | None,
    ) -> None:
        self.evaluator = evaluator
        self.settings = evaluator.settings
        self.folder = folder = record.path
        self.record = record
        self.save_best = save_best
        covered = count_covered_steps(checkpoint)
        self.evaluations = [one for one in read_evaluations(folder) if covered and one.step <= covered]
        best = read_best(folder) if covered else None
        self.best = best if best is not None and best.step <= covered else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Evaluate the model that training begins with."""
        write_evaluations(self.folder, self.evaluations)
        if self.best is None:
            forget_best(self.folder)  # it is of steps that are made again
        if state.global_step == 0:
            self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Evaluate when it is this step's turn, before the step's metrics and checkpoint are written."""
        step = state.global_step
        if step % self.settings.evaluation.every == 0 or step == state.max_steps:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        started = perf_counter()
        found = self.evaluator.evaluate(step)
        self.evaluations += found
        write_evaluations(self.folder, self.evaluations)
        self._keep_best(step, found)
        values = {f"{EVALUATION}{name}": value for name, value in values_of(found).items()}
        self.record.note_pause(perf_counter() - started, values if step else {})

    def _keep_best(self, step: int, found: Sequence[CellEvaluation]) -> None:
        output = self.settings.output
        if output.keep_best is None:
            return
        value = pick_value(values_of(found), output.keep_best)
        if value is None or (self.best is not None and not self.best.is_beaten_by(value)):
            return
        best = BestCheckpoint(metric=output.keep_best, mode=output.best_mode, value=value, step=step)
        sha256 = self.save_best(step, self.folder / BEST_MODEL)
        seal_model(self.folder, BEST_MODEL)
        self.best = best.model_copy(update={"weights_sha256": sha256})
        write_best(self.folder, self.best)
