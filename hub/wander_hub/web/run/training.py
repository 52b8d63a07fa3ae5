"""Gathers the data for the page of a training run: curves, alerts, evaluations, time, samples, commands.

The trainer reported this data in files that were posted with the run. The files may contain anything, so
lines of other formats are skipped.
"""

from __future__ import annotations

import math
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from markupsafe import Markup
from wander.evals.store.jsonl import split_lines
from wander.types import Rollout
from wander.wire import RunDetail, RunManifest
from wander.wire.reproduction import toml_lines
from wander.wire.untrusted_text import METRICS, ROLLOUT, RefusedText, read_json, read_record

from wander_hub.runs.kept import KEPT
from wander_hub.storage import Storage, spare_missing
from wander_hub.web import charts
from wander_hub.web.charts import Mark
from wander_hub.web.run import transcript
from wander_hub.web.run.transcript import ShownMessage

Line = TypeVar("Line")
Found = TypeVar("Found")

METRICS_FILE, ALERTS_FILE = "metrics.jsonl", "alerts.jsonl"
EVALUATIONS_FILE, SAMPLES_FILE = "evaluations.jsonl", "samples.jsonl"
MOST_BYTES = 16 * 1024 * 1024
"""Largest file that is read to draw a page."""
MOST_CURVES = 24
_TABLE_ROWS = 12
_MOST_ALERTS = 50
_MOST_CHANGES = 20
_MOST_EVALUATIONS = 200
MOST_CELLS = 8
_MOST_PROMPTS = 6
_OF_POINT = 30
"""Size of a cached point, in numbers."""
_MOST_MESSAGES = 40
_MOST_POINTS, _MOST_LINES, _MOST_SAMPLES, _MOST_SHOWN = 500_000, 100_000, 2_000, 12
"""Limits: metric values and lines that are read from a file, samples, and samples of one step."""
_LONGEST_TEXT = 1000
"""Maximum number of characters of an alert. The page shortens it further."""
_TIMES = ("generation", "environment", "scoring", "update", "sync", "evaluation")
_NOT_CURVES = {"step", "steps", "epoch", "failed"}
_DUPLICATES = {
    "rewards/reward/mean": "reward",
    "rewards/reward/std": "reward_std",
    "frac_reward_zero_std": "groups_without_variance",
}
"""Metrics that a trainer reports twice, with the name under which the page draws them."""
_FAILED = "failed/rollouts"
"""The share of failed rollouts per step. The page draws it even if it is always 0."""
_FIRST = (
    "reward",
    "reward_std",
    "groups_without_variance",
    "entropy",
    "tokens",
    "truncated",
    _FAILED,
    "loss",
    "kl",
    "frac_reward_zero_std",
    "grad_norm",
    "learning_rate",
)
"""Order of the curves: is it learning, is there a signal, is the policy healthy. Others follow by name."""
_GROUPS = {
    "Rewards": ("reward", "groups_without", "frac_reward"),
    "Policy": ("entropy", "kl", "tokens", "truncated", "failed", "rollouts", "clip", "sampling"),
    "Optimizer": ("loss", "grad", "learning_rate"),
    "Time": ("seconds", "step_time", "tokens_per_second"),
}
"""Headings of the groups of curves, with the prefixes of their names."""


@dataclass(frozen=True)
class Curve:
    """One metric of a training run, drawn."""

    name: str
    chart: Markup
    first: float
    last: float
    points: int
    bucketed: bool
    table: list[tuple[float, float]] = field(default_factory=list)
    """Some of its points as (step, value), for readers who cannot see the chart."""


class Named(Protocol):
    """A chart of a metric."""

    @property
    def name(self) -> str:
        """Name of the metric."""


Drawn = TypeVar("Drawn", bound=Named)


def group_curves(curves: Sequence[Drawn]) -> dict[str, list[Drawn]]:
    """Return the curves of each group by its heading."""
    groups: dict[str, list[Drawn]] = {heading: [] for heading in (*_GROUPS, "Others")}
    for one in curves:
        heading = next((key for key, begins in _GROUPS.items() if one.name.startswith(begins)), "Others")
        groups[heading].append(one)
    return {heading: some for heading, some in groups.items() if some}


@dataclass(frozen=True)
class AlertLine:
    """One alert."""

    step: int
    rule: str
    message: str


@dataclass(frozen=True)
class EvaluationLine:
    """One cell of an evaluation."""

    step: int
    cell: str
    reward: float
    low: float
    high: float
    examples: int


