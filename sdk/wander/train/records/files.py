"""The files in a training run's folder, read and written without PyTorch.

A line of `metrics.jsonl` is a step, a line of `evaluations.jsonl` an evaluation of a cell, and a line of
`alerts.jsonl` an alert. `samples.jsonl` contains rollouts of the same few examples. Example, index and seeds
are the same at every step, so all differences between samples are the result of learning. `trl.json` contains
the arguments that TRL computed with. `outcome.json` describes how the run ended, and `best.json` its best
weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from wander.errors import ConfigError, RunError
from wander.evals.stats.intervals import Interval
from wander.evals.store import jsonl
from wander.train.records.checkpoints import BEST_MODEL
from wander.types import Record, Rollout

METRICS = "metrics.jsonl"
ARGUMENTS = "trl.json"
EVALUATIONS = "evaluations.jsonl"
ALERTS = "alerts.jsonl"
SAMPLES = "samples.jsonl"
OUTCOME = "outcome.json"
BEST = "best.json"

EVALUATION = "evaluation/"
"""Prefix of the metrics of a step that come from its evaluations."""


def write_arguments(folder: Path, arguments: Any) -> None:
    """Write the arguments that TRL computed with, including its defaults, without paths and tokens."""
    values = {
        name: value
        for name, value in arguments.to_dict().items()
        if name not in ("output_dir", "logging_dir", "run_name") and "token" not in name
    }
    data = {"config": type(arguments).__name__, "trl": version("trl"), "arguments": values}
    jsonl.write_whole(folder / ARGUMENTS, (json.dumps(data, indent=1, default=str) + "\n").encode())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of every finished step."""
    try:
        return read_entries(folder / METRICS)
    except FileNotFoundError:
        raise RunError(f"`{folder}` has no {METRICS}", hint="pass the folder of a training run") from None


