"""Computes the details of a report beyond the summary: strata and failures, in one streaming pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import sqrt

from pydantic import Field

from wander.evals.stats.comparison import detectable_difference
from wander.evals.stats.intervals import is_rounding, standard_error
from wander.evals.stats.summary import RunningSummary
from wander.types import Record, Rollout
from wander.wire import RunManifest, RunSummary

_MESSAGE = 300
"""Characters of a failure's message that distinguish kinds of failures."""


class StratumScore(Record):
    """Mean reward of a stratum's examples, with the interval of a run of only these examples."""

    stratum: int | None
    examples: int
    mean: float | None
    low: float | None
    high: float | None


class FailureCount(Record):
    """Number of rollouts that failed in the same way."""

    boundary: str
    type: str
    message: str
    count: int


class Breakdown(Record):
    """Details of one run."""

    summary: RunSummary
    detectable: float | None = None
    """Difference in mean reward that another run of this size, on other examples, detects with 80% power.

    Runs on the same examples are compared in pairs, which detects far smaller differences.
    """
    strata: list[StratumScore] = Field(default_factory=list)
    """Scores by stratum, or empty if all examples belong to one stratum."""
    failures: list[FailureCount] = Field(default_factory=list)
    """Failures by kind, most frequent first."""


def break_down(
    manifest: RunManifest, rollouts: Iterable[Rollout], *, pass_threshold: float | None = None
) -> Breakdown:
    """Return the details of a run."""
    info = manifest.environment.info
    running = RunningSummary(info, pass_threshold, manifest.example_ids)
    stratum_of = dict(zip(manifest.example_ids, manifest.strata, strict=False))
    strata: dict[int | None, RunningSummary] = defaultdict(lambda: RunningSummary(info))
    failures: Counter[tuple[str, str, str]] = Counter()
    for rollout in rollouts:
        running.add(rollout)
        if stratum_of:
            strata[stratum_of.get(rollout.example_id)].add(rollout)
        if failure := rollout.failure:
            failures[failure.boundary, failure.type, failure.message[:_MESSAGE]] += 1
    return Breakdown(
        summary=running.summary(expected=manifest.expected_rollouts),
        detectable=_detectable(running.example_means()),
        strata=_score_strata(strata) if len(strata) > 1 else [],
        failures=[
            FailureCount(boundary=boundary, type=kind, message=message, count=count)
            for (boundary, kind, message), count in failures.most_common()
        ],
    )


def _detectable(means: Sequence[float]) -> float | None:
    if len(means) < 2:
        return None
    mean = sum(means) / len(means)
    error = standard_error(means, mean)
    return None if is_rounding(error, mean) else detectable_difference(sqrt(2) * error, 2 * len(means) - 2)


def _score_strata(strata: dict[int | None, RunningSummary]) -> list[StratumScore]:
    scores = []
    for stratum in sorted(strata, key=lambda number: (number is None, number or 0)):
        summary = strata[stratum].summary(expected=strata[stratum].rollouts)
        low, high = summary.reward_low, summary.reward_high
        scores.append(
            StratumScore(
                stratum=stratum, examples=summary.examples, mean=summary.reward_mean, low=low, high=high
            )
        )
    return scores