@dataclass(frozen=True)
class PolicySample:
    """A rollout of the policy on one of the fixed examples."""

    rollout: Rollout
    messages: list[ShownMessage]
    omitted: int


@dataclass(frozen=True)
class SampleTable:
    """Rewards of the fixed examples over the steps, and the complete samples of one step."""

    steps: list[int]
    chosen: int
    prompts: list[str]
    rewards: dict[str, dict[int, float | None]]
    """Rewards by example and step. None means that the rollout failed. No rollout, no entry."""
    shown: list[PolicySample]


@dataclass(frozen=True)
class TrainingView:
    """A training run."""

    curves: list[Curve]
    steps: int
    seconds: float
    time_shares: list[tuple[str, float]]
    time_bar: Markup
    alerts: list[AlertLine]
    alerts_left_out: int
    evaluations: list[EvaluationLine]
    evaluation_chart: Markup
    samples: SampleTable | None
    command: str
    config: str
    """The settings as TOML, without weights that other people cannot get."""
    unavailable: list[str]
    """Weights in the settings that other people cannot get."""

    @property
    def folded(self) -> dict[str, list[Curve]]:
        """All curves but the first, by heading."""
        return group_curves(self.curves[1:])


def describe_training(
    storage: Storage, detail: RunDetail, step: int | None, lost: set[str], pushed: str | None
) -> TrainingView:
    """Return the data for the page of a training run, with the samples of one step, by default the last.

    `pushed` is the model on this hub with the initial weights of the run, if there is one. Digests of
    files that are missing from the storage are added to `lost`.
    """
    series, alerts, evaluations, samples = (
        Series(0, {}, {}, {}, 0.0, {}),
        _Kept[AlertLine]([], 0),
        list[EvaluationLine](),
        None,
    )
    with spare_missing(lost):
        series = read_series(storage, detail)
    with spare_missing(lost):
        alerts = _read_alerts(storage, detail)
    with spare_missing(lost):
        evaluations = read_evaluations(storage, detail)
    with spare_missing(lost):
        samples = _samples(storage, detail, step)
    marks = changes_of(detail.manifest)
    marks += [Mark(one.step, one.message[:200]) for one in alerts.lines]
    total = sum(series.spent.values())
    shares = [(part, seconds / total) for part, seconds in series.spent.items() if seconds > 0]
    cells = {
        cell: [(one.step, one.reward, one.low, one.high) for one in evaluations if one.cell == cell]
        for cell in list(dict.fromkeys(one.cell for one in evaluations))[:MOST_CELLS]
    }
    pin = detail.manifest.environment
    settings, unavailable = _name_weights(detail.manifest.training or {}, pushed)
    return TrainingView(
        curves=list(_curves(series, marks)),
        steps=series.steps,
        seconds=series.seconds,
        time_shares=shares,
        time_bar=charts.shares(shares) if shares else Markup(""),
        alerts=alerts.lines,
        alerts_left_out=alerts.count - len(alerts.lines),
        evaluations=evaluations,
        evaluation_chart=charts.evaluations(cells) if cells else Markup(""),
        samples=samples,
        command=shlex.join(["wander", "train", f"{pin.owner}/{pin.name}@{pin.version}", "config.toml"]),
        config="\n".join(toml_lines(settings)),
        unavailable=unavailable,
    )


