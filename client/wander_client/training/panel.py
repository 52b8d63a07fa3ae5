"""The live panel of a training run: redrawn several times per second on a terminal, otherwise lines.

The panel reads the run's folder: metrics, evaluations, best weights, checkpoints and alerts. The trainer only
reports when a step was recorded. The panel adapts to the current size of the terminal, and its last state
stays on the screen when the run ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from wander.train.records.files import (
    METRICS,
    Alert,
    BestCheckpoint,
    CellEvaluation,
    number,
    read_alerts,
    read_best,
    read_evaluations,
)

from wander_client.terminal.escape import one_line
from wander_client.terminal.output import clock_time, counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from wander_client.terminal.output import Output

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII_BLOCKS = " .:-=+*#@"
SPARK_CELLS = 32
_RECENT = 20
"""Number of recent steps for estimating the time left."""
STEP_SECONDS = 30.0
"""Seconds before a long step is reported without a panel."""
_READ_SECONDS = 2.0
"""Seconds between reads of evaluations and checkpoints, which also appear during long steps."""

PARTS = (
    ("seconds/generation", "generation", "█", "G", "cyan"),
    ("seconds/environment", "environment", "▓", "E", "green"),
    ("seconds/scoring", "scoring", "▒", "S", "yellow"),
    ("seconds/update", "update", "░", "U", "magenta"),
    ("seconds/sync", "sync", "▚", "Y", "blue"),
    ("seconds/evaluation", "evaluation", "▞", "V", "red"),
)
"""Metric, name, mark, mark without Unicode and color of each part of a step's time."""


@dataclass
class TrainingState:
    """The state of a run in progress."""

    title: str
    folder: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[CellEvaluation] = field(default_factory=list)
    best: BestCheckpoint | None = None
    checkpoint: int | None = None
    alerts: list[Alert] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds since the command started."""
    ended: bool = False
    playing: tuple[int, int] | None = None
    """Finished and total rollouts of the current step."""
    _read_bytes: int = 0
    """Number of bytes of `metrics.jsonl` that have been read."""
    _series: dict[str, list[float | None]] = field(default_factory=dict)

    def read_steps(self) -> None:
        """Read the steps that were added to `metrics.jsonl`."""
        with (self.folder / METRICS).open("rb") as stream:
            stream.seek(self._read_bytes)
            lines = stream.read().split(b"\n")[:-1]
        self._read_bytes += sum(len(line) + 1 for line in lines)
        self.entries += map(json.loads, lines)
        self.playing = None
        self.read_folder()

    def read_folder(self) -> None:
        """Read evaluations, the best weights, checkpoints and alerts from the run's folder."""
        self.evaluations = read_evaluations(self.folder)
        self.best = read_best(self.folder)
        self.alerts = read_alerts(self.folder)
        steps = [
            int(step)
            for path in (self.folder / "checkpoints").glob("checkpoint-*")
            if (step := path.name.rpartition("-")[2]).isdecimal()
        ]
        self.checkpoint = max(steps, default=None)

    @property
    def steps(self) -> int:
        """Total number of steps of the run, or 0 before the first step is finished."""
        return int(self.entries[-1]["steps"]) if self.entries else 0

    @property
    def step(self) -> int:
        """Number of the last finished step."""
        return int(self.entries[-1]["step"]) if self.entries else 0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end, from recent steps, or None before the first step."""
        recent = [
            (entry.get("seconds/step") or 0.0) + (entry.get("seconds/evaluation") or 0.0)
            for entry in self.entries[-_RECENT:]
        ]
        return statistics.fmean(recent) * max(0, self.steps - self.step) if recent else None

    @property
    def doing(self) -> str | None:
        """Description of the current step, or None before its first rollout."""
        if self.playing is None or self.ended:
            return None
        done, total = self.playing
        progress = (
            f"{done}/{total} rollouts" if done < total else f"learning from {counted(total, 'rollout')}"
        )
        return f"step {self.step + 1}: {progress}"

    def series(self, name: str) -> list[float | None]:
        """Return the values of a metric over the steps, with None for steps without the metric."""
        # Reads only new steps, because the panel is redrawn four times per second during the training.
        known = self._series.setdefault(name, [])
        known += [number(entry, name) for entry in self.entries[len(known) :]]
        return known


class TrainingPanel(contextlib.ExitStack):
    """Shows a run on a terminal. `show` is called after each step, and rich calls `__rich_console__`."""

    def __init__(self, title: str, folder: Path) -> None:
        super().__init__()
        self.state = TrainingState(title, folder)
        self._began = self._read_at = time.monotonic()

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        # Results are printed on stdout, which must not be redirected.
        live = Live(
            self,
            console=Console(stderr=True),
            refresh_per_second=4,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
        self.enter_context(live)
        self.callback(self._end)
        return self

    def _end(self) -> None:
        self.state.ended = True
        self.state.read_folder()

    def show(self, entry: dict[str, Any]) -> None:
        """Read the step that was just recorded."""
        self.state.read_steps()

    def played(self, done: int, total: int) -> None:
        """Update the number of finished rollouts in the current step."""
        self.state.playing = (done, total)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the panel for the current size of the terminal."""
        now = time.monotonic()
        self.state.seconds = now - self._began
        if now - self._read_at > _READ_SECONDS and not self.state.ended:
            self._read_at = now
            self.state.read_folder()
        height = max(1, (options.height or console.height) - 1)
        yield from panel_lines(self.state, options.max_width, height, plain=options.ascii_only)


