"""Intervals of metrics: those of the reward where both are the same, right where examples differ in size."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wander.evals.stats.summary import summarize
from wander.types import EnvironmentInfo, RewardFunctionInfo, Rollout


def rollout(example: int, index: int, value: float, **metrics: float) -> Rollout:
    return Rollout(
        example_id=str(example),
        index=index,
        seed=0,
        prompt=[],
        completion=[],
        turns=[],
        stop_reason="done",
        reward=value,
        metrics=metrics,
    )


GRADES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-3, 3).map(lambda one: round(one, 3)))


@given(st.integers(1, 4).flatmap(lambda k: st.lists(st.lists(GRADES, min_size=k, max_size=k), min_size=1)))
@example([[2.0, 2.0]])
def test_a_metric_equal_to_the_reward_has_its_interval(examples: list[list[float]]) -> None:
    played = [
        rollout(number, index, value, same=value)
        for number, values in enumerate(examples)
        for index, value in enumerate(values)
    ]
    functions = [RewardFunctionInfo(name="same", weight=1.0)]
    info = EnvironmentInfo(name="e", kind="single_turn", reward_functions=functions)
    summary = summarize(played, expected=len(played), info=info)
    found = summary.metrics["same"]
    assert found.mean == pytest.approx(summary.reward_mean, abs=1e-12)
    for end, reward in ((found.low, summary.reward_low), (found.high, summary.reward_high)):
        assert (end is None) == (reward is None)
        assert end is None or end == pytest.approx(reward, abs=1e-9)


def test_the_order_of_rollouts_changes_nothing_and_missing_values_are_left_out() -> None:
    draw = random.Random(3)
    played = [
        rollout(number, index, 0.5, sparse=draw.random())
        if draw.random() < 0.7
        else rollout(number, index, 0.5, other=1.0)
        for number in range(30)
        for index in range(3)
    ]
    whole = summarize(played, expected=90).metrics["sparse"]
    draw.shuffle(played)
    again = summarize(played, expected=90).metrics["sparse"]
    assert (again.count, again.low, again.high) == (
        whole.count,
        pytest.approx(whole.low),
        pytest.approx(whole.high),
    )
    assert whole.low is not None
    assert whole.high is not None
    assert whole.low < whole.mean < whole.high


def test_the_interval_covers_the_mean_where_examples_have_different_sizes() -> None:
    draw = random.Random(11)
    covered = 0
    for _ in range(400):
        played = []
        for number in range(25):
            level = draw.gauss(2.0, 1.0)
            for index in range(draw.choice((1, 2, 5))):
                played.append(rollout(number, index, 0.5, score=level + draw.gauss(0.0, 0.5)))
        found = summarize(played, expected=len(played)).metrics["score"]
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 2.0 <= found.high
    assert covered / 400 >= 0.94
