"""Computes the aggregates of a run in one streaming pass over its rollouts.

How the numbers are computed:

- A rollout is *scored* if it has no failure and its reward is a number (not NaN, not infinite, and not so
  large that its square overflows). Failed rollouts are counted separately, by the boundary that failed, and
  do not enter any mean: an endpoint that was down is not a low score.
- `reward_mean` is the mean over examples of each example's mean over its scored rollouts. An example with
  failed rollouts therefore weighs as much as the others.
- The 95% interval is clustered by example, because rollouts of one example are not independent: the sample
  consists of the K example means.
- If every reward is 0 or 1, the interval is Wilson's, which stays inside [0, 1] and does not collapse when
  all rollouts agree. Its sample size is the effective one: `p (1 - p) / se^2` with the clustered standard
  error, scaled by `(z / t)^2` because it was estimated from few examples. It is at least K and at most the
  number of rollouts.
- Otherwise the interval is Gaffke's (`wander.evals.stats.intervals.mean_interval`), which only requires that
  rewards lie within the environment's bounds. These are declared, or follow from the weights and functions
  between 0 and 1. Student's t interval would miss the mean of skewed rewards up to four times as often as it
  claims.
- With a single example there is no variance between examples, so the interval covers only that example's
  rollouts. The interval of a single graded rollout is None.
- A metric has the bounds that its function declares, or 0 and 1 if it counts towards the reward. Other
  metrics have no bounds. Equal values without bounds have no interval, because they give no information about
  unseen examples.
- `pass_rates` exist if every reward is 0 or 1, or if a threshold defines what passes
  (`wander.evals.stats.pass_at_k`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from math import floor, sqrt
from operator import add, attrgetter
from typing import Self

from wander.evals.stats.intervals import Interval, clustered_wilson_interval, mean_interval
from wander.evals.stats.pass_at_k import pass_rates
from wander.evals.store.examples import RolloutOrder
from wander.types import EnvironmentInfo, Rollout, Usage
from wander.wire import Histogram, MetricSummary, RunManifest, RunSummary

_BINS = 20
_LARGEST = 1e150
"""Magnitude above which squares and sums would overflow."""
_counts_of = attrgetter(*Usage.model_fields)
"""Returns the values of a usage. Adding these is three times as fast as adding objects."""


def summarize(
    rollouts: Iterable[Rollout],
    *,
    expected: int,
    info: EnvironmentInfo | None = None,
    pass_threshold: float | None = None,
) -> RunSummary:
    """Return the aggregates of a run that should contain `expected` rollouts.

    `info` describes the environment, including the bounds of rewards and metrics. A rollout passes if its
    reward is at least `pass_threshold`. Without a threshold, only runs whose rewards are all 0 or 1 have pass
    rates. Keeps one float per rollout and three numbers per example in memory, but no messages.
    """
    running = RunningSummary(info, pass_threshold)
    return running.add_all(rollouts).summary(expected=expected)


def summarize_run(manifest: RunManifest, rollouts: Iterable[Rollout]) -> RunSummary:
    """Return the aggregates of a run, with the settings of its manifest."""
    running = RunningSummary(manifest.environment.info, example_ids=manifest.example_ids)
    return running.add_all(rollouts).summary(expected=manifest.expected_rollouts)


class RunningSummary:
    """Computes the aggregates while rollouts arrive.

    Examples whose ids are known in advance and are consecutive numbers take only a few bytes each.
    """

    def __init__(
        self,
        info: EnvironmentInfo | None = None,
        pass_threshold: float | None = None,
        example_ids: Sequence[str] = (),
    ) -> None:
        self._reward_bounds = (info and info.reward_range) or (0.0, 1.0)
        self._metric_bounds = (
            {function.name: function.range for function in info.reward_functions} if info else {}
        )
        self._pass_threshold = pass_threshold
        self.rollouts = 0
        self.failed = 0
        self._usage = _counts_of(Usage())
        self._failures: Counter[str] = Counter()
        self._stop_reasons: Counter[str] = Counter()
        self._rewards = array("d")
        self._order = RolloutOrder(example_ids, 1)
        self._number_at = array("i", [-1]) * len(self._order)
        self._others: dict[str, int] = {}
        """Numbers of seen examples that are not in `example_ids`. Numbers follow the order of appearance."""
        self._totals, self._counts, self._passed = array("d"), array("I"), array("I")
        """Sum of rewards, number of scored rollouts and number of passed rollouts of each seen example."""
        self._numbers = array("i")
        """Numbers of the seen examples in the order of their first score, or -1 before that."""
        self._scored_examples = 0
        self._binary = True
        self._metrics: dict[str, ClusteredMean] = {}
        self._reward_moments = Moments()
        self._truncated = self._refused = self._filtered = 0
        self._turns = 0
        self._seconds = 0.0

    @property
    def scored(self) -> int:
        """Number of scored rollouts, which count towards the mean."""
        return len(self._rewards)

    def example_means(self) -> array[float]:
        """Return the mean reward of each example with at least one scored rollout."""
        pairs = zip(self._totals, self._counts, strict=True)
        return array("d", (total / count for total, count in pairs if count))

    def add_all(self, rollouts: Iterable[Rollout]) -> Self:
        """Add rollouts."""
        for rollout in rollouts:
            self.add(rollout)
        return self

    def add(self, rollout: Rollout) -> None:
        """Add a rollout."""
        self.rollouts += 1
        self._usage = tuple(map(add, self._usage, _counts_of(rollout.usage)))
        self._truncated += rollout.truncated
        self._refused += rollout.refused
        self._filtered += rollout.filtered
        example = self._number(rollout.example_id)
        reward = rollout.reward
        if rollout.failure is not None:
            self._count_failure(rollout.failure.boundary)
        elif reward is None or not is_number(reward):
            # Neither a score nor a failure: the rubric did not return a usable number.
            self._count_failure("rubric")
        else:
            self._add_scored(rollout, reward, example)

    def _sum_usage(self) -> Usage:
        counts = dict(zip(Usage.model_fields, self._usage, strict=True))
        return Usage(**{**counts, "estimated": bool(counts["estimated"])})

    def summary(self, *, expected: int) -> RunSummary:
        """Return the aggregates of the rollouts added so far."""
        scored, means = self.scored, self.example_means()
        low, high = self._interval(means)
        threshold = self._pass_threshold
        if threshold is None and self._binary and scored:
            threshold = 1.0
        passes = zip(self._counts, self._passed, strict=True)
        return RunSummary(
            rollouts=self.rollouts,
            expected=expected,
            failed=self.failed,
            failures=dict(sorted(self._failures.items())),
            examples=len(self._numbers),
            reward_mean=sum(means) / len(means) if means else None,
            reward_low=low,
            reward_high=high,
            reward_std=self._reward_moments.std if scored else None,
            metrics={
                name: self._metrics[name].summary(self._metric_bounds.get(name))
                for name in sorted(self._metrics)
            },
            histogram=histogram(self._rewards) if scored else None,
            stop_reasons=dict(sorted(self._stop_reasons.items())),
            truncated=self._truncated,
            refused=self._refused,
            filtered=self._filtered,
            turns_mean=self._turns / scored if scored else None,
            usage=self._sum_usage(),
            seconds_mean=self._seconds / scored if scored else None,
            pass_threshold=threshold,
            # Single rollouts, possibly a million, lack pass rates.
            pass_rates=[] if threshold is None or max(self._counts, default=0) < 2 else pass_rates(passes),
        )

    def _number(self, example_id: str) -> int:
        """Return the number of an example. A new example gets the next number."""
        place, new = self._order.find((example_id, 0)), len(self._numbers)
        if place is None:
            number = self._others.setdefault(example_id, new)
        elif (number := self._number_at[place]) < 0:
            number = self._number_at[place] = new
        if number == new:
            self._totals.append(0.0)
            self._counts.append(0)
            self._passed.append(0)
            self._numbers.append(-1)
        return number

    def _count_failure(self, boundary: str) -> None:
        self.failed += 1
        self._failures[boundary] += 1

    def _add_scored(self, rollout: Rollout, reward: float, example: int) -> None:
        total, count = self._totals[example], self._counts[example]
        if not count:
            self._numbers[example] = self._scored_examples
            self._scored_examples += 1
        self._passed[example] += reward >= (1.0 if self._pass_threshold is None else self._pass_threshold)
        self._totals[example], self._counts[example] = total + reward, count + 1
        self._rewards.append(reward)
        self._reward_moments.add(reward)
        self._binary = self._binary and reward in (0.0, 1.0)
        self._turns += len(rollout.turns)
        self._seconds += rollout.seconds
        self._stop_reasons[rollout.stop_reason or "unknown"] += 1
        number = self._numbers[example]
        for name, value in rollout.metrics.items():
            if is_number(value):
                self._metrics.setdefault(name, ClusteredMean()).add(value, number)

    def _interval(self, means: array[float]) -> Interval | tuple[None, None]:
        # If all rewards are 0, or all are 1, and the bounds differ, unseen rewards may lie beyond them.
        if means and self._binary and (self._reward_bounds == (0.0, 1.0) or len(set(self._rewards)) == 2):
            return clustered_wilson_interval(means, self.scored)
        values = self._rewards if len(means) == 1 else means
        return _interval_within(values, self._reward_bounds)


class Moments:
    """Mean and standard deviation of a stream (deviations with Welford's update)."""

    __slots__ = ("_deviations", "_running_mean", "_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._total = 0.0
        self._running_mean = 0.0
        self._deviations = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self._total += value
        delta = value - self._running_mean
        self._running_mean += delta / self.count
        self._deviations += delta * (value - self._running_mean)

    @property
    def mean(self) -> float:
        """Arithmetic mean, or 0 without values."""
        return self._total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Sample standard deviation (n - 1), or 0 for fewer than two values."""
        return sqrt(self._deviations / (self.count - 1)) if self.count > 1 else 0.0


class ClusteredMean:
    """Mean of a metric over rollouts, with an interval clustered by example.

    Keeps two numbers per example.
    """

    __slots__ = ("_counts", "_first", "_moments", "_seen", "_totals")

    def __init__(self) -> None:
        self._moments = Moments()
        self._totals = array("d")
        self._counts = array("I")
        self._first = array("d")
        """Values of example 0. The interval of a single example uses its rollouts."""
        self._seen: set[float] = set()
        """Distinct values, at most three of them."""

    def add(self, value: float, example: int) -> None:
        """Add a rollout's value. Examples are numbered from 0."""
        if (missing := example + 1 - len(self._totals)) > 0:
            self._totals.extend([0.0] * missing)
            self._counts.extend([0] * missing)
        self._moments.add(value)
        self._totals[example] += value
        self._counts[example] += 1
        if example == 0:
            self._first.append(value)
        if len(self._seen) < 3:
            self._seen.add(value)

    def summary(self, bounds: Interval | None = None) -> MetricSummary:
        """Return the metric's entry in a summary. `bounds` are the bounds of the values, if known."""
        moments = self._moments
        low, high = self._interval(bounds)
        return MetricSummary(mean=moments.mean, std=moments.std, count=moments.count, low=low, high=high)

    def _interval(self, bounds: Interval | None) -> Interval | tuple[None, None]:
        """Return the interval of the mean over rollouts.

        If all examples have the same number of values, this is the interval of the reward. Otherwise each
        example is weighted by its number of values (the linearized ratio estimator; Cochran 1977, "Sampling
        Techniques", section 6.3).
        """
        mean, values = self._moments.mean, self._moments.count
        examples = len(self._counts) - self._counts.count(0)
        size = values / examples
        pairs = zip(self._totals, self._counts, strict=True)
        weighed = array("d", (mean + (total - mean * count) / size for total, count in pairs if count))
        # Zeros may be shares or counts. Only the bounds, or a 1 among the values, show that they are shares.
        if self._seen == {0.0, 1.0} or (bounds == (0.0, 1.0) and self._seen <= {0.0, 1.0}):
            return clustered_wilson_interval(weighed, values)
        return _interval_within(self._first if examples == 1 else weighed, bounds)


def _interval_within(values: Sequence[float], bounds: Interval | None) -> Interval | tuple[None, None]:
    """Return `mean_interval`. For equal values outside the bounds, assume that others reach as far as 0."""
    interval = mean_interval(values, bounds)
    if interval != (None, None) or bounds is None or len(values) < 2:
        return interval
    return mean_interval(values, (min(0.0, 2 * values[0]), max(0.0, 2 * values[0])))


def histogram(values: Sequence[float]) -> Histogram:
    """Count values in 20 bins of equal width from least to greatest. Equal values give one bin of width 0."""
    low, high = min(values), max(values)
    width = (high - low) / _BINS
    if width <= 0:
        return Histogram(edges=[low, high], counts=[len(values)])
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, floor((value - low) / width))] += 1
    edges = [low + i * width for i in range(_BINS)]
    return Histogram(edges=[*edges, high], counts=counts)


def is_number(value: float) -> bool:
    """Return whether a value can be averaged: it and its square are finite."""
    return abs(value) <= _LARGEST
