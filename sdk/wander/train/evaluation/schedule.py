"""Evaluates the policy at its turn while it is trained, and keeps the weights that did best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from wander.train.config import GRPOSettings
from wander.train.distributed import World
from wander.train.evaluation.evaluator import (
    CellEvaluation,
    Evaluator,
    read_evaluations,
    read_value,
    write_evaluations,
)
from wander.train.evaluation.stopping import StoppingCallback
from wander.train.records.checkpoints import BEST_MODEL, seal_model
from wander.train.records.outcome import BestCheckpoint, Outcome, forget_best, read_best, write_best
from wander.train.rollouts.environments import EnvironmentOpener
from wander.train.rollouts.source import RolloutSource
from wander.train.trainer import StepLog, count_covered_steps

SaveBest = Callable[[int, Path], str | None]
"""Saves the weights of a step in a folder, on record, and returns their digest."""

Listener = Callable[[int, Sequence[CellEvaluation]], None]
"""Hears of every evaluation: the step and its cells."""


class EvaluationCallback(TrainerCallback):  # type: ignore[misc]
    """Evaluates before the first step, every so many steps, and after the last.

    A checkpoint holds the evaluation of its step: a resumed run makes those that came later again.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        folder: Path,
        log: StepLog,
        save_best: SaveBest,
        checkpoint: Path | None,
        listeners: Sequence[Listener],
    ) -> None:
        self.evaluator = evaluator
        self.settings = evaluator.settings
        self.folder = folder
        self.log = log
        self.save_best = save_best
        self.listeners = listeners
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
        values = {f"evaluation/{name}": value for one in found for name, value in one.values().items()}
        self.log.note_pause(perf_counter() - started, values if step else {})
        for listener in self.listeners:
            listener(step, found)

    def _keep_best(self, step: int, found: Sequence[CellEvaluation]) -> None:
        output = self.settings.output
        if output.keep_best is None:
            return
        value = read_value(found, output.keep_best)
        if value is None or (self.best is not None and not self.best.is_beaten_by(value)):
            return
        best = BestCheckpoint(metric=output.keep_best, mode=output.best_mode, value=value, step=step)
        sha256 = self.save_best(step, self.folder / BEST_MODEL)
        seal_model(self.folder, BEST_MODEL)
        self.best = best.model_copy(update={"weights_sha256": sha256})
        write_best(self.folder, self.best)


class Schedule:
    """What happens between the steps of a run, and what came of it."""

    def __init__(
        self,
        open_environment: EnvironmentOpener,
        source: RolloutSource,
        settings: GRPOSettings,
        folder: Path,
        log: StepLog,
        world: World,
        checkpoint: Path | None,
        save_best: SaveBest,
        listeners: Sequence[Listener],
    ) -> None:
        self.stopping = StoppingCallback(settings, log)
        self.callbacks: list[TrainerCallback] = [log, self.stopping]
        self.evaluation: EvaluationCallback | None = None
        if settings.evaluation.every:
            evaluator = Evaluator(open_environment, source, settings, world)
            told = [self.stopping.read_evaluations, *listeners]
            self.evaluation = EvaluationCallback(evaluator, folder, log, save_best, checkpoint, told)
            # An evaluation adds to the line that the log writes; stopping reads that line.
            self.callbacks.insert(0, self.evaluation)

    def outcome(self, steps: int, *, interrupted: bool) -> Outcome:
        """Return how the run ended."""
        return Outcome(
            steps=steps,
            finished=not interrupted,
            stopped=None if interrupted else self.stopping.stopped,
            best=self.evaluation.best if self.evaluation is not None else None,
        )
