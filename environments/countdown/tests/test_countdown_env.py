"""How an expression is read, and games that have a solution."""

from __future__ import annotations

from fractions import Fraction

import pytest
from countdown import load_environment, value_of
from countdown.players import solve
from hypothesis import given
from hypothesis import strategies as st
from wander import ScriptedClient


def test_expressions_have_exact_values():
    assert value_of("(3 + 4) * 25") == (Fraction(175), {3: 1, 4: 1, 25: 1})
    assert value_of("1 / 3 * 3")[0] == 1
    assert value_of("7 - 7 - 7")[0] == -7


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "3 +",
            "-3",
            "2 ** 3",
            "7 % 2",
            "8 // 2",
            "3.0 + 1",
            "True + 1",
            "1 / 0",
            "(1, 2)",
            "3 = 3",
        ),
        *("__import__('os').getcwd()", "(" * 300 + "1" + ")" * 300, "1" + "+1" * 200, "9" * 5000, "[3][0]"),
    ],
)
def test_anything_else_has_none(text):
    assert value_of(text) is None


@given(st.text("0123459+-*/() .,x_'[]", max_size=60))
def test_no_text_raises(text):
    value_of(text)


def test_every_game_can_be_won():
    env = load_environment(num_examples=60)
    for example in env.dataset("train"):
        numbers, target = example.info["numbers"], example.info["target"]
        assert len(numbers) == 3 + example.stratum
        assert target not in numbers
        found = solve([(number, str(number)) for number in numbers], target)
        assert value_of(found)[0] == target


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        ("<answer>{target}</answer>", 0),
        ("<answer>{first} * {first}</answer>", 0),
        ("<answer>{first}</answer>", 1),
        ("<answer>{target} + {first} - {first}</answer>", 0),
        ("{first}", 0),
    ],
)
async def test_what_breaks_the_rules_earns_nothing(reply, valid):
    env = load_environment()
    example = next(each for each in env.dataset("eval") if len(set(each.info["numbers"])) == 3)
    said = reply.format(target=example.info["target"], first=example.info["numbers"][0])
    rollout = await env.rollout(ScriptedClient([said]), example)
    assert (rollout.reward, rollout.metrics["valid"]) == (0.0, valid)
