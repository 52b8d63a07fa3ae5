"""Collects the content of a report: runs with their breakdowns, and their differences from the first run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pydantic import Field

from wander.errors import RunError
from wander.evals.stats.breakdown import Breakdown, break_down
from wander.evals.stats.comparison import Comparison, compare_runs
from wander.types import Record, Rollout
from wander.wire import RunManifest


class RecordedRun(Protocol):
    """A run to report on, from any storage."""

    manifest: RunManifest

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every rollout. May be called repeatedly."""
        ...


class ReportedRun(Record):
    """One run of a report."""

    label: str
    """Name of the run's model, with the environment and the end of the run id if needed to tell runs
    apart."""
    manifest: RunManifest
    breakdown: Breakdown


class Contrast(Record):
    """Difference between a run and the report's first run of the same environment."""

    label: str
    base: str
    """Label of the run used as the baseline."""
    comparison: Comparison | None = None
    refusal: str = ""
    """Reason why the runs cannot be compared, or empty."""


class RunReport(Record):
    """Report on one run, or on several runs that are compared with the first one of their environment."""

    runs: list[ReportedRun]
    contrasts: list[Contrast] = Field(default_factory=list)


def report_of(runs: Sequence[RecordedRun], *, pass_threshold: float | None = None) -> RunReport:
    """Return the report of one or more runs.

    Each rollout is read once, or twice if there are several runs.
    """
    played = [run.manifest.environment.full_name for run in runs]
    names = [run.manifest.model.name for run in runs]
    if len(set(played)) > 1:
        names = [f"{model} on {environment}" for model, environment in zip(names, played, strict=True)]
    labels = [
        name if names.count(name) == 1 else f"{name} ({run.manifest.run_id[-6:]})"
        for name, run in zip(names, runs, strict=True)
    ]
    reported = [
        ReportedRun(
            label=label,
            manifest=run.manifest,
            breakdown=break_down(run.manifest, run.rollouts(), pass_threshold=pass_threshold),
        )
        for label, run in zip(labels, runs, strict=True)
    ]
    contrasts = []
    for number in range(1, len(runs)):
        base = played.index(played[number])
        if base == number:  # the baseline of its environment
            if played.count(played[number]) > 1:
                continue
            base = 0
        first, run = runs[base], runs[number]
        contrast = Contrast(label=labels[number], base=labels[base])
        try:
            comparison = compare_runs(first.manifest, first.rollouts(), run.manifest, run.rollouts())
            contrasts.append(contrast.model_copy(update={"comparison": comparison}))
        except RunError as error:
            contrasts.append(contrast.model_copy(update={"refusal": str(error)}))
    return RunReport(runs=reported, contrasts=contrasts)
