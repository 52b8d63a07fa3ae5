"""Aggregates and intervals, against scipy and by simulation."""

from __future__ import annotations

import random
import statistics as reference
from collections.abc import Callable

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from wander.evals.stats import student_t
from wander.evals.stats.intervals import mean_interval, wilson_interval
from wander.evals.stats.summary import RunningSummary, histogram, summarize
from wander.types import Boundary, EnvironmentInfo, Failure, RewardFunctionInfo, Rollout, Turn, Usage


def scored(example: object, reward: float | None, index: int = 0, **fields: object) -> Rollout:
    base = {"example_id": str(example), "index": index, "seed": 0, "prompt": [], "completion": []}
    return Rollout.model_validate(base | {"reward": reward} | fields)


def failed(example: object, boundary: Boundary = "model") -> Rollout:
    return scored(example, None, failure=Failure(boundary=boundary, type="X", message="x"))


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 12, 29, 30, 99, 1000, 54321, 10**6])
@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.9995])
def test_quantiles_agree_with_scipy(df: int, p: float) -> None:
    assert student_t.quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9)


@given(st.floats(-50, 50), st.integers(1, 5000))
def test_distribution_function_agrees_with_scipy(t: float, df: int) -> None:
    assert student_t.cdf(t, df) == pytest.approx(scipy.stats.t.cdf(t, df), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("call", [lambda: student_t.cdf(1, 0), lambda: student_t.quantile(1.0, 3)])
def test_the_distribution_rejects_invalid_arguments(call: object) -> None:
    with pytest.raises(ValueError, match="must"):
        call()  # type: ignore[operator]


def test_examples_weigh_the_same_however_many_rollouts_were_scored() -> None:
    rows = [scored("a", 1.0), scored("a", 0.0, 1), scored("a", 0.2, 2), scored("b", 0.8), failed("b")]
    summary = summarize(rows, expected=6)
    assert summary.reward_mean == pytest.approx((0.4 + 0.8) / 2)
    assert (summary.rollouts, summary.expected, summary.failed) == (5, 6, 1)
    assert summary.failures == {"model": 1}
    assert summary.examples == 2


def test_graded_interval_is_gaffkes_over_example_means() -> None:
    generator = random.Random(3)
    means = [0.2 + 0.6 * generator.random() for _ in range(12)]
    rows = [scored(i, mean + shift, j) for i, mean in enumerate(means) for j, shift in enumerate((-0.1, 0.1))]
    summary = summarize(rows, expected=24)
    assert (summary.reward_low, summary.reward_high) == pytest.approx(mean_interval(means, (0.0, 1.0)))


@pytest.mark.parametrize("count", [2, 5, 20, 300])
def test_of_0_1_values_gaffkes_interval_is_clopper_and_pearsons(count: int) -> None:
    for hits in {0, 1, count // 3, count // 2, count - 1, count}:
        exact = scipy.stats.binomtest(hits, count).proportion_ci(method="exact")
        found = mean_interval([1.0] * hits + [0.0] * (count - hits), (0.0, 1.0))
        assert found == pytest.approx((exact.low, exact.high), abs=0.003)


@pytest.mark.parametrize("count", [5, 30, 200])
def test_the_saddlepoint_finds_the_quantile_of_dirichlet_weights(count: int) -> None:
    draw = np.random.default_rng(count)
    values = draw.beta(0.3, 1.0, count)
    for end, quantile, extra in ((0, 0.025, 0.0), (1, 0.975, 1.0)):
        weights = draw.dirichlet(np.ones(count + 1), 40_000)
        exact = np.quantile(weights @ np.append(values, extra), quantile)
        assert mean_interval(list(values), (0.0, 1.0))[end] == pytest.approx(exact, rel=0.02)


@given(
    # Multiples of a thousandth stay apart, or stay equal, when they are moved.
    st.lists(st.integers(0, 1000).map(lambda number: number / 1000), min_size=2, max_size=30),
    st.floats(-100, 100),
    st.floats(0.001, 100),
)
def test_intervals_hold_the_mean_stay_within_the_bounds_and_move_with_the_values(
    values: list[float], shift: float, scale: float
) -> None:
    low, high = mean_interval(values, (0.0, 1.0))
    assert low is not None
    assert high is not None
    assert -1e-12 <= low <= sum(values) / len(values) <= high <= 1 + 1e-12
    moved = mean_interval([shift + scale * value for value in values], (shift, shift + scale))
    assert moved == pytest.approx((shift + scale * low, shift + scale * high), abs=1e-4 * scale)


def test_values_that_differ_by_rounding_are_equal() -> None:
    assert mean_interval([0.3, 0.1 + 0.2, 0.3], (0.0, 1.0)) == pytest.approx(
        mean_interval([0.3] * 3, (0.0, 1.0))
    )


def test_values_beyond_the_bounds_extend_only_their_side() -> None:
    values = [0.2, 0.9, 1.4, 0.1, 0.7]
    low, high = mean_interval(values, (0.0, 1.0))
    assert low is not None
    assert high is not None
    assert (low, high) == pytest.approx(mean_interval(values, (0.0, 1.4 + (1.4 - sum(values) / 5) / 2)))
    assert mean_interval([2.5] * 9, (0.0, 1.0)) == (None, None)
    assert mean_interval([0.0] * 9) == (None, None)


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (1, 10), (37, 100), (999, 1000)])
def test_binary_interval_of_single_rollouts_is_scipys_wilson(hits: int, n: int) -> None:
    summary = summarize([scored(i, float(i < hits)) for i in range(n)], expected=n)
    expected = scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert summary.reward_low == pytest.approx(expected.low, abs=1e-12)
    assert summary.reward_high == pytest.approx(expected.high, abs=1e-12)


def test_unanimous_examples_still_have_an_interval() -> None:
    summary = summarize([scored(i, 1.0, j) for i in range(4) for j in range(50)], expected=200)
    low, high = wilson_interval(1.0, 4)
    assert (summary.reward_low, summary.reward_high) == (low, high)
    assert low < 0.6


def test_examples_with_equal_means_use_every_rollout() -> None:
    rows = [scored(i, float(j == i % 3), j) for i in range(9) for j in range(3)]
    summary = summarize(rows, expected=27)
    assert (summary.reward_low, summary.reward_high) == pytest.approx(wilson_interval(1 / 3, 27))


def coverage(rollouts: int, spread: float, *, binary: bool, examples: int, runs: int = 400) -> float:
    """Share of simulated runs whose interval holds the true mean of 0.5."""
    generator = random.Random(20260101)
    held = 0
    for _ in range(runs):
        running = RunningSummary()
        for example in range(examples):
            chance = 0.5 + generator.choice((-spread, spread))
            for index in range(rollouts):
                noise = generator.random()
                reward = float(noise < chance) if binary else chance + noise - 0.5
                running.add(scored(example, reward, index))
        summary = running.summary(expected=0)
        assert summary.reward_low is not None
        assert summary.reward_high is not None
        held += summary.reward_low <= 0.5 <= summary.reward_high
    return held / runs


@pytest.mark.full
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("examples", "rollouts", "spread"), [(10, 8, 0.4), (40, 4, 0.4), (30, 4, 0.0)])
def test_intervals_cover_the_true_mean(binary: bool, examples: int, rollouts: int, spread: float) -> None:
    # 95% nominal; 400 runs give a standard error of 1.1 points.
    assert 0.915 <= coverage(rollouts, spread, binary=binary, examples=examples) <= 1.0


