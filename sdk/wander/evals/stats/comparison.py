"""Compares two runs of one task set, example by example.

Two means with overlapping intervals may still differ clearly, because both runs played the same examples. The
difference between each example's means has a much smaller spread than the means themselves. The comparison is
therefore paired: the 95% interval and the two-sided p-value are those of Student's t over the examples'
differences (Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640, section 4).

If every example differs by the same amount, there is no spread to estimate from, and a few equal differences
prove little. In that case the p-value is that of the sign test, `2 * 0.5^K`. The interval allows for unseen
examples that differ by the same amount in the opposite direction. Both treat six equal differences as clear,
and five as chance. Rewards are assumed to lie between 0 and 1, or between the least and greatest reward seen.
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
"""Probability of detecting a difference of the detectable size."""
_FREE = ("model.",)
"""Fields that may differ between compared runs, because the comparison asks which model does better."""


class ExampleDifference(Record):
    """Mean rewards of one example in both runs."""

    example_id: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """Increase from the first run to the second, or 0 if it is too small for a normal float."""
        difference = self.after - self.before
        return difference if abs(difference) >= sys.float_info.min else 0.0


class Comparison(Record):
    """Difference between two runs on the examples that both scored."""

    before: float
    """Mean reward of the first run over the shared examples."""
    after: float
    difference: float
    low: float | None
    high: float | None
    """95% interval of the difference, or None for a single example."""
    p_value: float | None
    """Two-sided p-value of the hypothesis that the runs do not differ. None for a single example."""
    detectable: float | None
    """Smallest true difference that this number of examples detects with a power of 80%. None without
    spread."""
    examples: int
    """Examples that both runs scored."""
    unshared: int
    """Examples that only one run scored, or whose content differs between the runs."""
    wins: int
    """Examples with a better result in the second run."""
    losses: int
    ties: int
    differing: list[str] = Field(default_factory=list)
    """Pins that differ between the runs, except for the model, as dotted names of manifest fields."""
    by_example: list[ExampleDifference] = Field(default_factory=list, repr=False)
    """Differences by example, largest loss first."""

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def compare_runs(
    one: RunManifest, before: Iterable[Rollout], other: RunManifest, after: Iterable[Rollout]
) -> Comparison:
    """Compare two runs on the examples that both scored. Raises `RunError` if they share none."""
    return compare_scores(one, group_scores(before), other, group_scores(after))


def compare_scores(
    one: RunManifest,
    first: Mapping[str, ScoredExample],
    other: RunManifest,
    second: Mapping[str, ScoredExample],
) -> Comparison:
    """Compare two runs by their results of `group_scores`.

    Raises `RunError` if they share no scored example.
    """
    if (one.environment.owner, one.environment.name) != (other.environment.owner, other.environment.name):
        raise RunError(
            f"the runs have different environments, `{one.environment.name}` and `{other.environment.name}`",
            hint="compare runs of the same environment",
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
    """Scored rollouts of one example."""

    task: bytes
    """Digest of the example's content. With other arguments, the same id may name another row."""
    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        """Mean reward of the rollouts."""
        return self.total / self.count


def group_scores(rollouts: Iterable[Rollout]) -> dict[str, ScoredExample]:
    """Return the scored rollouts of each example, in order of first appearance."""
    scores: dict[str, ScoredExample] = {}
    for rollout in rollouts:
        if rollout.failure is None and rollout.reward is not None:
            score = scores.get(rollout.example_id)
            if score is None:
                content = canonical_json([rollout.seed, rollout.prompt, rollout.answer])
                score = scores[rollout.example_id] = ScoredExample(hashlib.sha256(content.encode()).digest())
            score.total += rollout.reward
            score.count += 1
    return scores


def detectable_difference(error: float, df: float) -> float:
    """Return the difference that a two-sided t test at 5% detects with a power of 80%.

    `error` is the standard error of the difference. This is the usual approximation: the sum of both
    quantiles times the standard error (Miller 2024, section 5).
    """
    return (student_t.quantile(0.975, df) + student_t.quantile(POWER, df)) * error
