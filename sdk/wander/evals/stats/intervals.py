"""95 % intervals of a mean: Gaffke's for graded values, Wilson's for values that are all 0 or 1.

`wander.evals.stats.summary` says which of them a run's numbers have, and why; `benchmarks/coverage.py`
measures how often they hold the truth.
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
"""Standard errors below this share of the mean are rounding, not spread."""
_DIGITS = 12
"""Shares that agree in so many decimals are the same value: 0.1 + 0.2 and 0.3 are."""
_PRECISION = 1e-7
"""How near to `_Z` the root is found: the bound is then right to less than a millionth of the range."""


def mean_interval(values: Sequence[float], bounds: Interval | None = None) -> Interval | tuple[None, None]:
    """Return Gaffke's 95 % interval of the mean of independent values that lie within `bounds`.

    Of values in [0, 1] the upper end is the 97.5 % quantile of their mean under uniformly random (Dirichlet)
    weights, with one more value of 1 among them; the lower end likewise with a 0. For 0/1 values this is
    Clopper and Pearson's interval, for equal ones what may have stayed unseen: `1 - 0.025^(1/n)` of the
    values may be others. (Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the
    mean of a nonnegative variable"; Phan, Thomas and Learned-Miller 2021, arXiv:2106.03163.)

    Where there are no bounds, or a value lies beyond one, the further value is put as far outside of the
    values as the most extreme of them lies from the mean. (None, None) for fewer than two values, and for
    equal values that no bounds hold, which say nothing about others.
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
    """Return Gaffke's upper bound at 97.5 % of the mean of values in [0, 1].

    The quantile of the weighted mean comes from a saddlepoint approximation (Barndorff-Nielsen's r*), within
    half a percent of the exact one, so that no random numbers are drawn. With `t` as parameter, both the
    quantile and its probability are sums over the values; their root is found by the Illinois method.
    """
    tally = Counter(round(share, _DIGITS) for share in shares)
    tally[1.0] += 1
    values = list(tally.items())
    if len(values) == 1:
        return 1.0
    if len(values) == 2 and tally[1.0] == 1:  # equal values, for which the exact bound is known
        return float(1 - (1 - values[0][0]) * (1 - _UPPER) ** (1 / values[0][1]))
    # t = 1 - exp(-v), so that v may grow without end while the bound nears 1.
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
    """Return the normal deviate r* of a point in the weighted mean's distribution, and that point.

    `t` in [0, 1) names the point; `values` are distinct, each with how often it occurs. The sum of
    `g_i (y_i - q)` over standard exponential `g` has the cumulant generating function
    `-sum log(1 - s (y_i - q))`; its saddlepoint is `s = t A` with `A` the mean of `1 / (1 - t y_i)`.
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
    if root < 0.1:  # too near to the mean for the correction, and far from the bound
        return root, point
    return root + log(t * sqrt(spread) / root) / root, point


def is_rounding(error: float, mean: float) -> bool:
    """Tell whether a standard error is that of equal values, up to rounding."""
    return error <= _ROUNDING * abs(mean)


def clustered_wilson_interval(means: Sequence[float], rollouts: int) -> Interval:
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


def wilson_interval(p: float, n: float) -> Interval:
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
