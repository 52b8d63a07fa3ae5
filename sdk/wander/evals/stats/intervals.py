"""95 % intervals of a mean: Student's t, Wilson's, and what equal values still allow for.

`wander.evals.stats.summary` says which of them a run's numbers have, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from wander.evals.stats import student_t

_CONFIDENCE = 0.95
_UPPER = 0.5 + _CONFIDENCE / 2
_Z = 1.959963984540054
"""Standard normal quantile at 0.975."""
_ROUNDING = 1e-12
"""Standard errors below this share of the mean are rounding, not spread."""


def t_interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % t interval of the mean, of equal values what those unseen allow for.

    (None, None) for fewer than two values.
    """
    count = len(values)
    if count < 2:
        return None, None
    mean = sum(values) / count
    return t_interval_of(mean, standard_error(values, mean), count)


def t_interval_of(mean: float, error: float, count: int) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % t interval of a mean of `count` values with that standard error."""
    if count < 2:
        return None, None
    if is_rounding(error, mean):
        bounds = (0.0, 1.0) if 0 <= mean <= 1 else (min(0.0, 2 * mean), max(0.0, 2 * mean))
        return unanimous_interval(mean, count, *bounds)
    half = student_t.quantile(_UPPER, count - 1) * error
    return mean - half, mean + half


def unanimous_interval(value: float, count: int, low: float, high: float) -> tuple[float, float]:
    """Return the 95 % interval of a mean of which `count` samples were all equal to `value`.

    Samples lie between `low` and `high`; up to `unseen_share(count)` of them may be others.
    """
    share = unseen_share(count)
    return value - share * (value - low), value + share * (high - value)


def is_rounding(error: float, mean: float) -> bool:
    """Tell whether a standard error is that of equal values, up to rounding."""
    return error <= _ROUNDING * abs(mean)


def unseen_share(count: int) -> float:
    """Return how common something may be that none of `count` samples showed: the bound at 97.5 %."""
    return float(1 - (1 - _UPPER) ** (1 / count))


def clustered_wilson_interval(means: Sequence[float], rollouts: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for 0/1 rewards.

    `means` holds one mean per example, `rollouts` is how many rollouts they were made from.
    """
    clusters = len(means)
    p = sum(means) / clusters
    effective = float(clusters) if clusters > 1 else float(rollouts)
    if clusters > 1 and 0 < p < 1:
        error = standard_error(means, p)
        shrink = (_Z / student_t.quantile(_UPPER, clusters - 1)) ** 2
        # No spread between examples: their rollouts are as good as independent.
        independent = shrink * p * (1 - p) / error**2 if error > _ROUNDING else float(rollouts)
        effective = min(float(rollouts), max(effective, independent))
    return wilson_interval(p, effective)


def wilson_interval(p: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share `p` observed over `n` trials (n may be fractional)."""
    z2 = _Z * _Z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # Rounding may step over the bounds that hold exactly at p = 0 and p = 1.
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def standard_error(values: Sequence[float], mean: float) -> float:
    """Return the standard error of the mean of two or more values."""
    count = len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
