"""Compare two runs of one task set, example by example.

Two means with intervals that overlap may still differ clearly, since both runs met the same examples: the
difference of each example's means has a far smaller spread than the means themselves. So the comparison is
paired: the 95 % interval and the two-sided p-value are those of Student's t over the examples' differences
(Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640, section 4).

Where every example differs by the same amount there is no spread to estimate from, and a handful of equal
differences is no certainty. The p-value is then that of the sign test, `2 * 0.5^K`, and the interval allows
for examples that stayed unseen among K and differ as much the other way; both call six equal differences
clear and five within chance. Rewards are taken to lie between 0 and 1, or the least and greatest seen.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import Field

from wander.errors import RunError
from wander.evals.stats import student_t
from wander.evals.stats.intervals import is_rounding, mean_interval, standard_error
from wander.evals.store.manifest import differences_in_words, find_differing_pins
from wander.types import Record, Rollout, canonical_json
from wander.wire import RunManifest

POWER = 0.8
"""Chance of finding a difference of the detectable size."""
_FREE = ("model.",)
"""What two runs may differ in and still answer one question: who does better."""


class ExampleDifference(Record):
    """One example's mean rewards in both runs."""

    example_id: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """How much better the second run did; 0 if a float cannot hold the difference with all its digits."""
        difference = self.after - self.before
        return difference if abs(difference) >= sys.float_info.min else 0.0


class Comparison(Record):
    """How a second run differs from a first one on the examples that both scored."""

    before: float
    """Mean reward of the first run over the shared examples."""
    after: float
    difference: float
    low: float | None
    high: float | None
    """95 % interval of the difference; None for a single example."""
    p_value: float | None
    """Two-sided, of no difference; None for a single example."""
    detectable: float | None
    """The smallest true difference that so many examples show with a power of 80 %; None without spread."""
    examples: int
    """Examples that both runs scored."""
    unshared: int
    """Examples that only one run scored, or that ask something else in the other one."""
    wins: int
    """Examples on which the second run did better."""
    losses: int
    ties: int
    differing: list[str] = Field(default_factory=list)
    """What the runs do not share beside the model, by dotted names of the manifest."""
    by_example: list[ExampleDifference] = Field(default_factory=list, repr=False)
    """Sorted: the largest loss first."""

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def compare_runs(
    one: RunManifest, before: Iterable[Rollout], other: RunManifest, after: Iterable[Rollout]
) -> Comparison:
    """Compare two runs by the examples that both scored; raises `RunError` when they share none."""
    return compare_scores(one, group_scores(before), other, group_scores(after))


def compare_scores(
    one: RunManifest,
    first: Mapping[str, ScoredExample],
    other: RunManifest,
    second: Mapping[str, ScoredExample],
) -> Comparison:
    """Compare two runs by what `group_scores` found in them; raises `RunError` when they share no example."""
    if (one.environment.owner, one.environment.name) != (other.environment.owner, other.environment.name):
        raise RunError(
            f"the runs are of two environments, `{one.environment.name}` and `{other.environment.name}`",
            hint="compare runs of one environment",
        )
    shared = [name for name in one.example_ids if name in first and name in second]
    shared = [name for name in shared if first[name].task == second[name].task]
    pins = [name for name in find_differing_pins(one, other) if not name.startswith(_FREE)]
    if not shared:
        why = f": they differ in {differences_in_words(pins)}" if pins else ""
        raise RunError(
            f"the runs share no scored example{why}",
            hint="compare runs with the same arguments, split and seed",
        )
    pairs = [
        ExampleDifference(example_id=name, before=first[name].mean, after=second[name].mean)
        for name in shared
    ]
    differences = [pair.difference for pair in pairs]
    count = len(shared)
    mean = sum(differences) / count
    rewards = [*(pair.before for pair in pairs), *(pair.after for pair in pairs)]
    low = high = p_value = detectable = None
    if count > 1 and is_rounding(error := standard_error(differences, mean), mean):
        p_value = 1.0 if mean == 0 else 2 * 0.5**count
        widest = max(1.0, *rewards) - min(0.0, *rewards)
        away = 2 * abs(mean) or widest
        low, high = mean_interval(differences, (max(-widest, mean - away), min(widest, mean + away)))
    elif count > 1:
        half = student_t.quantile(0.975, count - 1) * error
        low, high = mean - half, mean + half
        p_value = 2 * student_t.cdf(-abs(mean / error), count - 1)
        detectable = detectable_difference(error, count - 1)
    return Comparison(
        before=sum(pair.before for pair in pairs) / count,
        after=sum(pair.after for pair in pairs) / count,
        difference=mean,
        low=low,
        high=high,
        p_value=p_value,
        detectable=detectable,
        examples=count,
        unshared=len(first.keys() | second.keys()) - count,
        wins=sum(value > 0 for value in differences),
        losses=sum(value < 0 for value in differences),
        ties=sum(value == 0 for value in differences),
        differing=pins,
        by_example=sorted(pairs, key=lambda pair: (pair.difference, pair.example_id)),
    )


@dataclass(slots=True)
class ScoredExample:
    """One example's scored rollouts."""

    task: bytes
    """Digest of what it asks: ids alone may stand for other rows under other arguments."""
    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        """Mean reward of them."""
        return self.total / self.count


def group_scores(rollouts: Iterable[Rollout]) -> dict[str, ScoredExample]:
    """Return the scored rollouts of each example, in the order in which examples come first."""
    found: dict[str, ScoredExample] = {}
    for rollout in rollouts:
        if rollout.failure is None and rollout.reward is not None:
            one = found.get(rollout.example_id)
            if one is None:
                asked = canonical_json([rollout.seed, rollout.prompt, rollout.answer])
                one = found[rollout.example_id] = ScoredExample(hashlib.sha256(asked.encode()).digest())
            one.total += rollout.reward
            one.count += 1
    return found


def detectable_difference(error: float, df: float) -> float:
    """Return the difference that a two-sided t test at 5 % finds with a power of 80 %.

    `error` is the standard error of the difference. The usual approximation: the sum of both quantiles times
    it (Miller 2024, section 5).
    """
    return (student_t.quantile(0.975, df) + student_t.quantile(POWER, df)) * error
