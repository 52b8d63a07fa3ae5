"""Watches a run while it goes, in its main process: alerts, trackers, the same prompts played again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from wander.errors import ConfigError
from wander.train.config import GRPOSettings, LoggingSection, OutputSection
from wander.train.distributed import World
from wander.train.evaluation.evaluator import read_first_values
from wander.train.records.samples import append_samples, read_samples, write_samples
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.train.trainer import StepLog, count_covered_steps
from wander.train.watch.alerts import Alert, AlertWatch, write_alerts
from wander.train.watch.trackers import Tracker, open_trackers, scalars


class AlertCallback(TrainerCallback):  # type: ignore[misc]
    """Raises alerts and keeps them in `alerts.jsonl`; a resumed run begins with those of its checkpoint."""

    def __init__(
        self, settings: GRPOSettings, folder: Path, log: StepLog, tell: Sequence[Callable[[Alert], None]] = ()
    ) -> None:
        self.folder = folder
        self.tell = list(tell)
        self._watch = AlertWatch(settings, lambda: read_first_values(folder))
        self.alerts = [alert for entry in log.entries for alert in self._watch.read(entry)]
        log.readers.append(self.read)

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Write what a resumed run begins with; an empty list removes the file of steps that come again."""
        write_alerts(self.folder, self.alerts)

    def read(self, entry: dict[str, Any]) -> None:
        """Raise the alerts of a step."""
        for alert in self._watch.read(entry):
            self.raise_alert(alert)

    def raise_alert(self, alert: Alert) -> None:
        """Keep an alert and tell it."""
        self.alerts.append(alert)
        write_alerts(self.folder, self.alerts)
        for listener in self.tell:
            listener(alert)


class TrackerCallback(TrainerCallback):  # type: ignore[misc]
    """Gives every line of metrics to the trackers; one that breaks is dropped, and an alert says so."""

    def __init__(
        self,
        section: LoggingSection,
        config: Mapping[str, Any],
        folder: Path,
        log: StepLog,
        broken: Callable[[Alert], None] | None = None,
    ) -> None:
        self.broken = broken
        self.step_log = log
        self._section, self._config, self._folder = section, config, folder
        self.trackers: list[Tracker] = []
        log.readers.append(self.read)

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Open the trackers."""
        try:
            self.trackers = open_trackers(self._folder, self._section, self._config, step=state.global_step)
        except (OSError, RuntimeError, ValueError) as error:
            names = ", ".join(self._section.trackers)
            raise ConfigError(
                f"a tracker of {names} cannot be opened: {error}", hint="leave it out of `logging.trackers`"
            ) from error

    def read(self, entry: dict[str, Any]) -> None:
        """Log a step."""
        values = scalars(entry)
        self._each(entry["step"], lambda tracker: tracker.log(entry["step"], values))

    def alert(self, alert: Alert) -> None:
        """Pass an alert on."""
        title = alert.rule.replace("_", " ")
        self._each(alert.step, lambda tracker: tracker.alert(alert.step, title, alert.message))

    def close(self) -> None:
        """Close what is open."""
        last = self.step_log.entries[-1]["step"] if self.step_log.entries else 0
        self._each(last, lambda tracker: tracker.close())
        self.trackers = []

    def _each(self, step: int, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                action(tracker)
            except Exception as error:  # noqa: BLE001 - somebody else's code; the alert tells
                self.trackers.remove(tracker)
                if self.broken is not None:
                    text = f"{tracker.name} gets no more metrics: {type(error).__name__}: {error}"
                    self.broken(Alert(step=step, rule="tracker", message=text))


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
    """Yield the callbacks that watch a run, none beside the main process; close the trackers after."""
    if not world.is_main:
        yield []
        return
    trackers = TrackerCallback(settings.logging, settings.model_dump(mode="json"), folder, log)
    alerts = AlertCallback(settings, folder, log, [trackers.alert])
    trackers.broken = alerts.raise_alert
    callbacks: list[TrainerCallback] = [trackers, alerts]
    if settings.output.rollouts_every and settings.output.fixed_prompts:
        covered = count_covered_steps(checkpoint)
        callbacks.append(SampleCallback(settings.output, source, folder, log, covered))
    try:
        yield callbacks
    finally:
        trackers.close()
