"""Computes 95% intervals of a mean: Gaffke's for graded values, Wilson's for values of only 0 and 1.

`wander.evals.stats.summary` explains which interval applies when, and why. `benchmarks/coverage.py` measures
how often the intervals contain the true mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import expm1, inf, log, sqrt

from wander.evals.stats import student_t

Interval = tuple[float, float]

_CONFIDENCE = 0.95
_UPPER = 0.5 + _CONFIDENCE / 2
_Z = 1.959963984540054
"""Standard normal quantile at 0.975."""
_ROUNDING = 1e-12
"""Standard errors below this share of the mean are rounding errors, not spread."""
_DIGITS = 12
"""Number of decimals in comparisons of shares, so that 0.1 + 0.2 and 0.3 are the same value."""
_PRECISION = 1e-7
"""Tolerance around `_Z` for the root. The bound is then accurate to less than a millionth of the range."""


def mean_interval(values: Sequence[float], bounds: Interval | None = None) -> Interval | tuple[None, None]:
    """Return Gaffke's 95% interval of the mean of independent values that lie within `bounds`.

    For values in [0, 1], the upper end is the 97.5% quantile of their mean under uniformly random
    (Dirichlet) weights, with an additional value of 1. The lower end is computed the same way with an
    additional 0. For 0/1 values this is Clopper and Pearson's interval. For equal values it covers unseen
    values: a share of `1 - 0.025^(1/n)` may be different. (Gaffke 2005, "Three test statistics for a
    nonparametric one-sided hypothesis on the mean of a nonnegative variable"; Phan, Thomas and Learned-Miller
    2021, arXiv:2106.03163.)

    Without bounds, or if a value exceeds one, the additional value is placed as far outside the values
    as the most extreme of them lies from the mean. Returns (None, None) for fewer than two values, and for
    equal values outside the bounds, which tell nothing about other values.
    """
    if len(values) < 2:
        return None, None
    least, most, mean = min(values), max(values), sum(values) / len(values)
    low, high = bounds or (inf, -inf)
    slack = _ROUNDING * max(abs(least), abs(most))
    within = low - slack <= least and most <= high + slack
    if not within and most - least <= slack:
        return None, None
    if not within:
        low = low if low <= least else least - (mean - least) / 2
        high = high if high >= most else most + (most - mean) / 2
    if high <= low:
        return mean, mean
    width = high - low
    lower = high - width * _upper_bound((high - value) / width for value in values)
    upper = low + width * _upper_bound((value - low) / width for value in values)
    return min(lower, mean), max(upper, mean)


def _upper_bound(shares: Iterable[float]) -> float:
    """Return Gaffke's upper bound at 97.5% of the mean of values in [0, 1].

    The quantile of the weighted mean comes from a saddlepoint approximation (Barndorff-Nielsen's r*), which
    is within half a percent of the exact one, so no random numbers are drawn. With `t` as parameter, the
    quantile and its probability are both sums over the values. The root is found with the Illinois method.
    """
    tally = Counter(round(share, _DIGITS) for share in shares)
    tally[1.0] += 1
    values = list(tally.items())
    if len(values) == 1:
        return 1.0
    if len(values) == 2 and tally[1.0] == 1:  # equal values, whose exact bound is known
        return float(1 - (1 - values[0][0]) * (1 - _UPPER) ** (1 / values[0][1]))
    # With t = 1 - exp(-v), v may grow without limit while the bound approaches 1.
    low, below = 0.0, -_Z
    high, bound = 1.0, 1.0
    while (above := _signed_root(-expm1(-high), values)[0] - _Z) < 0:
        low, below, high = high, above, 2 * high
    moved = 0
    while True:
        middle = (low * above - high * below) / (above - below)
        root, bound = _signed_root(-expm1(-middle), values)
        error = root - _Z
        if abs(error) < _PRECISION or not low < middle < high:
            return bound
        if error < 0:
            low, below = middle, error
            above = above / 2 if moved < 0 else above
            moved = -1
        else:
            high, above = middle, error
            below = below / 2 if moved > 0 else below
            moved = 1


def _signed_root(t: float, values: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the normal deviate r* of a point in the distribution of the weighted mean, and that point.

    `t` in [0, 1) names the point. `values` are distinct, each with its number of occurrences. The sum of
    `g_i (y_i - q)` over standard exponential `g` has the cumulant generating function
    `-sum log(1 - s (y_i - q))`. Its saddlepoint is `s = t A`, where `A` is the mean of `1 / (1 - t y_i)`.
    """
    count = total = weighted = logs = 0.0
    for value, times in values:
        weight = 1 / (1 - t * value)
        count += times
        total += times * weight
        weighted += times * weight * value
        logs += times * log(weight)
    point = weighted / total
    spread = sum(times * ((value - point) / (1 - t * value)) ** 2 for value, times in values)
    root = sqrt(max(0.0, 2 * (count * log(total / count) - logs)))
    if root < 0.1:  # too close to the mean for the correction, and far from the bound
        return root, point
    return root + log(t * sqrt(spread) / root) / root, point


def is_rounding(error: float, mean: float) -> bool:
    """Return whether a standard error is zero up to rounding, which means that the values are equal."""
    return error <= _ROUNDING * abs(mean)


def clustered_wilson_interval(means: Sequence[float], rollouts: int) -> Interval:
    """Return Wilson's 95% interval for 0/1 rewards.

    `means` contains one mean per example, and `rollouts` is the total number of rollouts.
    """
    clusters = len(means)
    p = sum(means) / clusters
    effective = float(clusters) if clusters > 1 else float(rollouts)
    if clusters > 1 and 0 < p < 1:
        error = standard_error(means, p)
        shrink = (_Z / student_t.quantile(_UPPER, clusters - 1)) ** 2
        # Without spread between examples, their rollouts are effectively independent.
        independent = shrink * p * (1 - p) / error**2 if error > _ROUNDING else float(rollouts)
        effective = min(float(rollouts), max(effective, independent))
    return wilson_interval(p, effective)


def wilson_interval(p: float, n: float) -> Interval:
    """Return Wilson's 95% score interval of a share `p` observed over `n` trials (n may be fractional)."""
    z2 = _Z * _Z
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At p = 0 and p = 1 the bounds hold exactly, but rounding may cross them.
    return max(0.0, min(p, center - half)), min(1.0, max(p, center + half))


def standard_error(values: Sequence[float], mean: float) -> float:
    """Return the standard error of the mean of two or more values."""
    count = len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
