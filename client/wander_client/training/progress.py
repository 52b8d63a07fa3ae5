"""Progress of a training run: a bar on a terminal, otherwise lines, with every evaluation and alert.

The steps, evaluations and alerts are read from the run's folder. The trainer only reports when a step was
recorded, and how many rollouts of the current step are finished.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wander.train.records.files import METRICS, CellEvaluation, number, read_alerts, read_evaluations

from wander_client.terminal.output import clock_time, counted

if TYPE_CHECKING:
    from wander_client.terminal.output import Output

_RECENT = 20
"""Number of recent steps for estimating the time left."""
STEP_SECONDS = 30.0
"""Seconds before the progress of a long step is printed."""


class TrainingProgress(contextlib.ExitStack):
    """Shows a run while it trains: `show` is called after each step, and `played` during a step."""

    def __init__(self, title: str, folder: Path, output: Output) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []
        """The metrics of all finished steps, with those before a resume."""
        self._title = title
        self._folder = folder
        self._output = output
        self._read_bytes = 0
        self._printed = [0, 0]
        self._first_step: int | None = None
        self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bar = self.enter_context(self._output.progress(self._title, None, unit="steps"))
        self.callback(self._print_events)
        return self

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the end, from recent steps."""
        recent = [
            (entry.get("seconds/step") or 0.0) + (entry.get("seconds/evaluation") or 0.0)
            for entry in self.entries[-_RECENT:]
        ]
        last = self.entries[-1]
        remaining: int = last["steps"] - last["step"]
        return statistics.fmean(recent) * max(0, remaining)

    def read_steps(self) -> None:
        """Read the steps that were added to `metrics.jsonl`."""
        with (self._folder / METRICS).open("rb") as stream:
            stream.seek(self._read_bytes)
            lines = stream.read().split(b"\n")[:-1]
        self._read_bytes += sum(len(line) + 1 for line in lines)
        self.entries += map(json.loads, lines)

    def show(self, entry: dict[str, Any]) -> None:
        """Read the step that was just recorded, and print what is new."""
        self._printed_at = time.monotonic()
        self._first_step = entry["step"] if self._first_step is None else self._first_step
        self.read_steps()
        self._print_events()
        left = self.seconds_left
        times = [f"about {clock_time(left)} left"] if left else []
        self._bar.total = entry["steps"]
        self._bar.update(entry["step"], ", ".join([*_describe_step(entry), *times]))

    def played(self, done: int, total: int) -> None:
        """Print the progress of the current step if it takes long."""
        if time.monotonic() - self._printed_at < STEP_SECONDS:
            return
        self._printed_at = time.monotonic()
        step = self.entries[-1]["step"] + 1 if self.entries else 1
        progress = (
            f"{done}/{total} rollouts" if done < total else f"learning from {counted(total, 'rollout')}"
        )
        self._output.note(f"step {step}: {progress}")

    def _print_events(self) -> None:
        """Print new evaluations and alerts, but not those of the part before a resume."""
        evaluations, alerts = read_evaluations(self._folder), read_alerts(self._folder)
        first_step = self._first_step or 0
        for evaluation in evaluations[self._printed[0] :]:
            if evaluation.step >= first_step - 1:
                self._output.note(f"step {evaluation.step}: evaluation {evaluation_text(evaluation)}")
        for alert in alerts[self._printed[1] :]:
            if alert.step >= first_step:
                self._output.warn(f"step {alert.step}: {alert.message}")
        self._printed = [len(evaluations), len(alerts)]


def _describe_step(entry: dict[str, Any]) -> list[str]:
    """Return what a line says about a step, in words; a metric that the step lacks is left out."""
    words = (
        ("reward", "mean reward {:.3f}"),
        ("entropy", "entropy {:.3f} nats a token"),
        ("groups_without_variance", "{:.0%} of the groups taught nothing (equal rewards)"),
    )
    return [text.format(value) for name, text in words if (value := number(entry, name)) is not None]


def evaluation_text(evaluation: CellEvaluation) -> str:
    """Return the result of a cell: `optimal 0.512 [0.44, 0.58]`, or `every 3 of 533 lines bad`."""
    if evaluation.reward is None:
        return f"{evaluation.cell} failed"
    if evaluation.lines is not None:
        return f"{evaluation.cell} {evaluation.metrics['bad']:.0f} of {evaluation.lines} lines bad"
    bounds = " [{:.2f}, {:.2f}]".format(*evaluation.interval) if evaluation.interval else ""
    return f"{evaluation.cell} {evaluation.reward:.3f}{bounds}"
