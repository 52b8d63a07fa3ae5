"""Student's t distribution with only the standard library, so that summaries do not need scipy.

The distribution function is the regularized incomplete beta function, evaluated by its continued fraction
(modified Lentz, as in Abramowitz and Stegun 26.5.8). Quantiles invert it by bisection. Compared with
`scipy.stats.t`, the relative error stays below 1e-9 for 1 to 10^6 degrees of freedom (a test checks this).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log, log1p

_TINY = 1e-300
_EPSILON = 1e-15
_MAX_TERMS = 10_000


def cdf(t: float, df: float) -> float:
    """Return P(T <= t) for `df` degrees of freedom."""
    if df <= 0:
        raise ValueError(f"degrees of freedom must be positive, not {df}")
    if t == 0:
        return 0.5
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t), (t * t) / (df + t * t))
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=256)
def quantile(p: float, df: float) -> float:
    """Return t with P(T <= t) = p, for 0.5 <= p < 1."""
    if not 0.5 <= p < 1:
        raise ValueError(f"probability must lie in [0.5, 1), not {p}")
    low, high = 0.0, 1.0
    while cdf(high, df) < p:
        low, high = high, high * 2
        if high == inf:
            raise ValueError(f"no finite quantile for probability {p}")
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """Return the regularized I_x(a, b). The caller passes y = 1 - x to avoid cancellation."""
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    log_x = log(x) if x < 0.5 else log1p(-y)
    log_y = log(y) if y < 0.5 else log1p(-x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log_x + b * log_y)
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, y) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function with modified Lentz."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MAX_TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
