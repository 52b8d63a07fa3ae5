"""What the page of a training run shows: curves, alerts, evaluations, time, samples, how to repeat it.

All of it is as the trainer reported it, from files that came with the run. They may hold anything: what is no
line of ours is passed over.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from pydantic import ValidationError
from wander.types import Rollout
from wander.wire import RunDetail, RunManifest
from wander.wire.settings_toml import toml_lines

from wander_hub.storage import Storage
from wander_hub.web import charts, transcript
from wander_hub.web.schemas import Curve, ShownMessage
from wander_hub.web.training import METRICS_FILE, curves, entries

ALERTS_FILE, EVALUATIONS_FILE, SAMPLES_FILE = "alerts.jsonl", "evaluations.jsonl", "samples.jsonl"
MOST_BYTES = 16 * 1024 * 1024
"""Of one file that is read to draw a page."""
_MOST_ALERTS = 50
_MOST_EVALUATIONS = 200
_MOST_CELLS = 8
_MOST_PROMPTS = 6
_MOST_MESSAGES = 40
_TIMES = ("generation", "environment", "scoring", "update", "sync", "evaluation")


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
class Sample:
    """A rollout of the policy on one of the fixed examples."""

    rollout: Rollout
    messages: list[ShownMessage]
    omitted: int


@dataclass(frozen=True)
class SampleTable:
    """The fixed examples over the steps, and those of one step whole."""

    steps: list[int]
    chosen: int
    prompts: list[str]
    rewards: dict[str, dict[int, float | None]]
    """By example, then step; no entry where there is no rollout, None where it failed."""
    shown: list[Sample]


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
    """The settings as TOML."""


def describe_training(storage: Storage, detail: RunDetail, step: int | None) -> TrainingView:
    """Return what the page of a training run shows, with the samples of a step or of the last one."""
    files = {one.name: one.sha256 for one in detail.artifacts if one.size <= MOST_BYTES}

    def read(name: str) -> bytes:
        return storage.read(files[name]) if name in files else b""

    metrics = read(METRICS_FILE)
    lines = entries(metrics)
    alerts = list(_alerts(read(ALERTS_FILE)))
    evaluations = list(_evaluations(read(EVALUATIONS_FILE)))[-_MOST_EVALUATIONS:]
    shares = _time_shares(lines)
    manifest = detail.manifest
    return TrainingView(
        curves=curves(metrics),
        steps=max((int(number) for entry in lines if (number := _number(entry.get("step")))), default=0),
        seconds=sum(_number(entry.get("seconds/step")) or 0.0 for entry in lines),
        time_shares=shares,
        time_bar=charts.shares(shares) if shares else Markup(""),
        alerts=alerts[:_MOST_ALERTS],
        alerts_left_out=max(0, len(alerts) - _MOST_ALERTS),
        evaluations=evaluations,
        evaluation_chart=_evaluation_chart(evaluations),
        samples=_samples(read(SAMPLES_FILE), step),
        command=format_command(manifest),
        config="\n".join(toml_lines(manifest.training or {})),
    )


def format_command(manifest: RunManifest) -> str:
    """Return the command that trains the same again, from the settings as a file."""
    pin = manifest.environment
    return shlex.join(["wander", "train", f"{pin.owner}/{pin.name}@{pin.version}", "config.toml"])


def _alerts(text: bytes) -> Iterator[AlertLine]:
    for entry in entries(text):
        step, message = _number(entry.get("step")), entry.get("message")
        if step is not None and isinstance(message, str):
            yield AlertLine(int(step), str(entry.get("rule", "")), message)


def _evaluations(text: bytes) -> Iterator[EvaluationLine]:
    for entry in entries(text):
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


def _evaluation_chart(evaluations: Sequence[EvaluationLine]) -> Markup:
    cells = list(dict.fromkeys(one.cell for one in evaluations))[:_MOST_CELLS]
    points = {
        cell: [(one.step, one.reward, one.low, one.high) for one in evaluations if one.cell == cell]
        for cell in cells
    }
    return charts.evaluations(points) if points else Markup("")


def _time_shares(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    spent = {
        part: sum(max(0.0, _number(entry.get(f"seconds/{part}")) or 0.0) for entry in lines)
        for part in _TIMES
    }
    total = sum(spent.values())
    return [(part, seconds / total) for part, seconds in spent.items() if seconds > 0] if total else []


def _samples(text: bytes, step: int | None) -> SampleTable | None:
    rollouts = [one for line in text.splitlines() if (one := _sample(line)) is not None]
    if not rollouts:
        return None
    steps = sorted({one.step for one in rollouts if one.step is not None})
    chosen = step if step in steps else steps[-1]
    prompts = list(dict.fromkeys(one.example_id for one in rollouts))[:_MOST_PROMPTS]
    rewards: dict[str, dict[int, float | None]] = {prompt: {} for prompt in prompts}
    shown = []
    for one in rollouts:
        if one.example_id not in rewards or one.step is None:
            continue
        rewards[one.example_id][one.step] = one.reward
        if one.step == chosen:
            messages, omitted = transcript.list_messages(one)
            left_out = max(0, len(messages) - _MOST_MESSAGES)
            shown.append(Sample(one, messages[:_MOST_MESSAGES], omitted + left_out))
    return SampleTable(steps, chosen, prompts, rewards, shown)


def _sample(line: bytes) -> Rollout | None:
    try:
        rollout = Rollout.model_validate_json(line)
    except ValidationError:
        return None
    sound = rollout.reward is None or math.isfinite(rollout.reward)
    return rollout if sound and rollout.step is not None and rollout.step >= 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)
