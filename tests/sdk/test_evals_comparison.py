"""Paired comparison of two runs, against scipy and by simulation."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from wander import Rollout
from wander.errors import RunError
from wander.evals.stats.comparison import compare_runs
from wander.types import EnvironmentInfo, Failure
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest


def manifest(count: int, **fields: object) -> RunManifest:
    given = {
        "run_id": "0" * 26,
        "environment": EnvironmentPin(name="e", info=EnvironmentInfo(name="e", kind="single_turn")),
        "model": ModelPin(name="m", kind="ScriptedClient"),
        "example_ids": [str(i) for i in range(count)],
        "rollouts_per_example": 1,
        "task_set_sha256": "0" * 64,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "platform": Platform(wander="0", python="3", system="Linux", machine="x"),
    }
    return RunManifest(**{**given, **fields})


def rollouts(rewards: list[float], index: int = 0) -> list[Rollout]:
    return [
        Rollout(example_id=str(i), index=index, seed=0, prompt=[], completion=[], reward=reward)
        for i, reward in enumerate(rewards)
    ]


def compared(before: list[float], after: list[float]):
    pins = manifest(len(before))
    return compare_runs(pins, rollouts(before), pins, rollouts(after))


@given(st.lists(st.tuples(*[st.integers(0, 20).map(lambda n: n / 4)] * 2), min_size=2, max_size=60))
def test_interval_and_p_value_match_the_paired_t_test(pairs):
    before, after = [one for one, _ in pairs], [other for _, other in pairs]
    differences = {other - one for one, other in pairs}
    found = compared(before, after)
    assert found.wins + found.losses + found.ties == found.examples == len(pairs)
    assert found.after - found.before == pytest.approx(found.difference)
    if len(differences) > 1:
        expected = scipy.stats.ttest_rel(after, before)
        interval = expected.confidence_interval(0.95)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
        assert found.significant == (expected.pvalue < 0.05)


def test_a_clear_difference_hidden_by_overlapping_intervals_is_found():
    draw = random.Random(1)
    before = [draw.random() for _ in range(40)]
    after = [value + 0.05 + draw.gauss(0, 0.02) for value in before]
    found = compared(before, after)
    assert found.significant
    assert found.low < 0.05 < found.high
    apart = [scipy.stats.t.interval(0.95, 39, sum(v) / 40, scipy.stats.sem(v)) for v in (before, after)]
    assert apart[0][1] > apart[1][0], "the two separate intervals overlap"


def test_the_interval_covers_the_true_difference_as_often_as_it_says():
    draw = random.Random(7)
    covered = 0
    for _ in range(1000):
        before = [draw.gauss(0, 1) for _ in range(12)]
        after = [value + draw.gauss(0.3, 0.5) for value in before]
        found = compared(before, after)
        covered += found.low <= 0.3 <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


@pytest.mark.full
def test_the_detectable_difference_is_found_four_times_in_five():
    draw = random.Random(3)
    shift = 0.4
    sizes, hits = [], 0
    for _ in range(1500):
        found = compared([0.0] * 50, [draw.gauss(shift, 1) for _ in range(50)])
        sizes.append(found.detectable)
        hits += found.significant
    assert sum(sizes) / len(sizes) == pytest.approx(shift, rel=0.05)
    assert 0.75 <= hits / 1500 <= 0.85


def test_random_changes_are_rarely_called_clear():
    draw = random.Random(11)
    clear = 0
    for _ in range(2000):
        signs = [draw.choice((-1, 1)) for _ in range(4)]
        clear += compared([0.0] * 4, signs).significant
    assert clear / 2000 <= 0.05


def test_rollouts_of_an_example_are_averaged_without_failures():
    pins = manifest(3, rollouts_per_example=2)
    before = rollouts([0, 0, 1]) + rollouts([1, 0, 1], index=1)
    after = rollouts([1, 1, 1])
    after[2] = after[2].model_copy(
        update={"reward": None, "failure": Failure(boundary="model", type="X", message="down")}
    )
    found = compare_runs(pins, before, pins, after)
    assert (found.examples, found.unshared) == (2, 1)
    assert [(one.example_id, one.before, one.after) for one in found.by_example] == [
        ("0", 0.5, 1),
        ("1", 0, 1),
    ]


def test_differences_other_than_the_model_are_named():
    one = manifest(2)
    other = manifest(2, model=ModelPin(name="other", kind="OpenAIClient"), seed=4, split="train")
    assert compare_runs(one, rollouts([0, 1]), other, rollouts([1, 1])).differing == ["seed", "split"]


def test_examples_with_different_prompts_are_not_paired():
    pins = manifest(3)
    after = rollouts([1, 1, 1])
    after[0] = after[0].model_copy(update={"prompt": [{"role": "user", "content": "another board"}]})
    after[1] = after[1].model_copy(update={"seed": 9})
    found = compare_runs(pins, rollouts([0, 0, 0]), pins, after)
    assert ([one.example_id for one in found.by_example], found.unshared) == (["2"], 2)
    other = manifest(3)
    other.environment.name = "f"
    with pytest.raises(RunError, match="different environments, `e` and `f`"):
        compare_runs(pins, rollouts([0, 0, 0]), other, rollouts([0, 0, 0]))


@pytest.mark.parametrize("examples", range(2, 12))
@pytest.mark.parametrize("size", [1.0, 0.05])
def test_equal_differences_are_judged_by_the_sign_test(examples, size):
    found = compared([0.0] * examples, [size] * examples)
    exact = scipy.stats.binomtest(examples, examples).pvalue
    assert found.p_value == pytest.approx(exact)
    assert found.significant == (exact < 0.05)
    assert found.low < size <= found.high
    assert found.high <= 1
    assert found.detectable is None


def test_equal_runs_and_single_examples():
    same = compared([0.5, 0.25], [0.5, 0.25])
    assert (same.p_value, same.ties, same.significant, same.detectable) == (1.0, 2, False, None)
    assert (same.low, same.high) == (pytest.approx(-same.high), pytest.approx(1 - 0.025**0.5))
    single = compared([0], [1])
    assert (single.low, single.p_value, single.significant) == (None, None, False)
    with pytest.raises(RunError, match="share no scored example"):
        compare_runs(manifest(1), [], manifest(1), rollouts([1]))
    train = manifest(1).model_copy(update={"split": "train"})
    with pytest.raises(RunError, match="they differ in the split"):
        compare_runs(train, rollouts([1]), manifest(1), [])
