"""Gathers the data for the page that compares training runs: their curves, settings and pinned inputs.

The phases of a training are separate runs, each continuing with the weights of the previous one. The page can
join their curves end to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

from markupsafe import Markup
from sqlalchemy.orm import Session
from wander.types import canonical_json
from wander.wire import RunDetail

from wander_hub.runs import repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.storage import Storage
from wander_hub.web import charts
from wander_hub.web.charts import Mark
from wander_hub.web.run import training

_MOST_PHASES = 6
_MOST_ROWS = 200
_DEEPEST = 8
_OF_ONE_RUN = {
    "run_id",
    "started_at",
    "ended_at",
    "endpoints",
    "spending",
    "example_ids",
    "strata",
    "training",
}
"""Fields that always differ between runs, or that a digest already covers."""
Differences = dict[str, list[str | None]]
"""Values that differ between runs, by dotted name: one per run, None if the run does not have it."""


@dataclass(frozen=True)
class DrawnRun:
    """One of the runs."""

    run: RunDetail
    steps: int
    begins: float
    """Step of the chart where this run begins."""


@dataclass(frozen=True)
class Overlay:
    """One metric of all runs."""

    name: str
    chart: Markup
    ends: list[tuple[float, float] | None]
    """First and last value of each run."""


@dataclass(frozen=True)
class OverlayView:
    """Data for the page of two to six training runs."""

    runs: list[DrawnRun]
    joined: bool
    curves: list[Overlay]
    evaluations: Markup
    settings: Differences
    pins: Differences

    @property
    def folded(self) -> dict[str, list[Overlay]]:
        """All curves but the first, by heading."""
        return training.group_curves(self.curves[1:])

    @property
    def address(self) -> str:
        """The query that names the runs."""
        return "&".join(f"run={one.run.run_id}" for one in self.runs)


def overlay(storage: Storage, base_url: str, found: Sequence[Run], *, joined: bool) -> OverlayView:
    """Overlay training runs by step, or join them end to end in their order."""
    details = [runs.detail_of(one, base_url) for one in found]
    metrics = [training.read_series(storage, one) for one in details]
    steps = [one.steps for one in metrics]
    begins = [0, *accumulate(steps)][: len(steps)] if joined else [0] * len(steps)
    series = [
        {name: tuple((x + begin, y) for x, y in points) for name, points in one.points.items()}
        for one, begin in zip(metrics, begins, strict=True)
    ]
    marks = [
        Mark(one.step + begin, one.text, one.css)
        for detail, begin in zip(details, begins, strict=True)
        for one in training.changes_of(detail.manifest)
    ]
    if joined:
        marks += [
            Mark(begin, f"{detail.manifest.model.name} continues", "phase-mark")
            for detail, begin in zip(details[1:], begins[1:], strict=True)
        ]
    manifests = [
        one.manifest.model_dump(mode="json", exclude=_OF_ONE_RUN, exclude_none=True) for one in details
    ]
    return OverlayView(
        runs=[DrawnRun(*one) for one in zip(details, steps, begins, strict=True)],
        joined=joined,
        curves=list(_overlays(series, [one.ends for one in metrics], marks)),
        evaluations=_evaluations(storage, details, begins),
        settings=_differences([one.manifest.training or {} for one in details]),
        pins=_differences(manifests),
    )


def phases_of(session: Session, run: Run) -> list[Run]:
    """Return the training runs that a run continued, from the first to the run itself."""
    chain = [run]
    while chain[0].weights_sha256 is not None and len(chain) < _MOST_PHASES:
        makers = repository.find_makers(session, chain[0].weights_sha256, _MOST_PHASES)
        known = {one.run_id for one in chain}
        before = next((maker for maker, _ in makers if maker.run_id not in known), None)
        if before is None:
            break
        chain.insert(0, before)
    return chain


def _overlays(
    series: Sequence[Mapping[str, tuple[tuple[float, float], ...]]],
    ends: Sequence[Mapping[str, tuple[float, float]]],
    marks: Sequence[Mark],
) -> Iterator[Overlay]:
    names = list(dict.fromkeys(name for one in series for name in one))[: training.MOST_CURVES]
    for place, name in enumerate(names):
        points = tuple(one.get(name, ()) for one in series)
        chart = charts.curves(name, points, tuple(marks), large=not place)
        yield Overlay(name, chart, [one.get(name) for one in ends])


def _evaluations(storage: Storage, details: Sequence[RunDetail], begins: Sequence[float]) -> Markup:
    cells: dict[str, list[tuple[int, float, float, float]]] = {}
    for number, (detail, begin) in enumerate(zip(details, begins, strict=True), 1):
        for one in training.read_evaluations(storage, detail):
            points = cells.setdefault(f"{number}: {one.cell}", [])
            points.append((int(one.step + begin), one.reward, one.low, one.high))
    shown = dict(list(cells.items())[: training.MOST_CELLS])
    return charts.evaluations(shown) if shown else Markup("")


def _differences(values: Sequence[Mapping[str, Any]]) -> Differences:
    leaves = [dict(_flatten(one)) for one in values]
    rows = {name: [one.get(name) for one in leaves] for name in sorted({*chain(*leaves)})}
    return dict(islice(((name, row) for name, row in rows.items() if len(set(row)) > 1), _MOST_ROWS))


def _flatten(value: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the values of nested dictionaries with their dotted names."""
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for name, inner in value.items():
            yield from _flatten(inner, f"{place}.{name}" if place else str(name), depth + 1)
    elif value is not None:
        yield place, value if isinstance(value, str) else canonical_json(value)
