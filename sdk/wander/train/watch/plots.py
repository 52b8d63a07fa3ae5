"""Learning curves of training runs as files: a single run in detail, or several on the same axes.

Each metric has a small chart: the reward with its spread and the evaluations with their intervals, each
reward function, the policy's health, and the time of each part of a step. Every step is a thin line, and the
mean of the last ten steps a thick one. If there are more than `MOST_POINTS` steps, the minimum and maximum of
each bucket are drawn, so that spikes stay visible, and the title mentions it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wander.errors import ConfigError, did_you_mean
from wander.evals.report import charts
from wander.train.records.files import CellEvaluation, number, read_evaluations, read_metrics

Across = Literal["step", "rollouts", "hours"]
"""Unit of the horizontal axis."""

PANELS = (
    ("reward", "mean reward"),
    ("groups_without_variance", "groups that teach nothing"),
    ("entropy", "entropy (nats per token)"),
    ("tokens", "sampled tokens per rollout"),
    ("truncated", "truncated rollouts"),
    ("loss", "loss"),
    ("grad_norm", "gradient norm"),
    ("seconds/step", "seconds per step"),
)
"""Metric and title of the charts, in addition to those of the reward functions. Metrics that no run has are
left out."""

TIMES = ("generation", "environment", "scoring", "update", "sync", "evaluation")
"""Parts of a step's time in the metrics `seconds/...`."""

WINDOW = 10
"""Number of steps in the running mean, which is drawn as a thick line."""
MOST_POINTS = 1500
SUFFIXES = (".svg", ".png", ".html", ".json")


@dataclass(frozen=True)
class PlottedRun:
    """A run to draw."""

    name: str
    entries: Sequence[dict[str, Any]]
    """Lines of `metrics.jsonl`."""
    evaluations: Sequence[CellEvaluation] = field(default_factory=list)

    def places(self, across: Across) -> dict[int, float]:
        """Return the position of each step on the horizontal axis; the run starts at 0."""
        places, at = {0: 0.0}, 0.0
        for entry in self.entries:
            if across == "step":
                at = float(entry["step"])
            elif across == "rollouts":
                at += number(entry, "rollouts") or 0.0
            else:
                seconds = ("seconds/step", "seconds/evaluation")
                at += sum(number(entry, name) or 0.0 for name in seconds) / 3600
            places[entry["step"]] = at
        return places

    def known(self, name: str) -> list[tuple[int, float]]:
        """Return step and value for all steps whose metric is a number."""
        pairs = ((entry["step"], number(entry, name)) for entry in self.entries)
        return [(step, value) for step, value in pairs if value is not None]


def read_plotted(folder: Path, name: str | None = None) -> PlottedRun:
    """Read a run from its folder; raises `RunError` if it is not a training run."""
    return PlottedRun(name or folder.resolve().name, read_metrics(folder), read_evaluations(folder))


def draw_learning_curve(entries: Sequence[dict[str, Any]], folder: Path, *, title: str) -> list[Path]:
    """Write `learning_curve.svg` and `.png` and return their paths; empty for fewer than two steps.

    The evaluations are read from the folder. Raises `MissingExtra`.
    """
    run = PlottedRun(title, entries, read_evaluations(folder))
    files = [folder / "learning_curve.svg", folder / "learning_curve.png"]
    return draw_runs([run], files, title=title)


def draw_runs(
    runs: Sequence[PlottedRun],
    files: Sequence[Path],
    *,
    title: str,
    across: Across = "step",
    metrics: Sequence[str] = (),
) -> list[Path]:
    """Draw runs on the same axes into files, by their suffix; return the files, or an empty list without
    data.

    A single run also shows the spread of the reward and the shares of time. `metrics` selects the charts.
    Raises `ConfigError` for an unknown suffix or metric, and `MissingExtra`.
    """
    for file in files:
        if file.suffix not in SUFFIXES:
            raise ConfigError(
                f"`{file}` is not the name of a plot", hint=f"use one of the suffixes {', '.join(SUFFIXES)}"
            )
    whole = chart_runs(runs, title=title, across=across, metrics=metrics)
    if whole is None:
        return []
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, dict[str, Any]] = {".png": {"scale_factor": 2}, ".html": {"inline": True}}
        whole.save(file, **options.get(file.suffix, {}))
    return list(files)


def chart_runs(
    runs: Sequence[PlottedRun], *, title: str, across: Across = "step", metrics: Sequence[str] = ()
) -> Any | None:
    """Return the chart that `draw_runs` writes; None without data.

    Raises `ConfigError` for an unknown metric, and `MissingExtra`.
    """
    names = list(metrics) or _panel_names(runs)
    if missing := [name for name in metrics if not any(run.known(name) for run in runs)]:
        known = sorted({name for run in runs for entry in run.entries for name in entry})
        hint = did_you_mean(missing[0], known) or f"the runs have {', '.join(known)}"
        raise ConfigError(f"no run has a metric `{missing[0]}`", hint=hint)
    panels = [
        charts.chart_curve(
            [row for run in runs for row in _points(run, name, across)],
            [row for run in runs for row in _evaluations(run, across)] if name == "reward" else [],
            [run.name for run in runs],
            title=dict(PANELS).get(name, name.removeprefix("rewards/")),
            across=across,
        )
        for name in names
    ]
    if len(runs) == 1 and not metrics and names:
        times = _times(runs[0], across)
        if len({row["at"] for row in times}) > 1:
            panels.append(charts.chart_shares(times, TIMES, across=across))
    if not panels:
        return None
    if any(len(run.entries) > MOST_POINTS for run in runs):
        title = f"{title} (minimum and maximum of several steps)"
    return charts.arrange_panels(panels, title=title)


def _panel_names(runs: Sequence[PlottedRun]) -> list[str]:
    """Return the metrics that a run has for at least two steps: the reward, its functions, then the
    others."""
    present = {name for run in runs for entry in run.entries for name in entry}
    functions = sorted(
        name for name in present if name.startswith(("rewards/", "reward/")) and name.count("/") == 1
    )
    first, *rest = [name for name, _ in PANELS]
    wanted = [first, *functions, *rest]
    drawn = [name for name in wanted if any(len(run.known(name)) > 1 for run in runs)]
    # These metrics get no chart if they are always zero.
    always_zero = {"truncated", "groups_without_variance"}
    return [
        name
        for name in drawn
        if name not in always_zero or any(value for run in runs for _, value in run.known(name))
    ]


def _points(run: PlottedRun, name: str, across: Across) -> list[dict[str, Any]]:
    """Return the position, value and running mean of each step, and the spread if it is the reward."""
    places = run.places(across)
    spread = dict(run.known("reward_std")) if name == "reward" else {}
    recent: list[float] = []
    rows = []
    for step, value in run.known(name):
        recent = [*recent[-WINDOW + 1 :], value]
        mean = round(sum(recent) / len(recent), 9)
        row = {"run": run.name, "at": places[step], "value": round(value, 9), "mean": mean}
        if name == "reward":
            half = spread.get(step, 0.0)
            row |= {"low": value - half, "high": value + half}
        rows.append(row)
    return thin_out(rows)


def thin_out(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `MOST_POINTS` rows: those with the minimum and the maximum of each bucket."""
    if len(rows) <= MOST_POINTS:
        return rows
    size = -(-len(rows) // (MOST_POINTS // 2))
    kept = []
    for first in range(0, len(rows), size):
        bucket = rows[first : first + size]
        values = [row["value"] for row in bucket]
        ends = sorted({values.index(min(values)), values.index(max(values))})
        kept += [bucket[place] for place in ends]
    return kept


def _evaluations(run: PlottedRun, across: Across) -> list[dict[str, Any]]:
    """Return the rewards of the evaluations with their 95% intervals."""
    places = run.places(across)
    rows = []
    for evaluation in run.evaluations:
        if evaluation.reward is not None and evaluation.step in places:
            low, high = evaluation.interval or (evaluation.reward, evaluation.reward)
            at = {"run": run.name, "at": places[evaluation.step], "cell": evaluation.cell}
            rows.append({**at, "mean": evaluation.reward, "low": low, "high": high})
    return rows


def _times(run: PlottedRun, across: Across) -> list[dict[str, Any]]:
    """Return the seconds of each part of a step, if they are known."""
    places = run.places(across)
    return [
        {"at": places[entry["step"]], "part": part, "seconds": seconds}
        for entry in run.entries[:: max(1, -(-len(run.entries) // MOST_POINTS))]
        for part in TIMES
        if (seconds := number(entry, f"seconds/{part}")) is not None and seconds > 0
    ]