class PlainSteps(contextlib.ExitStack):
    """Progress as lines on stderr: one per tenth of the steps, and one per evaluation and alert."""

    def __init__(self, title: str, folder: Path, output: Output) -> None:
        super().__init__()
        self.state = TrainingState(title, folder)
        self._output = output
        self._printed = [0, 0]
        self._first_step: int | None = None
        self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bar = self.enter_context(self._output.progress("training", None, unit="steps"))
        self.callback(self._print_events)
        self.callback(self.state.read_folder)  # callbacks run in reverse order
        return self

    def _print_events(self) -> None:
        """Print new evaluations and alerts, but not those of the part before a resume."""
        state, first_step = self.state, self._first_step or 0
        for evaluation in state.evaluations[self._printed[0] :]:
            if evaluation.step >= first_step - 1:
                self._output.note(f"step {evaluation.step}: evaluation {evaluation_text(evaluation)}")
        for alert in state.alerts[self._printed[1] :]:
            if alert.step >= first_step:
                self._output.warn(f"step {alert.step}: {alert.message}")
        self._printed = [len(state.evaluations), len(state.alerts)]

    def show(self, entry: dict[str, Any]) -> None:
        """Read the step that was just recorded, and print what is new."""
        self._printed_at = time.monotonic()
        state = self.state
        self._first_step = entry["step"] if self._first_step is None else self._first_step
        state.read_steps()
        self._print_events()
        left = state.seconds_left
        times = [f"about {clock_time(left)} left"] if left and state.step < state.steps else []
        self._bar.total = entry["steps"]
        self._bar.update(entry["step"], ", ".join([*_describe_step(entry), *times]))

    def played(self, done: int, total: int) -> None:
        """Print the progress of the current step if it takes long."""
        self.state.playing = (done, total)
        if time.monotonic() - self._printed_at >= STEP_SECONDS:
            self._printed_at = time.monotonic()
            self._output.note(self.state.doing or "")


def _describe_step(entry: dict[str, Any]) -> list[str]:
    """Return what a line says about a step, in words; a metric that the step lacks is left out."""
    words = (
        ("reward", "mean reward {:.3f}"),
        ("entropy", "entropy {:.3f} nats a token"),
        ("groups_without_variance", "{:.0%} of the groups taught nothing (equal rewards)"),
    )
    return [text.format(value) for name, text in words if (value := number(entry, name)) is not None]


def open_display(title: str, folder: Path, output: Output) -> TrainingPanel | PlainSteps:
    """Return the display for a run: the panel on a terminal, otherwise lines."""
    on_a_terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if output.human and output.shows_progress and on_a_terminal:
        return TrainingPanel(title, folder)
    return PlainSteps(title, folder, output)


