"""The tools, and questions that take one to three of their calls."""

from __future__ import annotations

import json
from math import prod

import pytest
from math_tools import calculate, load_environment, prime_factors
from math_tools.players import careless
from wander import ScriptedClient
from wander.clients import ModelRequest
from wander.errors import ConfigError, ModelError


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


@pytest.mark.parametrize("n", [2, 97, 360, 9991, 10**8])
def test_factors_multiply_to_the_number(n):
    factors = prime_factors(n)
    assert prod(factors) == n
    assert all(factor % other for factor in factors for other in range(2, min(factor, 100)))


def test_tools_refuse_what_would_take_long():
    for wrong in (1, 10**8 + 1):
        with pytest.raises(ValueError, match="from 2"):
            prime_factors(wrong)
    with pytest.raises(ValueError, match="numbers go"):
        calculate(10**13, "*", 2)


async def test_wrong_calls_come_back_as_messages_and_earn_nothing():
    env = load_environment()
    replies = [
        call("calculate", a=1, operation="//", b=0),
        call("calculate", a=1, operation="**", b=9),
        call("eval", code="1"),
        call("prime_factors", n="many"),
        "<answer>1</answer>",
    ]
    rollout = await env.rollout(ScriptedClient(replies), env.dataset("eval")[0])
    assert rollout.failure is None
    assert (rollout.reward, rollout.metrics["tool_errors"]) == (0.0, 4.0)


async def test_a_right_answer_counts_however_it_was_found():
    env = load_environment()
    example = env.dataset("eval")[2]
    client = ScriptedClient([f"<answer>{int(example.answer):,}</answer>"])
    assert (await env.rollout(client, example)).reward == 1.0
    assert (
        await env.rollout(ScriptedClient([f"<answer>1, {example.answer}</answer>"]), example)
    ).reward == 0.0


def test_digits_are_bounded():
    with pytest.raises(ConfigError, match="`digits` 7"):
        load_environment(digits=7)


def test_numbers_up_to_the_largest():
    questions = [
        each.prompt[-1]["content"] for each in load_environment(largest=9, levels=1).dataset("train")
    ]
    numbers = {int(word.strip("?")) for question in questions for word in question.split()[2::2]}
    assert numbers == set(range(2, 10))
    with pytest.raises(ConfigError, match="no `largest` under 9"):
        load_environment(largest=8)


def test_the_careless_player_adds_as_often_as_it_is_told():
    question = [{"role": "user", "content": "What is 7 * 6?"}]
    request = ModelRequest(rollout_id="1", turn=0, messages=question, seed=1)
    drawn = [careless(probability)(request)["tool_calls"][0]["function"] for probability in (0.0, 1.0)]
    assert [json.loads(each["arguments"])["operation"] for each in drawn] == ["*", "+"]
    with pytest.raises(ModelError, match="between 0 and 1"):
        careless(2)