def _name_weights(training: Mapping[str, Any], pushed: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return settings with weights that everyone can get, and the names of the weights that were left out."""
    settings, unavailable = {**training}, []
    for name in ("model", "teacher"):
        section = settings.get(name)
        if not isinstance(section, Mapping) or not isinstance(section.get("path"), str):
            continue
        path = f"hub:{pushed}" if name == "model" and pushed else section["path"]
        if not path.startswith(("hub:", "hf:")) and path.lower() != "smollm2":
            unavailable.append(path.rstrip("/").rpartition("/")[2])
            path = None
        settings[name] = {**section, "path": path}
    return settings, unavailable


def list_series(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each metric that is not always zero, the most important metrics first."""
    series: dict[str, list[tuple[float, float]]] = {}
    for number, entry in enumerate(lines):
        step = _number(entry.get("step", number))
        if step is None:
            continue
        for name, value in entry.items():
            if name not in _NOT_CURVES and (known := _number(value)) is not None:
                series.setdefault(name, []).append((step, known))
        failed, rollouts = _number(entry.get("failed")), _number(entry.get("rollouts"))
        if failed is not None and rollouts:
            series.setdefault(_FAILED, []).append((step, failed / rollouts))
    for name, other in _DUPLICATES.items():
        pairs = zip(series.get(name, []), series.get(other, []), strict=False)
        if len(series.get(name, [])) == len(series.get(other, [])) and all(
            math.isclose(one[1], two[1], rel_tol=1e-3, abs_tol=1e-6) for one, two in pairs
        ):
            series.pop(name, None)

    def place(name: str) -> int:
        if name.startswith("rewards/"):
            return 0  # sorted by name, these follow the reward itself
        return _FIRST.index(name) if name in _FIRST else len(_FIRST)

    names = sorted(series, key=lambda name: (place(name), name))[:MOST_CURVES]
    return {
        name: sorted(series[name], key=lambda point: point[0])
        for name in names
        if name == _FAILED or any(value for _, value in series[name])
    }


@dataclass(frozen=True)
class Series:
    """The points of a run's metrics that are drawn, on its own page or in a comparison."""

    steps: int
    points: dict[str, tuple[tuple[float, float], ...]]
    ends: dict[str, tuple[float, float]]
    """First and last value of each metric."""
    counts: dict[str, int]
    """Number of points of each metric, including points that are not drawn."""
    seconds: float
    spent: dict[str, float]
    """Seconds by activity."""

    @property
    def numbers(self) -> int:
        """Size in the cache."""
        return _OF_POINT * sum(len(one) for one in self.points.values())


def read_series(storage: Storage, detail: RunDetail) -> Series:
    """Return the metrics of a run. They are cached, because reading a large file takes a second."""
    files = {one.name: one.sha256 for one in detail.artifacts}

    def read() -> Series:
        lines = list(_first(read_metrics(storage, detail), _MOST_POINTS))
        found = list_series(lines)
        drawn = {name: tuple(charts.bucket(points)) for name, points in found.items()}
        ends = {name: (points[0][1], points[-1][1]) for name, points in found.items()}
        counts = {name: len(points) for name, points in found.items()}
        seconds = sum(_number(entry.get("seconds/step")) or 0.0 for entry in lines)
        spent = {
            part: sum(max(0.0, _number(entry.get(f"seconds/{part}")) or 0.0) for entry in lines)
            for part in _TIMES
        }
        steps = max((int(number) for entry in lines if (number := _number(entry.get("step")))), default=0)
        return Series(steps, drawn, ends, counts, seconds, spent)

    kept: Series = KEPT.get((files.get(METRICS_FILE, ""), "series"), read)
    return kept


def _curves(series: Series, marks: Sequence[Mark]) -> Iterator[Curve]:
    """Yield a chart for each metric."""
    for place, (name, points) in enumerate(series.points.items()):
        last = len(points) - 1
        shown = sorted({round(last * part / _TABLE_ROWS) for part in range(_TABLE_ROWS + 1)})
        yield Curve(
            name=name,
            chart=charts.curves(name, (points,), tuple(marks), large=not place),
            first=series.ends[name][0],
            last=series.ends[name][1],
            points=series.counts[name],
            bucketed=len(points) < series.counts[name],
            table=[points[one] for one in shown],
        )


def changes_of(manifest: RunManifest) -> list[Mark]:
    """Return a mark for each step after a change of settings."""
    allowed = manifest.reproduction.allowed if manifest.reproduction else []
    return [
        Mark(one.step, f"{one.field} changed to {one.after}"[:200], "phase-mark")
        for one in allowed[:_MOST_CHANGES]
    ]


def read_metrics(storage: Storage, detail: RunDetail) -> Iterator[dict[str, Any]]:
    """Yield the trainer's metrics of each step."""
    return _entries(_read(storage, detail, METRICS_FILE))


def _first(lines: Iterable[dict[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    """Yield the first lines, up to about `most` values."""
    for line in lines:
        most -= len(line) + 1
        if most < 0:
            return
        yield line


def read_evaluations(storage: Storage, detail: RunDetail) -> list[EvaluationLine]:
    """Return the latest evaluations during a training run."""
    return _read_kept(
        *(storage, detail, EVALUATIONS_FILE),
        lambda text: _Kept(list(deque(_evaluations(text), _MOST_EVALUATIONS)), 0),
    ).lines


def _read_alerts(storage: Storage, detail: RunDetail) -> _Kept[AlertLine]:
    """Return the first alerts, and the number of all alerts."""

    def read(text: bytes) -> _Kept[AlertLine]:
        found = list(_alerts(text))
        return _Kept(found[:_MOST_ALERTS], len(found))

    return _read_kept(storage, detail, ALERTS_FILE, read)


@dataclass(frozen=True)
class _Kept(Generic[Line]):
    """The lines of a file that pages show, and the number of all its lines."""

    lines: list[Line]
    count: int

    @property
    def numbers(self) -> int:
        """Size in the cache."""
        return _OF_POINT * len(self.lines)


def _read_kept(storage: Storage, detail: RunDetail, name: str, read: Callable[[bytes], Found]) -> Found:
    """Read a file that was posted with a run, or return the result cached by its digest."""
    sha256 = next((one.sha256 for one in detail.artifacts if one.name == name), "")
    kept: Found = KEPT.get((sha256, name), lambda: read(_read(storage, detail, name)))
    return kept


def _read(storage: Storage, detail: RunDetail, name: str) -> bytes:
    """Return the content of a file that was posted with a run. Empty if it is missing or too large."""
    found = next((one for one in detail.artifacts if one.name == name and one.size <= MOST_BYTES), None)
    return storage.read(found.sha256) if found is not None else b""


def _entries(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON lines file, and an empty one for every other line."""
    for line in islice(split_lines([text]), _MOST_LINES):
        try:
            value = read_json(line, METRICS, finite=False)
        except RefusedText:
            value = None
        yield value if isinstance(value, dict) else {}


def _alerts(text: bytes) -> Iterator[AlertLine]:
    for entry in _entries(text):
        step, message = _number(entry.get("step")), entry.get("message")
        if step is not None and isinstance(message, str):
            yield AlertLine(int(step), str(entry.get("rule", ""))[:_LONGEST_TEXT], message[:_LONGEST_TEXT])


def _evaluations(text: bytes) -> Iterator[EvaluationLine]:
    for entry in _entries(text):
        step, reward = _number(entry.get("step")), _number(entry.get("reward"))
        if step is None or reward is None:
            continue
        bounds = entry.get("interval")
        pair = [_number(one) for one in bounds] if isinstance(bounds, list) else []
        low, high = pair if len(pair) == 2 else (None, None)
        yield EvaluationLine(
            step=int(step),
            cell="".join(one if one.isprintable() else "�" for one in str(entry.get("cell", ""))[:100]),
            reward=reward,
            low=reward if low is None else low,
            high=reward if high is None else high,
            examples=int(_number(entry.get("examples")) or 0),
        )


@dataclass(frozen=True)
class _SampleIndex:
    """The positions of a run's samples in their file."""

    steps: list[int]
    prompts: list[str]
    rewards: dict[str, dict[int, float | None]]
    places: dict[int, list[tuple[int, int]]]
    """Offset and length of the lines, by step."""

    @property
    def numbers(self) -> int:
        """Size in the cache."""
        return _OF_POINT * sum(map(len, (self.steps, *self.rewards.values(), *self.places.values())))


def _index_samples(text: bytes) -> _SampleIndex:
    """Return an index of the samples in a file."""
    rewards: dict[str, dict[int, float | None]] = {}
    places: dict[int, list[tuple[int, int]]] = {}
    offset = 0
    for line in islice(split_lines([text]), _MOST_SAMPLES):
        one = _sample(line)
        if one is not None and (one.example_id in rewards or len(rewards) < _MOST_PROMPTS):
            rewards.setdefault(one.example_id, {})[one.step or 0] = one.reward
            places.setdefault(one.step or 0, []).append((offset, len(line)))
        offset += len(line)
    return _SampleIndex(sorted(places), list(rewards), rewards, places)


def _samples(storage: Storage, detail: RunDetail, step: int | None) -> SampleTable | None:
    """Return the samples of a run, with the complete rollouts of the given step or the last one."""
    index = _read_kept(storage, detail, SAMPLES_FILE, _index_samples)
    if not index.steps:
        return None
    chosen = step if step in index.steps else index.steps[-1]
    sha256 = next(one.sha256 for one in detail.artifacts if one.name == SAMPLES_FILE)
    shown = []
    for place in index.places[chosen][:_MOST_SHOWN]:
        if (one := _sample(storage.read(sha256, *place))) is not None:
            messages, omitted = transcript.list_messages(one, view=detail.manifest.environment.info.view)
            left_out = max(0, len(messages) - _MOST_MESSAGES)
            shown.append(PolicySample(one, messages[:_MOST_MESSAGES], omitted + left_out))
    return SampleTable(index.steps, chosen, index.prompts, index.rewards, shown)


def _sample(line: bytes) -> Rollout | None:
    try:
        rollout = read_record(Rollout, line, ROLLOUT)
    except RefusedText:
        return None
    sound = rollout.reward is None or math.isfinite(rollout.reward)
    return rollout if sound and rollout.step is not None and rollout.step >= 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)
