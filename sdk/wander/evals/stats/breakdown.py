"""What a report tells beyond the summary: intervals of metrics, strata, faults, lengths, rollouts to read.

One streaming pass, which keeps a few numbers a rollout and the few rollouts that are shown.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import sqrt

from pydantic import Field

from wander.evals.stats.bootstrap import ratio_interval
from wander.evals.stats.comparison import detectable_difference
from wander.evals.stats.intervals import is_rounding, standard_error
from wander.evals.stats.summary import RunningSummary, histogram, is_number
from wander.types import Record, Rollout
from wander.wire import Histogram, RunManifest, RunSummary

SHOWN = 3
"""Rollouts that are kept of each end."""
_MESSAGE = 300
"""Characters of a failure's message that tell kinds of failures apart."""


class MetricInterval(Record):
    """95 % interval of a metric's mean, by resampling examples; None for a single example."""

    low: float | None
    high: float | None


class StratumScore(Record):
    """Mean reward of one stratum's examples, with its interval as a run of these alone has it."""

    stratum: int | None
    examples: int
    mean: float | None
    low: float | None
    high: float | None


class FailureCount(Record):
    """How often rollouts failed in one way."""

    boundary: str
    type: str
    message: str
    count: int


class Breakdown(Record):
    """One run in detail."""

    summary: RunSummary
    metrics: dict[str, MetricInterval] = Field(default_factory=dict)
    detectable: float | None = None
    """Difference in mean reward that another run of this size, on other examples, shows with a power of 80 %.

    Runs of the same examples are compared in pairs, which finds far smaller ones.
    """
    strata: list[StratumScore] = Field(default_factory=list)
    """None where all examples are of one."""
    failures: list[FailureCount] = Field(default_factory=list)
    """The commonest first."""
    tokens: Histogram | None = None
    """Completion tokens a scored rollout."""
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
    """Return a run in detail, with `shown` rollouts of either end of the rewards."""
    tally = _Tally(manifest, pass_threshold, shown)
    for rollout in rollouts:
        tally.add(rollout)
    return tally.breakdown()


class _Tally:
    def __init__(self, manifest: RunManifest, pass_threshold: float | None, shown: int) -> None:
        self._expected = manifest.expected_rollouts
        self._running = RunningSummary(pass_threshold)
        self._stratum_of = dict(zip(manifest.example_ids, manifest.strata, strict=False))
        self._strata: dict[int | None, RunningSummary] = defaultdict(RunningSummary)
        self._metrics: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
        self._rewards: dict[str, tuple[float, int]] = {}
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._tokens, self._turns, self._seconds = array("d"), array("d"), array("d")
        self._best, self._worst = _Ends(shown, 1), _Ends(shown, -1)

    def add(self, rollout: Rollout) -> None:
        scored = self._running.scored
        self._running.add(rollout)
        if self._stratum_of:
            self._strata[self._stratum_of.get(rollout.example_id)].add(rollout)
        if failure := rollout.failure:
            self._failures[failure.boundary, failure.type, failure.message[:_MESSAGE]] += 1
        elif self._running.scored > scored and rollout.reward is not None:
            self._add_scored(rollout, rollout.reward)

    def _add_scored(self, rollout: Rollout, reward: float) -> None:
        total, count = self._rewards.get(rollout.example_id, (0.0, 0))
        self._rewards[rollout.example_id] = (total + reward, count + 1)
        for name, value in rollout.metrics.items():
            if is_number(value):
                held, times = self._metrics[name].get(rollout.example_id, (0.0, 0.0))
                self._metrics[name][rollout.example_id] = (held + value, times + 1)
        self._tokens.append(rollout.usage.completion_tokens)
        self._turns.append(len(rollout.turns))
        self._seconds.append(rollout.seconds)
        self._best.offer(reward, rollout)
        self._worst.offer(reward, rollout)

    def breakdown(self) -> Breakdown:
        summary = self._running.summary(expected=self._expected)
        worst = list(self._worst)
        seen = {rollout.key for rollout in worst}
        return Breakdown(
            summary=summary,
            metrics={name: _metric(self._metrics[name]) for name in summary.metrics},
            detectable=self._detectable(),
            strata=[_stratum(name, self._strata[name]) for name in sorted(self._strata, key=_none_last)]
            if len(self._strata) > 1
            else [],
            failures=[
                FailureCount(boundary=boundary, type=kind, message=message, count=count)
                for (boundary, kind, message), count in self._failures.most_common()
            ],
            tokens=histogram(self._tokens) if any(self._tokens) else None,
            turns=histogram(self._turns) if any(self._turns) else None,
            seconds=histogram(self._seconds) if any(self._seconds) else None,
            best=[rollout for rollout in self._best if rollout.key not in seen],
            worst=worst,
        )

    def _detectable(self) -> float | None:
        means = [total / count for total, count in self._rewards.values()]
        if len(means) < 2:
            return None
        mean = sum(means) / len(means)
        error = standard_error(means, mean)
        return (
            None if is_rounding(error, mean) else detectable_difference(sqrt(2) * error, 2 * len(means) - 2)
        )


class _Ends:
    """The rollouts of the highest (sign 1) or lowest (-1) rewards, of equal ones the first."""

    def __init__(self, most: int, sign: int) -> None:
        self._most = most
        self._sign = sign
        self._heap: list[tuple[float, int, Rollout]] = []
        self._offered = 0

    def offer(self, reward: float, rollout: Rollout) -> None:
        self._offered += 1
        entry = (self._sign * reward, -self._offered, rollout)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif self._most and entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def __iter__(self) -> Iterator[Rollout]:
        return (rollout for _, _, rollout in sorted(self._heap, key=lambda one: one[:2], reverse=True))


def _metric(by_example: dict[str, tuple[float, float]]) -> MetricInterval:
    low, high = ratio_interval(list(by_example.values()))
    return MetricInterval(low=low, high=high)


def _stratum(stratum: int | None, running: RunningSummary) -> StratumScore:
    summary = running.summary(expected=running.rollouts)
    return StratumScore(
        stratum=stratum,
        examples=summary.examples,
        mean=summary.reward_mean,
        low=summary.reward_low,
        high=summary.reward_high,
    )


def _none_last(stratum: int | None) -> tuple[bool, int]:
    return stratum is None, stratum or 0
