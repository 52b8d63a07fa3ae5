"""The records, and final answers with and without looking."""

from __future__ import annotations

import re

import pytest
from long_context import load_environment
from wander import ScriptedClient


def test_the_text_is_as_long_as_asked_for_and_holds_the_answer_where_it_should():
    env = load_environment(num_examples=6)
    for example in env.dataset("eval"):
        context = example.columns["context"]
        assert len(context) > 100_000
        assert len(re.findall(r"^note: ", context, re.MULTILINE)) == 20
        if example.stratum == 0:
            assert context.count(f" is {example.answer}\n") + context.endswith(f" is {example.answer}") == 1


@pytest.mark.parametrize("reply", ["FINAL()", "FINAL(context)", "FINAL(1 2 3 4 5 6 7 8 9 10 11 12)"])
async def test_guesses_without_looking_earn_nothing(reply):
    env = load_environment(num_examples=3, chars=2000)
    for example in env.dataset("eval"):
        assert (await env.rollout(ScriptedClient([reply]), example)).reward == 0.0


async def test_a_printed_answer_counts_once_it_is_final():
    env = load_environment(num_examples=1, chars=2000)
    example = env.dataset("eval")[0]
    station = re.findall(r"station (\w+)", example.prompt[-1]["content"])[0]
    look = f"```repl\nprint([line for line in context.splitlines() if 'station {station} is' in line])\n```"
    rollout = await env.rollout(ScriptedClient([look, f"FINAL({example.answer.upper()}.)"]), example)
    assert (rollout.reward, rollout.metrics["repl_calls"]) == (1.0, 1.0)
