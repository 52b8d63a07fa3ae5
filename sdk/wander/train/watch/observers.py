"""Watches a run in its main process: alerts, trackers, and the same prompts played again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from wander.train.config import GRPOSettings, OutputSection
from wander.train.distributed import World
from wander.train.evaluation.evaluator import read_first_values
from wander.train.records.samples import append_samples, read_samples, write_samples
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.train.trainer import StepLog, count_covered_steps
from wander.train.watch.alerts import AlertWatch, write_alerts
from wander.train.watch.reporting import open_reporters


class AlertCallback(TrainerCallback):  # type: ignore[misc]
    """Raises alerts and keeps them in `alerts.jsonl`; a resumed run begins with those of its checkpoint."""

    def __init__(self, settings: GRPOSettings, folder: Path, log: StepLog) -> None:
        self.folder = folder
        self._watch = AlertWatch(settings, lambda: read_first_values(folder))
        self.alerts = [alert for entry in log.entries for alert in self._watch.read(entry)]
        log.readers.append(self.read)

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Write what a resumed run begins with; an empty list removes the file of steps that come again."""
        write_alerts(self.folder, self.alerts)

    def read(self, entry: dict[str, Any]) -> None:
        """Raise the alerts of a step."""
        if raised := self._watch.read(entry):
            self.alerts += raised
            write_alerts(self.folder, self.alerts)


class SampleCallback(TrainerCallback):  # type: ignore[misc]
    """Has the policy play the first examples again, every so many steps and at the end.

    They are played between steps, with the seeds that training gives them: they change nothing of it.
    """

    def __init__(
        self, section: OutputSection, source: RolloutSource, folder: Path, log: StepLog, covered: int
    ) -> None:
        self.section = section
        self.source = source
        self.folder = folder
        self.step_log = log
        known = read_samples(folder) if covered else []
        self.samples = [one for one in known if one.step is not None and one.step <= covered]

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Leave out what steps that come again have left."""
        write_samples(self.folder, self.samples)

    def on_step_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Play before a step when it is its turn."""
        if state.global_step % self.section.rollouts_every == 0:
            self._play(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Play with the weights of the end, unless the run goes on later."""
        if not self.step_log.stop_requested:
            self._play(state)

    def _play(self, state: Any) -> None:
        step = state.global_step
        if any(one.step == step for one in self.samples):
            return
        started = perf_counter()
        length = self.source.length()
        count = min(self.section.fixed_prompts, length or self.section.fixed_prompts)
        played = self.source.play([Assignment(position, 0) for position in range(count)]).rollouts
        self.step_log.note_pause(perf_counter() - started, {})
        fresh = [rollout.model_copy(update={"step": step}) for rollout in played]
        self.samples += fresh
        append_samples(self.folder, fresh)


@contextlib.contextmanager
def open_observers(
    source: RolloutSource,
    settings: GRPOSettings,
    folder: Path,
    log: StepLog,
    checkpoint: Path | None,
    world: World,
) -> Iterator[list[TrainerCallback]]:
    """Yield the callbacks that watch a run, in the main process alone."""
    if not world.is_main:
        yield []
        return
    covered = count_covered_steps(checkpoint)
    callbacks: list[TrainerCallback] = [AlertCallback(settings, folder, log)]
    if settings.output.rollouts_every and settings.output.fixed_prompts:
        callbacks.append(SampleCallback(settings.output, source, folder, log, covered))
    with open_reporters(settings.logging, folder, covered) as reporters:
        yield [*callbacks, *reporters]
