"""pass@k and pass^k: against enumeration and published values, unbiased and covered by simulation."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import fmean

import pytest
from wander.evals.stats.pass_at_k import pass_at_k, pass_hat_k, pass_rates
from wander.evals.stats.summary import summarize
from wander.types import Rollout


def scored(example: object, reward: float, index: int = 0) -> Rollout:
    return Rollout(example_id=str(example), index=index, seed=0, prompt=[], completion=[], reward=reward)


@pytest.mark.parametrize(
    ("n", "passed", "k"), [(n, c, k) for n in (1, 3, 6) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_both_rates_are_shares_of_subsets(n: int, passed: int, k: int) -> None:
    subsets = list(combinations([1] * passed + [0] * (n - passed), k))
    assert pass_at_k(n, passed, k) == pytest.approx(fmean(any(one) for one in subsets))
    assert pass_hat_k(n, passed, k) == pytest.approx(fmean(all(one) for one in subsets))


def test_pass_at_k_equals_the_published_code() -> None:
    """Chen et al. 2021, figure 3: 1 - prod(1 - k / arange(n - c + 1, n + 1))."""
    for n, c, k in ((200, 13, 10), (200, 1, 100), (100, 99, 3), (50, 0, 7)):
        product = 1.0
        for i in range(n - c + 1, n + 1):
            product *= 1 - k / i
        assert pass_at_k(n, c, k) == pytest.approx(1 - product, abs=1e-12)


@pytest.mark.parametrize(("n", "passed", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0), (0, 0, 1)])
def test_without_enough_rollouts_there_is_no_estimate(n: int, passed: int, k: int) -> None:
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="cannot estimate"):
            estimate(n, passed, k)


def test_both_rates_are_unbiased() -> None:
    draw = random.Random(5)
    p, n, k = 0.3, 5, 3
    drawn = [sum(draw.random() < p for _ in range(n)) for _ in range(20_000)]
    assert fmean(pass_at_k(n, c, k) for c in drawn) == pytest.approx(1 - (1 - p) ** k, abs=0.01)
    assert fmean(pass_hat_k(n, c, k) for c in drawn) == pytest.approx(p**k, abs=0.005)
    assert fmean((c / n) ** k for c in drawn) > p**k + 0.02


def test_a_summary_of_binary_rewards_has_rates_and_the_first_is_the_mean() -> None:
    rows = [scored(e, float((e + i) % 3 == 0), i) for e in range(9) for i in range(6)]
    summary = summarize(rows, expected=54)
    assert summary.pass_threshold == 1.0
    assert [rate.k for rate in summary.pass_rates] == [1, 2, 4, 6]
    first = summary.pass_rates[0]
    assert first.pass_at_k == first.pass_hat_k == pytest.approx(summary.reward_mean)
    assert (first.pass_at_k_low, first.pass_at_k_high) == pytest.approx(
        (summary.reward_low, summary.reward_high)
    )
    some = [rate.pass_at_k for rate in summary.pass_rates]
    whole = [rate.pass_hat_k for rate in summary.pass_rates]
    assert some == sorted(some)
    assert whole == sorted(whole, reverse=True)
    for rate in summary.pass_rates:
        assert 0 <= rate.pass_at_k_low <= rate.pass_at_k <= rate.pass_at_k_high <= 1
        assert 0 <= rate.pass_hat_k_low <= rate.pass_hat_k <= rate.pass_hat_k_high <= 1


def test_graded_rewards_need_a_threshold() -> None:
    rows = [scored(e, reward, i) for e in range(3) for i, reward in enumerate((0.2, 0.5, 0.9))]
    assert summarize(rows, expected=9).pass_rates == []
    assert summarize(rows, expected=9).pass_threshold is None
    summary = summarize(rows, expected=9, pass_threshold=0.5)
    assert summary.pass_threshold == 0.5
    assert [rate.pass_at_k for rate in summary.pass_rates] == pytest.approx([2 / 3, 1, 1])
    assert [rate.pass_hat_k for rate in summary.pass_rates] == pytest.approx([2 / 3, 1 / 3, 0])


def test_examples_with_too_few_scored_rollouts_are_left_out_and_single_ones_have_no_rates() -> None:
    assert [(rate.k, rate.examples) for rate in pass_rates([(1, 1), (4, 2), (3, 0), (0, 0)])] == [
        (1, 3),
        (2, 2),
        (4, 1),
    ]
    assert pass_rates([(1, 1), (1, 0)]) == pass_rates([]) == []


def test_intervals_of_the_rates_cover_the_truth() -> None:
    draw = random.Random(2)
    chances, held_some, held_whole, runs = (0.2, 0.5, 0.9), 0, 0, 400
    some = fmean(1 - (1 - p) ** 2 for p in chances)
    whole = fmean(p**2 for p in chances)
    for _ in range(runs):
        counts = []
        for _ in range(30):
            p = draw.choice(chances)
            counts.append((4, sum(draw.random() < p for _ in range(4))))
        rate = pass_rates(counts)[1]
        held_some += rate.pass_at_k_low <= some <= rate.pass_at_k_high
        held_whole += rate.pass_hat_k_low <= whole <= rate.pass_hat_k_high
    assert held_some / runs >= 0.915
    assert held_whole / runs >= 0.915
