"""Computes intervals by resampling examples (bootstrap), for statistics without a formula.

Whole examples are drawn with replacement, each with all of its rollouts, because the rollouts of one example
are not independent (the cluster bootstrap; Davison and Hinkley 1997, "Bootstrap Methods and their
Application", section 3.8). The interval is Efron's BCa (Efron 1987, "Better Bootstrap Confidence Intervals"),
which corrects for bias and skew. Its acceleration comes from the jackknife, over groups of examples if there
are many. The generator is seeded, so the same run gives the same interval everywhere.

A bootstrap only knows the examples that it saw. If they all agree, the interval is a single point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import floor, isfinite
from random import Random
from statistics import NormalDist
from typing import TypeVar

Cluster = TypeVar("Cluster")

RESAMPLES = 2000
_FEWEST = 200
_WORK = 4_000_000
"""Total number of examples drawn. With more than 2,000 examples there are fewer resamples, but at least
200."""
_JACKKNIFE_GROUPS = 200
_NORMAL = NormalDist()


def bootstrap_interval(
    clusters: Sequence[Cluster],
    statistic: Callable[[Sequence[Cluster]], float],
    *,
    resamples: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> tuple[float, float] | tuple[None, None]:
    """Return the BCa interval of a statistic of clusters, or (None, None) for fewer than two clusters.

    `statistic` accepts any number of clusters in any order, and must be finite. If it is the same in every
    resample, both ends of the interval are that value.
    """
    count = len(clusters)
    if count < 2:
        return None, None
    number = resamples or max(_FEWEST, min(RESAMPLES, _WORK // count))
    draw = Random(seed)  # noqa: S311 - a simulation, not a secret
    resampled = sorted(statistic(draw.choices(clusters, k=count)) for _ in range(number))
    if not (isfinite(resampled[0]) and isfinite(resampled[-1])):
        raise ValueError("the statistic of a resample is not a finite number")
    if resampled[0] == resampled[-1]:
        return resampled[0], resampled[0]
    value = statistic(clusters)
    # z0: distance of the statistic from the median of its resamples. Ties count half.
    below = sum(sample < value for sample in resampled) + sum(sample == value for sample in resampled) / 2
    least = 0.5 / len(resampled)
    bias = _NORMAL.inv_cdf(min(max(below / len(resampled), least), 1 - least))
    acceleration = _acceleration(clusters, statistic)

    def end(share: float) -> float:
        z = bias + _NORMAL.inv_cdf(share)
        return _quantile(resampled, _NORMAL.cdf(bias + z / (1 - acceleration * z)))

    tail = (1 - confidence) / 2
    return end(tail), end(1 - tail)


def _acceleration(clusters: Sequence[Cluster], statistic: Callable[[Sequence[Cluster]], float]) -> float:
    count = len(clusters)
    groups = min(count, _JACKKNIFE_GROUPS)
    edges = [count * number // groups for number in range(groups + 1)]
    jackknifed = [statistic([*clusters[:start], *clusters[end:]]) for start, end in pairwise(edges)]
    mean = sum(jackknifed) / groups
    squares = sum((mean - value) ** 2 for value in jackknifed)
    return sum((mean - value) ** 3 for value in jackknifed) / (6 * squares**1.5) if squares > 0 else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile by linear interpolation, as numpy's and scipy's default."""
    position = min(max(share, 0.0), 1.0) * (len(ordered) - 1)
    before = floor(position)
    after = min(before + 1, len(ordered) - 1)
    return ordered[before] + (position - before) * (ordered[after] - ordered[before])
