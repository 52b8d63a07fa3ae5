"""What a report holds: runs with their breakdowns, and how they differ from the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pydantic import Field

from wander.errors import RunError
from wander.evals.stats.breakdown import SHOWN, Breakdown, break_down
from wander.evals.stats.comparison import Comparison, compare_runs
from wander.types import Record, Rollout
from wander.wire import RunManifest


class RecordedRun(Protocol):
    """A run to report on, wherever it lies."""

    manifest: RunManifest

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every rollout; may be called again."""
        ...


class ReportedRun(Record):
    """One run of a report."""

    label: str
    """Model of the run, with its environment and the end of its id if these tell runs apart."""
    manifest: RunManifest
    breakdown: Breakdown


class Contrast(Record):
    """How a run differs from the report's first one of the same environment."""

    label: str
    base: str
    """Label of the run that it is compared with."""
    comparison: Comparison | None = None
    refusal: str = ""
    """Why they cannot be compared, where they cannot."""


class RunReport(Record):
    """One run, or several side by side and each compared with the first of its environment."""

    runs: list[ReportedRun]
    contrasts: list[Contrast] = Field(default_factory=list)


def report_of(
    runs: Sequence[RecordedRun], *, pass_threshold: float | None = None, shown: int = SHOWN
) -> RunReport:
    """Return the report of one or more runs; every rollout is read once, with several runs twice."""
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
            breakdown=break_down(run.manifest, run.rollouts(), pass_threshold=pass_threshold, shown=shown),
        )
        for label, run in zip(labels, runs, strict=True)
    ]
    contrasts = []
    for number in range(1, len(runs)):
        base = played.index(played[number])
        if base == number:  # the first of its environment, with which the others of it are compared
            if played.count(played[number]) > 1:
                continue
            base = 0
        first, run = runs[base], runs[number]
        contrast = Contrast(label=labels[number], base=labels[base])
        try:
            found = compare_runs(first.manifest, first.rollouts(), run.manifest, run.rollouts())
            contrasts.append(contrast.model_copy(update={"comparison": found}))
        except RunError as error:
            contrasts.append(contrast.model_copy(update={"refusal": str(error)}))
    return RunReport(runs=reported, contrasts=contrasts)
