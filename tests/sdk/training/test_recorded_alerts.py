"""Alerts on the metrics of real runs: none for those that learned, one within ten steps of a collapse.

`recorded_metrics` holds runs of GRPO on `reverse_text` from one warm-up, shortened to what alerts read. The
ones that learned had learning rates of 1e-3 (256 rollouts a step) and 5e-4 (64). The curves of `experiments`
show whole experiments; what they do not show (the spread of rewards) follows from their rewards of 0 and 1.
"""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from wander.train.config import GRPOSettings
from wander.train.records.files import Alert
from wander.train.watch.watch import Rules

RECORDED = Path(__file__).parent / "recorded_metrics"
EXPERIMENTS = Path(__file__).parents[3] / "experiments"
COLLAPSED = {"rate-too-high": 2, "batch-of-16": 2}
"""The step that destroyed the policy, by run."""


def series(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


def alerts_of(entries: list[dict[str, Any]], rollouts: int) -> list[Alert]:
    batch = {"rollouts": rollouts, "group_size": 8, "rows_at_once": min(rollouts, 64)}
    settings = GRPOSettings.model_validate({"model": {"path": "tiny"}, "batch": batch})
    rules = Rules(settings, dict)
    return [alert for entry in entries for alert in rules.read(entry)[0]]


@pytest.mark.parametrize("name", ["learned", "learned-of-64"])
def test_a_run_that_learns_raises_no_alert(name: str) -> None:
    entries = series(name)
    assert alerts_of(entries, entries[0]["rollouts"]) == []


@pytest.mark.parametrize("name", COLLAPSED)
def test_a_collapse_raises_an_alert_within_ten_steps(name: str) -> None:
    entries = series(name)
    told = [one for one in alerts_of(entries, entries[0]["rollouts"]) if one.rule == "collapse"]
    assert told
    assert COLLAPSED[name] < told[0].step <= COLLAPSED[name] + 10
    assert len(told) == 1, "it is told once"


@pytest.mark.parametrize("name", COLLAPSED)
def test_a_late_collapse_raises_an_alert_as_quickly(name: str) -> None:
    """The good run, and then the steps in which the other was destroyed."""
    learned, destroyed = series("learned-of-64"), series(name)[1:]
    entries = [
        {**entry, "step": number, "steps": 200}
        for number, entry in enumerate([*learned, *destroyed], start=1)
    ]
    steps = [one.step for one in alerts_of(entries, 64) if one.rule == "collapse"]
    assert len(steps) == 1
    assert len(learned) < steps[0] <= len(learned) + 10


def read_curves(experiment: str, metric: str) -> dict[str, list[float]]:
    """Read a metric of every run, step by step, off a chart that the product drew."""
    text = (EXPERIMENTS / experiment / "results" / "learning_curve.svg").read_text()
    axis = text.index(f"Y-axis titled '{metric}'")
    ticks = [
        (float(y) - 3, float(value))
        for y, value in re.findall(
            r"translate\(-7,([\d.]+)\)\"[^>]*>([\d.]+)</text>",
            text[axis : text.index("</text></g>", axis) + 9],
        )
    ]
    (low, first), (high, last) = ticks[0], ticks[-1]
    curves: dict[str, list[float]] = {}
    lines = rf'aria-label="step: 1; {metric}: ([\d.]+); run: ([^"]+)"[^>]* d="([^"]+)"'
    for begins, run, path in re.findall(lines, text):
        ys = [float(y) for _, y in re.findall(r"[ML]([\d.]+),([\d.]+)", path)]
        # The thick line of each run is a mean of ten steps; the thin one comes first.
        curves.setdefault(run, [first + (y - low) / (high - low) * (last - first) for y in ys])
        assert curves[run][0] == pytest.approx(float(begins), abs=1e-3)
    return curves


@pytest.mark.parametrize(
    ("experiment", "metric", "steps", "rollouts"),
    [
        ("calculator", "mean reward", 25, 128),
        ("reverse_text", "exact", 60, 256),
        ("reverse_text", "similarity", 60, 256),
        ("tictactoe", "lost", None, 256),
    ],
)
def test_the_experiments_raise_no_alert(
    experiment: str, metric: str, steps: int | None, rollouts: int
) -> None:
    """A run without a number of `steps` ended when it had reached its target."""
    curves = read_curves(experiment, metric)
    assert len(curves) >= 2
    for values in curves.values():
        assert len(values) == steps if steps else len(values) >= 10
        assert all(-0.001 <= value <= 1.001 for value in values)
        assert len({round(value, 6) for one in pairwise(values) for value in one}) > 10
        rewards = [1 - value for value in values] if metric == "lost" else values
        entries = [
            {"step": n, "reward": reward, "rewards/reward/std": math.sqrt(max(0.0, reward * (1 - reward)))}
            for n, reward in enumerate(rewards, start=1)
        ]
        assert alerts_of(entries, rollouts) == []
