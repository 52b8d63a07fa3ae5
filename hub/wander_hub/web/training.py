"""Reads the metric curves of a training run from the `metrics.jsonl` that came with it."""

from __future__ import annotations

import json
import math
from typing import Any

from wander_hub.web import charts
from wander_hub.web.schemas import Curve

METRICS_FILE = "metrics.jsonl"
_MOST_CURVES = 24
_TABLE_ROWS = 12
_HUGE = 1e300
_NOT_CURVES = {"step", "steps", "epoch"}
_FIRST = (
    "reward",
    "reward_std",
    "groups_without_variance",
    "entropy",
    "tokens",
    "truncated",
    "loss",
    "kl",
    "frac_reward_zero_std",
    "grad_norm",
    "learning_rate",
)
"""Is it learning, is the signal alive, is the policy sane: in this order, the rest by name."""


def curves(text: bytes) -> list[Curve]:
    """Return a chart for each numeric metric; lines that are not JSON objects are passed over."""
    series: dict[str, list[tuple[float, float]]] = {}
    for number, line in enumerate(text.splitlines()):
        entry = _entry(line)
        step = entry.get("step", number)
        if not _is_number(step):
            continue
        for name, value in entry.items():
            if name not in _NOT_CURVES and _is_number(value):
                series.setdefault(name, []).append((float(step), float(value)))
    names = sorted(series, key=lambda name: (_place(name), name))[:_MOST_CURVES]
    drawn = [_curve(name, series[name]) for name in names]
    return [one for one in drawn if one is not None]


def _curve(name: str, points: list[tuple[float, float]]) -> Curve | None:
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite or all(value == 0 for _, value in finite):
        return None
    finite.sort(key=lambda point: point[0])
    return Curve(
        name=name,
        chart=charts.curve(name, finite),
        first=finite[0][1],
        last=finite[-1][1],
        points=len(finite),
        bucketed=charts.is_bucketed(finite),
        table=_spread(finite),
    )


def _spread(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the first point, the last, and others evenly between them: what a table can show."""
    last = len(points) - 1
    places = sorted({round(last * part / _TABLE_ROWS) for part in range(_TABLE_ROWS + 1)})
    return [points[place] for place in places]


def _place(name: str) -> int:
    if name.startswith("rewards/"):
        return 0  # by name these come right after the reward itself
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def entries(text: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of lines; other lines are passed over."""
    return [entry for line in text.splitlines() if (entry := _entry(line))]


def _entry(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE
