"""Whether a repeated run agrees: the verdicts, their error rates by simulation, and what cannot be told."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wander import Rollout
from wander.errors import ConfigError, RunError
from wander.evals.stats.agreement import agreement
from wander.evals.store.manifest import this_platform
from wander.types import EnvironmentInfo, Failure, RewardFunctionInfo, Usage
from wander.wire import EnvironmentPin, ModelPin, RunManifest
from wander.wire.verification import Agreement


def manifest(count: int, weight: float = 1.0, **changes: Any) -> RunManifest:
    info = EnvironmentInfo(
        name="coin", kind="single_turn", reward_functions=[RewardFunctionInfo(name="right", weight=weight)]
    )
    given: dict[str, Any] = {
        "run_id": "01run",
        "environment": EnvironmentPin(owner="acme", name="coin", version="1.0", info=info),
        "model": ModelPin(name="tiny", kind="OpenAIClient"),
        "example_ids": [str(number) for number in range(count)],
        "rollouts_per_example": 1,
        "task_set_sha256": "0" * 64,
        "started_at": datetime.now(UTC),
        "platform": this_platform(),
    }
    return RunManifest(**{**given, **changes})


def rollouts(rewards: list[float], said: str = "one") -> list[Rollout]:
    completion = [{"role": "assistant", "content": said}]
    return [
        Rollout(example_id=str(number), index=0, seed=number, prompt=[], completion=completion, reward=reward)
        for number, reward in enumerate(rewards)
    ]


def compared(before: list[float], after: list[float], **options: Any) -> Agreement:
    one = manifest(len(before))
    return agreement(one, rollouts(before), one, rollouts(after, "another"), **options)


@pytest.mark.parametrize("rewards", [[1.0], [0.0], [0.5, 1.0], [0.0, 1.0] * 20])
def test_identical_rollouts_agree_however_few(rewards: list[float]) -> None:
    one = manifest(len(rewards))
    found = agreement(one, rollouts(rewards), one, rollouts(rewards))
    assert (found.verdict, found.identical, found.needed) == ("agrees", len(rewards), None)
    other = [*rollouts(rewards)]
    for change in ({"metrics": {"x": 1.0}}, {"stop_reason": "truncated"}, {"info": {"x": 1}}, {"index": 1}):
        other[0] = rollouts(rewards)[0].model_copy(update=change)
        assert agreement(one, rollouts(rewards), one, other).identical == 0


def test_seconds_and_tokens_are_ignored_in_comparisons() -> None:
    one = manifest(1)
    (rollout,) = rollouts([1.0])
    other = rollout.model_copy(update={"seconds": 9.0, "usage": Usage(completion_tokens=9)})
    assert agreement(one, [rollout], one, [other]).verdict == "agrees"


def test_a_rollout_that_failed_in_one_run_makes_agreement_inconclusive() -> None:
    one = manifest(2)
    failed = Failure(boundary="model", type="Timeout", message="late")
    other = rollouts([1.0, 1.0])
    other[1] = other[1].model_copy(update={"failure": failed, "reward": None})
    found = agreement(one, rollouts([1.0, 1.0]), one, other)
    assert (found.verdict, found.unshared, found.needed) == ("inconclusive", 1, None)
    found = agreement(one, other, one, other)
    assert (found.verdict, found.identical) == ("agrees", 1)


@settings(max_examples=20)  # with 100, it takes 7 s
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30),
    st.sampled_from([0.02, 0.1, 0.3]),
)
@example([(0.0, 5e-324)], 0.02)
def test_agreement_needs_enough_examples(pairs: list[tuple[float, float]], margin: float) -> None:
    """The same differences, repeated until there are enough, give a verdict."""
    before, after = zip(*pairs, strict=True)
    found = compared([*before], [*after], margin=margin)
    if found.verdict != "inconclusive" or found.needed is None or found.needed > 3000:
        assert found.verdict != "inconclusive" or found.needed is None or found.needed > len(pairs)
        return
    assert found.needed > len(pairs)
    times = -(-found.needed // len(pairs)) + 1
    assert compared([*before] * times, [*after] * times, margin=margin).verdict != "inconclusive"


def test_equal_rewards_on_many_examples_agree_and_on_a_few_show_nothing() -> None:
    many = compared([0.0, 1.0] * 50, [0.0, 1.0] * 50)
    assert (many.verdict, many.difference, many.examples, many.margin) == ("agrees", 0.0, 100, 0.1)
    assert many.low is not None
    assert -0.1 < many.low < 0 < many.high < 0.1
    assert compared([0.0, 1.0] * 5, [0.0, 1.0] * 5).verdict == "inconclusive"
    one = compared([1.0], [1.0])
    assert (one.verdict, one.low, one.high, one.needed) == ("inconclusive", None, None, 29)
    assert compared([1.0] * 28, [1.0] * 28).verdict == "inconclusive"
    assert compared([1.0] * 29, [1.0] * 29).verdict == "agrees"


def test_a_clear_difference_is_reported() -> None:
    found = compared([0.0] * 40, [0.0, 1.0] * 20)
    assert (found.verdict, found.difference) == ("differs", 0.5)
    assert "difference +0.5000, 90% interval [+0.3" in found.told


def test_a_certain_difference_within_the_margin_agrees() -> None:
    before = [n / 1000 for n in range(200)]
    after = [value + 0.01 + 0.001 * (-1) ** n for n, value in enumerate(before)]
    found = compared(before, after)
    assert found.p_value is not None
    assert found.p_value < 1e-6
    assert found.verdict == "agrees"
    assert compared(before, after, margin=0.005).verdict == "differs"


def test_the_margin_is_a_share_of_the_reward_range() -> None:
    one = manifest(100, weight=-4.0)
    found = agreement(one, rollouts([0.0] * 100), one, rollouts([0.1] * 100))
    assert found.margin == pytest.approx(0.4)


@pytest.mark.full
@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.9, 1.0), (0.2, 0.0, 0.13)])
def test_agreement_is_found_and_rarely_claimed_at_the_margin(shift: float, least: float, most: float) -> None:
    """At a true difference of the margin itself the test errs in 5% of runs; with none it has power."""
    draw = random.Random(5)
    said = 0
    for _ in range(120):
        before = [float(draw.random() < 0.5) for _ in range(200)]
        after = [float(draw.random() < 0.5 + shift) for _ in range(200)]
        said += compared(before, after, margin=0.2).verdict == "agrees"
    assert least <= said / 120 <= most


def test_differences_between_manifests_are_named() -> None:
    one, other = manifest(30), manifest(30, seed=4, model=ModelPin(name="big", kind="OpenAIClient"))
    found = agreement(one, rollouts([1.0] * 30), other, rollouts([1.0] * 30))
    assert found.differing == ["model.name", "seed"]


@pytest.mark.parametrize(
    ("here", "there", "differing"),
    [
        ({"weights_sha256": "a" * 64}, {}, ["model.weights_sha256"]),
        ({}, {"weights_sha256": "a" * 64}, ["model.weights_sha256"]),
        ({"weights_sha256": "a" * 64}, {"weights_sha256": "b" * 64}, ["model.weights_sha256"]),
        ({"weights_sha256": "a" * 64}, {"weights_sha256": "a" * 64}, []),
        (
            {"chat_template_sha256": "a" * 64},
            {"chat_template_sha256": "b" * 64},
            ["model.chat_template_sha256"],
        ),
        ({"chat_template_sha256": "a" * 64}, {}, []),
    ],
)
def test_weights_that_only_one_run_states_and_other_templates_are_named(
    here: dict[str, str], there: dict[str, str], differing: list[str]
) -> None:
    one, other = (
        manifest(30, model=ModelPin(name="tiny", kind="OpenAIClient", **pin)) for pin in (here, there)
    )
    found = agreement(one, rollouts([1.0] * 30), other, rollouts([1.0] * 30))
    assert found.differing == differing


def test_examples_scored_in_one_run_make_agreement_inconclusive() -> None:
    one = manifest(60)
    found = agreement(one, rollouts([1.0] * 60), one, rollouts([1.0] * 59))
    assert (found.verdict, found.unshared) == ("inconclusive", 1)


def test_incomparable_runs_are_rejected() -> None:
    one = manifest(3)
    with pytest.raises(RunError, match="share no scored example"):
        agreement(one, rollouts([1.0] * 3), one, [])
    with pytest.raises(ConfigError, match="margin must be positive"):
        compared([1.0], [1.0], margin=0)
