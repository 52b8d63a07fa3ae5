"""Tests whether a run agrees with the run that it repeats.

Two runs whose rollouts are identical, bit for bit, agree even if there are only a few rollouts. Usually the
rollouts differ, because sampling is random and kernels differ. The question is then whether the difference
between the mean rewards is too small to matter. The test is paired by example, as in
`wander.evals.stats.comparison`:

- `agrees`: the 90% interval of the difference lies within the margin. This is the two one-sided test of
  equivalence at 5% (Schuirmann 1987, doi:10.1007/BF01068419): a run that is too small shows no agreement.
- `differs`: the 95% interval of the difference excludes zero, and equivalence is not shown.
- `inconclusive`: neither of the two. `needed` estimates how many examples would be enough to decide.

If all examples differ by the same amount, a share of the unseen examples may still differ by the whole range
(at 5% per side). So a few examples with equal rewards but different rollouts do not show agreement either.

The margin is a share of the range of the reward, which is the sum of the absolute weights of the reward
functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from math import sqrt

from wander.errors import ConfigError
from wander.evals.replay import COMPARED
from wander.evals.stats.comparison import Comparison, compare_runs
from wander.evals.stats.intervals import is_rounding, standard_error
from wander.evals.stats.student_t import quantile
from wander.types import Rollout, canonical_json
from wander.wire import RunManifest
from wander.wire.verification import Agreement, Verdict

UNCHECKED = ("weights_sha256", "chat_template_sha256")
"""Digests of a model that two runs must share. If only one run records its weights, nobody can tell whether
both used the same model."""
MARGIN = 0.1
"""Share of the reward range within which two means count as equal."""


def agreement(
    one: RunManifest,
    before: Iterable[Rollout],
    other: RunManifest,
    after: Iterable[Rollout],
    *,
    margin: float = MARGIN,
) -> Agreement:
    """Test whether a repeated run agrees with the original.

    Raises `RunError` if they share no scored example.
    """
    if not margin > 0:
        raise ConfigError(f"the margin must be positive, not {margin}")
    first: dict[tuple[str, int], bytes] = {}
    second: dict[tuple[str, int], bytes] = {}
    comparison = compare_runs(one, _digesting(before, first), other, _digesting(after, second))
    weights = [abs(function.weight) for function in one.environment.info.reward_functions]
    span = sum(weights) or 1.0
    width = margin * span
    low, high = _interval(comparison, span)
    identical = bool(first) and first == second
    needed = None
    verdict: Verdict = "differs" if comparison.significant else "inconclusive"
    if identical:
        verdict = "agrees"
    elif low is None or high is None or comparison.unshared:
        verdict = "inconclusive"
    elif -width < low and high < width:
        verdict = "agrees"
    if verdict == "inconclusive" and not comparison.unshared:
        needed = _examples_needed(comparison, width, span)
    # Also compare the models. Equal digests of the weights are the strongest evidence.
    same = one.model.weights_sha256 is not None and one.model.weights_sha256 == other.model.weights_sha256
    names = [] if same else ["name", "weights_sha256", "revision"]
    pin_values = [(name, getattr(one.model, name), getattr(other.model, name)) for name in names]
    models = {
        f"model.{name}" for name, left, right in pin_values if None not in (left, right) and left != right
    }
    models |= {f"model.{name}" for name in UNCHECKED if not _is_same_pin(one, other, name)}
    return Agreement(
        run_id=one.run_id,
        rerun_id=other.run_id,
        verdict=verdict,
        before=comparison.before,
        after=comparison.after,
        difference=comparison.difference,
        low=low,
        high=high,
        p_value=comparison.p_value,
        margin=width,
        examples=comparison.examples,
        unshared=comparison.unshared,
        identical=len(first) if identical else 0,
        needed=needed,
        differing=sorted({*comparison.differing, *models}),
    )


def _digesting(rollouts: Iterable[Rollout], digests: dict[tuple[str, int], bytes]) -> Iterator[Rollout]:
    """Yield rollouts, and store a digest of everything that a replay compares for each scored rollout."""
    for rollout in rollouts:
        if rollout.failure is None and rollout.reward is not None:
            values = rollout.model_dump(mode="json", include={*COMPARED})
            text = canonical_json([values, [turn.player for turn in rollout.turns]])
            digests[rollout.example_id, rollout.index] = hashlib.sha256(text.encode()).digest()
        yield rollout


def _is_same_pin(one: RunManifest, other: RunManifest, name: str) -> bool:
    """Return whether both runs record the same value. A chat template recorded by only one run is ignored."""
    left, right = getattr(one.model, name), getattr(other.model, name)
    return left == right or (name == "chat_template_sha256" and None in (left, right))


def _interval(comparison: Comparison, span: float) -> tuple[float | None, float | None]:
    """Return the 90% interval of the paired difference. `span` is the range of the reward."""
    differences = [pair.difference for pair in comparison.by_example]
    count, mean = len(differences), comparison.difference
    if count < 2:
        return None, None
    half = _half_width(count, standard_error(differences, mean) * sqrt(count), span)
    return mean - half, mean + half


def _half_width(count: int, deviation: float, span: float) -> float:
    """Return half the 90% interval of a mean of differences. Without spread, allow for unseen examples."""
    if deviation > 1e-12 * max(1.0, span) * sqrt(count):
        return quantile(0.95, count - 1) * deviation / sqrt(count)
    return float((1 - 0.05 ** (1 / count)) * span)


EQUAL_DIFFERENCES = 6
"""Minimum number of equal differences that `compare_runs` reports as significant."""
MOST_NEEDED = 10_000_000
"""Number of examples above which no estimate is given."""


def _examples_needed(comparison: Comparison, width: float, span: float) -> int | None:
    """Return how many examples would decide, assuming that unseen ones have the same mean and spread."""
    differences = [pair.difference for pair in comparison.by_example]
    count, mean = len(differences), comparison.difference
    deviation = standard_error(differences, mean) * sqrt(count) if count > 1 else 0.0

    has_spread = count > 1 and not is_rounding(deviation / sqrt(count), mean)

    def decides(more: int) -> bool:
        if abs(mean) + _half_width(more, deviation, span) < width:
            return True
        if has_spread:
            return abs(mean) > quantile(0.975, more - 1) * deviation / sqrt(more)
        return mean != 0 and more >= EQUAL_DIFFERENCES

    least, most = count, max(2, 2 * count)
    while not decides(most):
        if most > MOST_NEEDED:
            return None
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if decides(middle) else (middle, most)
    return most