def panel_lines(state: TrainingState, width: int, height: int, *, plain: bool = False) -> list[Text]:
    """Return the lines of the panel within this size. `plain` avoids Unicode."""
    cells = min(width, 60)
    done = cells * state.step // state.steps if state.steps else 0
    full, empty = ("#", ".") if plain else ("━", "─")
    progress = Text(full * done, "green").append(empty * (cells - done), "dim")
    head = [_title_line(state, width), progress]
    if not state.entries:
        waiting = "ended before the first step" if state.ended else "waiting for the first step"
        waiting = state.doing or waiting
        return [_cut(line, width) for line in [*head, Text(waiting, "dim")]][:height]
    first, functions, rest = _metric_rows(state)
    foot = [*_time_lines(state, width, plain), *_evaluation_lines(state, width)]
    if state.checkpoint is not None:
        foot.append(Text(f"checkpoint of step {state.checkpoint}", "dim"))
    if state.doing is not None:
        foot.append(Text(state.doing, "dim"))
    alerts = [Text(f"! step {alert.step}: {alert.message}", "yellow bold") for alert in state.alerts[-3:]]
    rows = [*first, *functions, *rest]
    room = height - len(head) - len(foot) - len(alerts)
    if len(rows) > room:
        # Reward functions are dropped first, from the end. The rows that show problems are kept.
        kept = max(0, room - len(first) - len(rest) - 1)
        left_out = len(functions) - kept
        rows = [*first, *functions[:kept], *rest]
        note = Text(f"and {counted(left_out, 'reward function')}", "dim") if left_out else None
        body = [*_metric_lines(state, rows, width, plain), *([note] if note else [])]
    else:
        body = _metric_lines(state, rows, width, plain)
    body = body[: max(1, room)] if room > 0 else body[:1]
    lines = [*head, *body, *foot, *alerts]
    if len(lines) > height:
        lines = [*head, *alerts[-1:], *body, *foot][:height]
    return [_cut(line, width) for line in lines]


@dataclass(frozen=True)
class _Row:
    name: str
    values: Sequence[float | None]
    form: str
    warned: bool = False


def _metric_rows(state: TrainingState) -> tuple[list[_Row], list[_Row], list[_Row]]:
    """Return the rows for the reward, for each reward function, and for signs of problems."""
    last = state.entries[-1]
    fired = {alert.rule for alert in state.alerts}
    functions = [
        _Row(name.removeprefix("rewards/"), state.series(name), ".3f")
        for name in sorted(last)
        if name.startswith(("rewards/", "reward/")) and name.count("/") == 1
    ]
    failed = [
        None if count is None or not rollouts else count / rollouts
        for count, rollouts in zip(state.series("failed"), state.series("rollouts"), strict=True)
    ]
    rest = [
        _Row("entropy", state.series("entropy"), ".3f", "entropy_low" in fired),
        _Row("tokens", state.series("tokens"), ".1f"),
        _Row("no variance", state.series("groups_without_variance"), ".0%", "no_variance" in fired),
        _Row("truncated", state.series("truncated"), ".0%", "truncated" in fired),
        _Row("failed", failed, ".0%", "failures" in fired),
    ]
    first = [_Row("reward", state.series("reward"), ".3f", "reward_not_finite" in fired)]
    return first, functions, [row for row in rest if any(value is not None for value in row.values)]


def _title_line(state: TrainingState, width: int) -> Text:
    done = f"step {state.step}" + (f"/{state.steps}" if state.steps else "")
    times = [clock_time(state.seconds)]
    left = state.seconds_left
    if left is not None and not state.ended and state.step < state.steps:
        times.append(f"{clock_time(left)} left")
    tail = "  ".join([done, *times])
    title = one_line(state.title)
    room = width - cell_len(tail) - 2
    if room < 8:
        return Text(tail, "bold")
    text = Text(set_cell_size(title, room - 1) + "…" if cell_len(title) > room else title, "bold")
    return text.append("  ").append(tail, "default")


