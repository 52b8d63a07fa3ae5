"""Computes the details of a report beyond the summary: strata, failures, lengths, rollouts to read.

This takes one streaming pass, which keeps a few numbers per rollout and only the rollouts that are shown.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import sqrt
from operator import itemgetter

from pydantic import Field

from wander.evals.stats.comparison import detectable_difference
from wander.evals.stats.intervals import is_rounding, standard_error
from wander.evals.stats.summary import RunningSummary, histogram
from wander.types import Record, Rollout
from wander.wire import Histogram, RunManifest, RunSummary

SHOWN = 3
"""Rollouts shown with the highest rewards, and with the lowest."""
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
    tokens: Histogram | None = None
    """Completion tokens per scored rollout."""
    turns: Histogram | None = None
    seconds: Histogram | None = None
    best: list[Rollout] = Field(default_factory=list)
    worst: list[Rollout] = Field(default_factory=list)


def break_down(
    manifest: RunManifest,
    rollouts: Iterable[Rollout],
    *,
    pass_threshold: float | None = None,
    shown: int = SHOWN,
) -> Breakdown:
    """Return the details of a run, with the `shown` rollouts of highest and of lowest reward."""
    info = manifest.environment.info
    running = RunningSummary(info, pass_threshold, manifest.example_ids)
    stratum_of = dict(zip(manifest.example_ids, manifest.strata, strict=False))
    strata: dict[int | None, RunningSummary] = defaultdict(lambda: RunningSummary(info))
    failures: Counter[tuple[str, str, str]] = Counter()
    tokens, turns, seconds = array("d"), array("d"), array("d")
    # Sorted by reward. Among equal rewards, earlier rollouts come first.
    best: list[tuple[float, int, Rollout]] = []
    worst: list[tuple[float, int, Rollout]] = []
    for rollout in rollouts:
        number = running.scored
        running.add(rollout)
        if stratum_of:
            strata[stratum_of.get(rollout.example_id)].add(rollout)
        if failure := rollout.failure:
            failures[failure.boundary, failure.type, failure.message[:_MESSAGE]] += 1
        reward = rollout.reward
        if running.scored == number or reward is None:
            continue
        tokens.append(rollout.usage.completion_tokens)
        turns.append(len(rollout.turns))
        seconds.append(rollout.seconds)
        for ends, rank in ((best, -reward), (worst, reward)):
            insort(ends, (rank, number, rollout), key=itemgetter(0, 1))
            del ends[shown:]
    summary = running.summary(expected=manifest.expected_rollouts)
    seen = {rollout.key for _, _, rollout in worst}
    return Breakdown(
        summary=summary,
        detectable=_detectable(running.example_means()),
        strata=_score_strata(strata) if len(strata) > 1 else [],
        failures=[
            FailureCount(boundary=boundary, type=kind, message=message, count=count)
            for (boundary, kind, message), count in failures.most_common()
        ],
        tokens=histogram(tokens) if any(tokens) else None,
        turns=histogram(turns) if any(turns) else None,
        seconds=histogram(seconds) if any(seconds) else None,
        best=[rollout for _, _, rollout in best if rollout.key not in seen],
        worst=[rollout for _, _, rollout in worst],
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
