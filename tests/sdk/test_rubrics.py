"""Reward functions get what they ask for by name, and only numbers count."""

from __future__ import annotations

import asyncio
import functools
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander import Parser, Rubric, ScriptedClient, SingleTurnEnv, XMLParser
from wander.errors import ConfigError, RubricError
from wander.rubrics.reward_function import RewardFunction
from wander.rubrics.score import check_reward

ROW = {"question": "2+2?", "answer": "4", "info": {"hint": "four"}, "level": 3, "prompt_id": "p"}


async def scored(rubric, reply="4", row=ROW, **arguments):
    env = SingleTurnEnv([row], rubric=rubric, **arguments)
    return await env.rollout(ScriptedClient([reply]), env.dataset()[0])


async def test_values_are_injected_by_name():
    seen = {}

    def look(prompt, completion, answer, state, info, parser, example, task, level, prompt_id):
        seen.update(locals())
        return 0.0

    parser = XMLParser(["answer"])
    rollout = await scored(Rubric([look]), parser=parser)
    assert rollout.failure is None
    assert seen["prompt"] == [{"role": "user", "content": "2+2?"}]
    assert seen["completion"] == [{"role": "assistant", "content": "4"}]
    assert (seen["answer"], seen["info"], seen["level"], seen["prompt_id"]) == ("4", {"hint": "four"}, 3, "p")
    assert seen["state"]["answer"] == "4"
    assert seen["parser"] is parser
    assert seen["example"].example_id == "0"
    assert seen["task"] == "default"


async def test_keyword_arguments_get_all_values_and_defaults_apply():
    seen = {}

    def everything(answer, missing="kept", **rest):
        seen.update(rest, missing=missing)
        return 1.0

    assert (await scored(Rubric([everything]))).reward == 1.0
    assert seen["missing"] == "kept"
    assert {"prompt", "completion", "state", "level", "example", "task", "parser", "info"} <= set(seen)


async def test_a_column_cannot_hide_a_value_of_the_rollout_but_may_name_the_task():
    def look(state, completion, task):
        assert completion[0]["content"] == "4"
        assert state["turns"]
        return float(task == "sums")

    row = ROW | {"state": "column", "completion": "column", "task": "sums"}
    assert (await scored(Rubric([look]), row=row)).reward == 1.0


async def test_an_unknown_argument_of_a_reward_function_is_named():
    def asks(completion, tempo):
        return 1.0

    rollout = await scored(Rubric([asks]))
    assert rollout.failure is not None
    assert "`asks` has a parameter `tempo`, which no rollout provides" in rollout.failure.message


async def test_every_kind_of_callable_can_be_a_reward_function():
    async def later(completion):
        await asyncio.sleep(0)
        return 1.0

    def scaled(factor, completion):
        return factor * len(completion)

    class Judge:
        def __call__(self, completion):
            return True

        def method(self, completion):
            return 0.25

    judge = Judge()
    rubric = Rubric([later, functools.partial(scaled, 0.5), judge, judge.method])
    rollout = await scored(rubric)
    assert rollout.failure is None
    assert rollout.metrics == {"later": 1.0, "scaled": 0.5, "Judge": 1.0, "method": 0.25}
    assert rollout.reward == 2.75


async def test_weights_sum_and_metrics_report_the_raw_value():
    def one():
        return 1

    def half():
        return 0.5

    def many():
        return 12

    rubric = Rubric([one], [0.5])
    rubric.add_reward_func(half, weight=-2)
    rubric.add_metric(many)
    rollout = await scored(rubric)
    assert rollout.reward == 0.5 - 1.0
    assert rollout.metrics == {"one": 1.0, "half": 0.5, "many": 12.0}
    assert rubric.weights == [0.5, -2.0, 0.0]
    assert rubric.funcs == [one, half, many]
    assert [(each.name, each.weight) for each in rubric.describe()] == [
        ("one", 0.5),
        ("half", -2.0),
        ("many", 0.0),
    ]


async def test_no_reward_function_means_reward_zero():
    assert (await scored(None)).reward == 0.0


@pytest.mark.parametrize(
    "value", [None, "1.0", [1.0], math.nan, math.inf, -math.inf, 1j, Decimal("NaN"), 10**400, object()]
)
async def test_only_finite_numbers_are_rewards(value):
    def odd():
        return value

    def fine():
        return 0.5

    rollout = await scored(Rubric([odd, fine]))
    assert rollout.failure is not None
    assert rollout.failure.boundary == "rubric"
    assert "reward function `odd` returned" in rollout.failure.message
    assert rollout.reward is None
    assert rollout.metrics == {"fine": 0.5}


@pytest.mark.parametrize(("value", "number"), [(True, 1.0), (3, 3.0), (Fraction(1, 4), 0.25), (-0.5, -0.5)])
def test_every_real_number_is_a_reward(value, number):
    assert check_reward(value, "f") == number


async def test_the_message_of_a_rubric_error_is_recorded():
    def judge():
        raise RubricError("the verdict is unreadable", retryable=True)

    failure = (await scored(Rubric([judge]))).failure
    assert failure is not None
    assert (failure.message, failure.retryable) == ("the verdict is unreadable", True)


async def test_the_parser_of_the_rubric_overrides_that_of_the_environment():
    own = Parser()
    seen = []

    def look(parser):
        seen.append(parser)
        return 1.0

    await scored(Rubric([look], parser=own), parser=XMLParser(["a"]))
    assert seen == [own]


def test_names_are_unique():
    def same():
        return 1.0

    rubric = Rubric([same])
    with pytest.raises(ConfigError, match="already has a reward function `same`"):
        rubric.add_metric(same)
    with pytest.raises(ConfigError, match="`<lambda>`"):
        Rubric([lambda: 1.0, lambda: 2.0])


def test_weights_match_the_functions():
    def f():
        return 1.0

    with pytest.raises(ConfigError, match="1 reward functions was given 2 weights"):
        Rubric([f], [1.0, 2.0])
    for weight in (math.nan, math.inf, "1", True, None):
        with pytest.raises(ConfigError, match="weight of `f`"):
            Rubric([f], [weight])


def test_a_reward_function_must_be_callable_by_name():
    with pytest.raises(ConfigError, match="must be callable"):
        Rubric([5])

    def positional(completion, /):
        return 1.0

    with pytest.raises(ConfigError, match="positional-only parameter `completion`"):
        Rubric([positional])


def test_the_signature_is_inspected_once():
    def f(completion, level=2, **rest):
        return 1.0

    function = RewardFunction.of(f, 0.5)
    assert (function.required, function.optional, function.takes_all) == (("completion",), ("level",), True)
    assert function.weight == 0.5


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), max_size=6))
def test_the_reward_is_the_weighted_sum_in_order(pairs):
    def named(index, value):
        def function():
            return value

        function.__name__ = f"f{index}"
        return function

    functions = [named(index, value) for index, (value, _) in enumerate(pairs)]
    weights = [weight for _, weight in pairs]
    rollout = asyncio.run(scored(Rubric(functions, weights)))
    total = 0.0
    for value, weight in pairs:
        total += weight * value
    assert rollout.reward == total
    assert list(rollout.metrics.values()) == [value for value, _ in pairs]