def _metric_lines(state: TrainingState, rows: Sequence[_Row], width: int, plain: bool) -> list[Text]:
    name_width = min(max(len(row.name) for row in rows), max(8, width // 3))
    cells = min(SPARK_CELLS, width - name_width - 12)
    lines = []
    for row in rows:
        name = row.name if len(row.name) <= name_width else row.name[: name_width - 1] + "…"
        value = row.values[-1]
        text = Text(f"{one_line(name):<{name_width}}  ")
        shown = "none" if value is None else format(value, row.form)
        text.append(f"{shown:>8}", "bold yellow" if row.warned else "bold")
        if cells >= 4:
            text.append("  ").append(sparkline(row.values, cells, plain=plain), "cyan")
        lines.append(text)
    best = max((value for value in state.series("reward") if value is not None), default=None)
    if best is not None and cells >= 4:
        place = state.series("reward").index(best)
        note = f"  best {best:.3f} at step {state.entries[place]['step']}"
        if lines[0].cell_len + len(note) <= width:
            lines[0].append(note, "dim")
    return lines


def sparkline(values: Sequence[float | None], cells: int, *, plain: bool = False) -> str:
    """Draw values over the steps. Each cell shows the mean of its part, scaled to the series' own range."""
    marks = ASCII_BLOCKS if plain else BLOCKS
    parts = [values[len(values) * i // cells : len(values) * (i + 1) // cells] for i in range(cells)]
    if len(values) < cells:
        parts = [[value] for value in values]
    known_parts = [[value for value in part if value is not None] for part in parts]
    means = [statistics.fmean(part) if part else None for part in known_parts]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread = (high - low) or 1.0
    heights = [None if mean is None else round((mean - low) / spread * (len(marks) - 2)) for mean in means]
    return "".join(marks[0] if height is None else marks[1 + height] for height in heights)


def _time_lines(state: TrainingState, width: int, plain: bool) -> list[Text]:
    """Return a bar with the shares of the recent steps' time, and its legend."""
    recent = state.entries[-_RECENT:]
    spent = [
        (name, mark, ascii_mark, color, sum(number(entry, metric) or 0.0 for entry in recent))
        for metric, name, mark, ascii_mark, color in PARTS
    ]
    spent = [part for part in spent if part[4] > 0]
    total = sum(part[4] for part in spent)
    if not total:
        return []
    room = min(width - 6, SPARK_CELLS)
    bar, key = Text("time  "), Text("      ")
    for name, mark, ascii_mark, color, seconds in spent:
        sign = ascii_mark if plain else mark
        bar.append(sign * round(room * seconds / total), color)
        key.append(sign, color).append(f" {name} {seconds / total:.0%}  ")
    step = statistics.fmean(number(entry, "seconds/step") or 0.0 for entry in recent)
    bar.append(f"  {step:.3g} s per step")
    return [bar, key]


def _evaluation_lines(state: TrainingState, width: int) -> list[Text]:
    if not state.evaluations:
        return []
    step = state.evaluations[-1].step
    last = [evaluation for evaluation in state.evaluations if evaluation.step == step]
    head, cells = f"evaluation at step {step}", [evaluation_text(evaluation) for evaluation in last]
    if len("  ".join([head, *cells])) <= width:
        lines = [Text(f"{head}  ").append("  ".join(cells), "bold")]
    else:
        lines = [Text(head), *(Text(f"  {cell}", "bold") for cell in cells)]
    if state.best is not None:
        best = state.best
        lines.append(Text(f"best {best.metric} {best.value:.3f} at step {best.step}"))
        return lines
    for cell in dict.fromkeys(evaluation.cell for evaluation in last):
        known = [
            evaluation
            for evaluation in state.evaluations
            if evaluation.cell == cell and evaluation.reward is not None
        ]
        if len(known) > 1:
            top = max(known, key=lambda evaluation: evaluation.reward or 0.0)
            lines.append(Text(f"best {cell} {top.reward or 0.0:.3f} at step {top.step}", "dim"))
    return lines


def evaluation_text(evaluation: CellEvaluation) -> str:
    """Return the result of a cell: `optimal 0.512 [0.44, 0.58]`, or `every 3 of 533 lines bad`."""
    if evaluation.reward is None:
        return f"{evaluation.cell} failed"
    if evaluation.lines is not None:
        return f"{evaluation.cell} {evaluation.metrics['bad']:.0f} of {evaluation.lines} lines bad"
    bounds = " [{:.2f}, {:.2f}]".format(*evaluation.interval) if evaluation.interval else ""
    return f"{evaluation.cell} {evaluation.reward:.3f}{bounds}"


def _cut(text: Text, width: int) -> Text:
    text.no_wrap = True
    text.truncate(width, overflow="ellipsis")
    return text