@pytest.mark.parametrize("odd", [0.01, 0.05, 0.15])
def test_intervals_allow_for_rare_different_examples(odd: float) -> None:
    """Most examples give 0.75, some 0: runs that saw none of the latter must not be sure of 0.75."""
    generator = random.Random(9)
    held, certain, runs = 0, 0, 400
    for _ in range(runs):
        rewards = [0.0 if generator.random() < odd else 0.75 for _ in range(12)]
        summary = summarize([scored(i, reward) for i, reward in enumerate(rewards)], expected=12)
        assert summary.reward_low is not None
        assert summary.reward_high is not None
        certain += summary.reward_low == summary.reward_high
        held += summary.reward_low <= 0.75 * (1 - odd) <= summary.reward_high
    assert certain == 0
    assert held / runs >= 0.915


def info(bounds: tuple[float, float] | None = None, **weights: float) -> EnvironmentInfo:
    functions = [RewardFunctionInfo(name=name, weight=weight) for name, weight in weights.items()]
    return EnvironmentInfo(name="e", kind="single_turn", reward_functions=functions, reward_bounds=bounds)


def test_bounds_are_declared_or_follow_from_the_weights() -> None:
    assert info().reward_range is None
    assert info(right=1.0, fast=0.2, rude=-0.5, seen=0.0).reward_range == (-0.5, 1.2)
    assert info((-1.0, 1.2), right=1.0).reward_range == (-1.0, 1.2)
    rewards = [1.2, 1.0, 1.2, 1.2, 1.0, 1.2, 1.2, 1.1] * 5
    rows = [scored(i, reward, metrics={"moves": 3.0}) for i, reward in enumerate(rewards)]
    summary = summarize(rows, expected=40, info=info((-1.0, 1.2), right=1.0, moves=0.0))
    assert summary.reward_high is not None
    assert summary.reward_high <= 1.2
    # A count without bounds that is 3 everywhere says nothing about examples that nobody saw.
    assert (summary.metrics["moves"].low, summary.metrics["moves"].high) == (None, None)
    beyond = summarize([scored(i, 2.5) for i in range(9)], expected=9, info=info(right=1.0))
    unseen = 1 - 0.025 ** (1 / 9)
    assert (beyond.reward_low, beyond.reward_high) == pytest.approx(
        (2.5 - 2.5 * unseen, 2.5 + 2.5 * unseen), rel=0.01
    )
    penalty = summarize([scored(i, 0.0) for i in range(90)], expected=90, info=info(rude=-0.1))
    assert penalty.reward_high == 0.0
    assert penalty.reward_low == pytest.approx(-0.1 * (1 - 0.025 ** (1 / 90)), rel=0.01)


SKEWED: dict[str, tuple[Callable[[random.Random], float], float, tuple[float, float]]] = {
    "beta": (lambda draw: draw.betavariate(0.1, 1.0), 0.1 / 1.1, (0.0, 1.0)),
    "mostly zero": (lambda draw: draw.random() * (draw.random() < 0.1), 0.05, (0.0, 1.0)),
    "two values": (lambda draw: -0.1 * (draw.random() < 0.05), -0.005, (-0.1, 0.0)),
    "rarely lost": (lambda draw: 1.2 if draw.random() < 0.95 else -1.0, 1.09, (-1.0, 1.2)),
}


@pytest.mark.full
@pytest.mark.parametrize("examples", [20, 40, 100])
@pytest.mark.parametrize("case", SKEWED)
def test_intervals_of_skewed_and_two_valued_rewards_cover_the_mean(case: str, examples: int) -> None:
    value, mean, bounds = SKEWED[case]
    draw = random.Random(12)
    held = 0
    for _ in range(600):
        low, high = mean_interval([value(draw) for _ in range(examples)], bounds)
        assert low is not None
        assert high is not None
        held += low <= mean + 1e-12 and mean - 1e-12 <= high
    assert held / 600 >= 0.94