def read_entries(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics, except an incomplete last line.

    Raises `RunError` for a line that is not a step.
    """
    entries = []
    for number, line in enumerate(jsonl.lines(file), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            entry = jsonl.parse_object(line)
        except ValueError:
            entry = {}
        if not isinstance(entry.get("step"), int):
            raise RunError(f"`{file}` is damaged: line {number} is not a step")
        entries.append(entry)
    return entries


def number(entry: Mapping[str, Any], name: str) -> float | None:
    """Return a metric of a step, or None if it is not a number."""
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return float(value)


def read_samples(folder: Path) -> list[Rollout]:
    """Return the samples of a training run, sorted by step."""
    return jsonl.read_records(folder / SAMPLES, Rollout)


def append_samples(folder: Path, rollouts: Iterable[Rollout]) -> None:
    """Add the samples of a step."""
    text = "".join(rollout.model_dump_json() + "\n" for rollout in rollouts)
    with (folder / SAMPLES).open("ab") as file:
        file.write(text.encode("utf-8", "replace"))


def write_samples(folder: Path, rollouts: Iterable[Rollout]) -> None:
    """Replace all samples."""
    jsonl.write_records(folder / SAMPLES, rollouts)


class CellEvaluation(Record):
    """An evaluation of a cell: a line of `evaluations.jsonl`."""

    step: int
    """Training step of the policy; 0 for the initial model."""
    cell: str
    split: Literal["train", "eval"]
    """Split of the examples; `train` if the environment lacks an eval split."""
    task_set_sha256: str
    """Digest of the ordered examples: lines with the same digest can be compared."""
    examples: int
    """Number of examples, or of openings if every line was played."""
    lines: int | None = None
    """Number of lines; None if examples were played."""
    failed: int = 0
    """Number of rollouts that failed twice. They are left out of every mean."""
    reward: float | None
    """Mean over the examples; None if every rollout failed."""
    interval: Interval | None = None
    """95% interval of the reward."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Mean of every reward function and metric. For an exhaustive cell, numbers of lines by their ending."""
    intervals: dict[str, Interval] = Field(default_factory=dict)
    """95% intervals of the metrics."""
    turns: float | None = None
    truncated: int = 0
    tokens: float = 0.0
    """Number of sampled tokens per rollout."""
    seconds: float = 0.0

    def values(self) -> dict[str, float | None]:
        """Return the results by their names in settings: `CELL/reward` and `CELL/METRIC`."""
        return {f"{self.cell}/reward": self.reward} | {
            f"{self.cell}/{name}": value for name, value in self.metrics.items() if name != "reward"
        }


def read_evaluations(folder: Path) -> list[CellEvaluation]:
    """Return the evaluations of a training run, oldest first."""
    return jsonl.read_records(folder / EVALUATIONS, CellEvaluation)


def read_first_values(folder: Path) -> dict[str, float | None]:
    """Return the results of the evaluation before the first step, by `CELL/METRIC`."""
    return values_of(line for line in read_evaluations(folder) if line.step == 0)


def write_evaluations(folder: Path, evaluations: Iterable[CellEvaluation]) -> None:
    """Replace all evaluations."""
    jsonl.write_records(folder / EVALUATIONS, evaluations)


def values_of(evaluations: Iterable[CellEvaluation]) -> dict[str, float | None]:
    """Return the results of cells, by `CELL/METRIC`."""
    return {name: value for line in evaluations for name, value in line.values().items()}


def pick_value(values: Mapping[str, float | None], name: str) -> float | None:
    """Return a value of a step's cells, or None if every rollout of its cell failed.

    Raises `ConfigError` for an unknown name.
    """
    if name in values:
        return values[name]
    if values.get(f"{name.partition('/')[0]}/reward", 0.0) is None:
        return None
    raise ConfigError(f"no evaluation has `{name}`", hint=f"evaluations have {', '.join(sorted(values))}")


AlertKind = Literal[
    "collapse",
    "reward_not_finite",
    "logprobs_differ",
    "entropy_low",
    "no_variance",
    "truncated",
    "failures",
    "evaluation_flat",
    "best_at_start",
]


class Alert(Record):
    """An alert, at the step that raised it."""

    step: int
    rule: AlertKind
    message: str


def read_alerts(folder: Path) -> list[Alert]:
    """Return the alerts of a training run, oldest first."""
    return jsonl.read_records(folder / ALERTS, Alert)


def write_alerts(folder: Path, alerts: Sequence[Alert]) -> None:
    """Replace all alerts; an empty list removes the file."""
    if not alerts:
        (folder / ALERTS).unlink(missing_ok=True)
        return
    jsonl.write_records(folder / ALERTS, alerts)


StopKind = Literal["collapse", "gradient", "target"]


class Stopped(Record):
    """The reason why a run ended before its last step."""

    kind: StopKind
    step: int
    reason: str
    """Explanation in words, with the numbers."""

    @property
    def collapsed(self) -> bool:
        """Whether the run ended because learning failed."""
        return self.kind != "target"


class BestCheckpoint(Record):
    """The weights in `best`, and their value: `best.json`."""

    metric: str
    mode: Literal["max", "min"]
    value: float
    step: int
    """Step of the weights, which was also evaluated."""
    weights_sha256: str | None = None

    def is_beaten_by(self, value: float) -> bool:
        """Return whether a value is strictly better, so that the first of equal values stays the best."""
        return value > self.value if self.mode == "max" else value < self.value


class Outcome(Record):
    """The end of a training run."""

    steps: int
    finished: bool
    """Whether the run finished; False if it was interrupted and can be resumed."""
    stopped: Stopped | None = None
    """Reason for an early end; None if it played all steps, or was interrupted."""
    best: BestCheckpoint | None = None
    """Best weights; None if the run did not keep any."""


def read_outcome(folder: Path) -> Outcome | None:
    """Return how a run ended; None while it is running, or if it was killed."""
    return jsonl.read_record(folder / OUTCOME, Outcome)


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write how a run ended."""
    jsonl.write_record(folder / OUTCOME, outcome)


def read_best(folder: Path) -> BestCheckpoint | None:
    """Return the description of the best weights that a run kept, or None."""
    return jsonl.read_record(folder / BEST, BestCheckpoint)


def write_best(folder: Path, best: BestCheckpoint) -> None:
    """Write the description of the weights in `best`."""
    jsonl.write_record(folder / BEST, best)


def forget_best(folder: Path) -> None:
    """Remove the best weights of a run and their description, if any."""
    if (folder / BEST).is_file():
        shutil.rmtree(folder / BEST_MODEL, ignore_errors=True)
        (folder / BEST).unlink()
