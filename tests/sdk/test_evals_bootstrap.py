"""Bootstrap intervals: against scipy, by simulation, and the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
import pytest
import scipy
from wander.evals.stats.bootstrap import bootstrap_interval
from wander.evals.stats.pass_at_k import pass_hat_k, pass_rates

draw = random.Random(4)
SKEWED = [draw.expovariate(1) for _ in range(40)]
GAUSSIAN = [draw.gauss(2, 1) for _ in range(25)]


@pytest.mark.parametrize("sample", [SKEWED, GAUSSIAN], ids=["skewed", "gaussian"])
@pytest.mark.parametrize(("ours", "theirs"), [(fmean, np.mean), (median, np.median)], ids=["mean", "median"])
def test_intervals_agree_with_scipys_bca(sample: list[float], ours: object, theirs: object) -> None:
    found = bootstrap_interval(sample, ours, resamples=9999)  # type: ignore[arg-type]
    done = scipy.stats.bootstrap((sample,), theirs, n_resamples=9999, method="BCa", rng=1)
    expected = done.confidence_interval
    width = expected.high - expected.low
    assert found == pytest.approx((expected.low, expected.high), abs=0.08 * width)


def test_the_same_clusters_give_the_same_interval_and_another_seed_another() -> None:
    assert bootstrap_interval(SKEWED, fmean) == bootstrap_interval(SKEWED, fmean)
    assert bootstrap_interval(SKEWED, fmean) != bootstrap_interval(SKEWED, fmean, seed=1)


def test_the_bootstrap_agrees_with_the_known_formula() -> None:
    generator = random.Random(6)
    counts = [
        (4, sum(generator.random() < generator.choice((0.3, 0.8)) for _ in range(4))) for _ in range(80)
    ]
    low, high = bootstrap_interval(counts, lambda some: fmean(pass_hat_k(n, c, 2) for n, c in some))
    rate = pass_rates(counts)[1]
    width = rate.pass_hat_k_high - rate.pass_hat_k_low
    assert (low, high) == pytest.approx((rate.pass_hat_k_low, rate.pass_hat_k_high), abs=0.15 * width)


def test_few_and_equal_clusters_are_not_certain() -> None:
    assert bootstrap_interval([1.0], fmean) == (None, None)
    assert bootstrap_interval([1.0, 1.0, 1.0], fmean) == (1.0, 1.0)


def test_a_statistic_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        bootstrap_interval([1.0, 2.0], lambda _: float("nan"))


@pytest.mark.full
def test_resampling_whole_examples_covers_the_truth_and_single_rollouts_would_not() -> None:
    """Rollouts of an example agree, so that 60 of them say little more than 15 examples."""
    generator = random.Random(8)
    runs, clustered, naive = 150, 0, 0

    def mean_of(clusters: Sequence[Sequence[float]]) -> float:
        return sum(map(sum, clusters)) / sum(map(len, clusters))

    for _ in range(runs):
        clusters = [
            [chance + generator.gauss(0, 0.05) for _ in range(4)]
            for chance in (generator.choice((0.1, 0.5, 0.9)) for _ in range(15))
        ]
        low, high = bootstrap_interval(clusters, mean_of, resamples=300)
        assert low is not None
        clustered += low <= 0.5 <= high
        low, high = bootstrap_interval([[v] for one in clusters for v in one], mean_of, resamples=300)
        assert low is not None
        naive += low <= 0.5 <= high
    assert clustered / runs >= 0.87
    assert naive / runs < 0.8