def test_one_example_has_an_interval_and_one_rollout_has_none() -> None:
    graded = summarize([scored("a", r, i) for i, r in enumerate((0.1, 0.5, 0.6))], expected=3)
    assert (graded.reward_low, graded.reward_high) == mean_interval([0.1, 0.5, 0.6], (0.0, 1.0))
    single = summarize([scored("a", 0.3)], expected=1)
    assert (single.reward_mean, single.reward_low, single.reward_high) == (0.3, None, None)
    binary = summarize([scored("a", 1.0, i) for i in range(8)], expected=8)
    assert (binary.reward_low, binary.reward_high) == wilson_interval(1.0, 8)


def test_equal_graded_rewards_still_have_an_interval() -> None:
    summary = summarize([scored(i, 0.25) for i in range(6)], expected=6)
    unseen = scipy.stats.binomtest(0, 6).proportion_ci(method="exact").high
    assert summary.reward_low == pytest.approx(0.25 - unseen * 0.25, rel=0.01)
    assert summary.reward_high == pytest.approx(0.25 + unseen * 0.75, rel=0.01)
    assert summary.histogram is not None
    assert summary.histogram.counts == [6]


def test_runs_without_rollouts_or_with_only_failures_are_summarized() -> None:
    assert summarize([], expected=4).reward_mean is None
    summary = summarize([failed("a"), failed("b", "tool"), failed("b", "tool")], expected=4)
    assert summary.reward_mean is None
    assert summary.histogram is None
    assert summary.failures == {"model": 1, "tool": 2}


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), -1e308])
def test_a_rollout_without_a_usable_reward_counts_as_failed(reward: float | None) -> None:
    summary = summarize([scored("a", 1.0), scored("b", reward)], expected=2)
    assert summary.failures == {"rubric": 1}
    assert summary.reward_mean == 1.0


def test_the_summary_has_metrics_turns_usage_and_stop_reasons() -> None:
    turn = Turn(message={"role": "assistant", "content": ""}, context_messages=1)
    rows = [
        scored(
            i,
            float(i),
            metrics={"m": v, "n": 1.0} if i else {"m": v, "n": float("nan")},
            turns=[turn] * i,
            stop_reason="done" if i else None,
            truncated=i == 2,
            usage=Usage(prompt_tokens=i, completion_tokens=1),
            seconds=float(i),
        )
        for i, v in enumerate((1.0, 2.0, 4.0))
    ]
    summary = summarize(rows, expected=3)
    assert summary.metrics["m"].mean == pytest.approx(7 / 3)
    assert summary.metrics["m"].std == pytest.approx(reference.stdev((1.0, 2.0, 4.0)))
    assert summary.metrics["n"].count == 2
    assert summary.turns_mean == 1.0
    assert summary.usage == Usage(prompt_tokens=3, completion_tokens=3)
    assert summary.stop_reasons == {"done": 2, "unknown": 1}
    assert summary.truncated == 1
    assert summary.seconds_mean == 1.0


rewards = st.floats(-1e6, 1e6, allow_nan=False) | st.sampled_from([0.0, 1.0])


@given(st.lists(st.tuples(st.integers(0, 5), rewards), min_size=1, max_size=40))
def test_any_rewards_give_an_ordered_interval_and_a_full_histogram(rows: list[tuple[int, float]]) -> None:
    running = RunningSummary()
    for i, (example, reward) in enumerate(rows):
        running.add(scored(example, reward, i))
    summary = running.summary(expected=len(rows))
    assert summary.reward_mean is not None
    if summary.reward_low is not None and summary.reward_high is not None:
        assert summary.reward_low <= summary.reward_mean <= summary.reward_high
    assert summary.histogram is not None
    assert sum(summary.histogram.counts) == len(rows)
    assert len(summary.histogram.edges) == len(summary.histogram.counts) + 1
    assert summary.histogram.edges == sorted(summary.histogram.edges)


def test_histogram_bins_include_their_edges() -> None:
    result = histogram([0.0, 0.04, 0.05, 0.5, 0.999, 1.0])
    assert result.edges[0] == 0.0
    assert result.edges[-1] == 1.0
    assert result.counts[0] == 2
    assert result.counts[1] == 1
    assert result.counts[-1] == 2
