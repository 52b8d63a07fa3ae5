"""The comparison, and guesses that are none."""

from __future__ import annotations

from itertools import product

import pytest
from mastermind import load_environment
from mastermind.players import compared
from wander import ScriptedClient
from wander.errors import ConfigError


def test_comparisons():
    assert compared("1122", "1334") == (1, 0)
    assert compared("1345", "1334") == (2, 1)
    assert compared("4321", "1234") == (0, 4)
    for a, b in product(["1123", "3211", "1111"], repeat=2):
        assert compared(a, b) == compared(b, a)
        assert (compared(a, b)[0] == 4) == (a == b)


async def played(replies, **arguments):
    env = load_environment(**arguments)
    example = env.dataset("eval")[0]
    return await env.rollout(ScriptedClient(replies(example.answer)), example)


async def test_the_last_guess_counts_and_what_is_no_guess_costs_a_turn():
    no_guesses = ["", "<guess>7777</guess>", "<guess>12345</guess>", "<guess>one</guess>"]
    rollout = await played(lambda code: [*no_guesses, f"<guess>{', '.join(code)}</guess>"], max_turns=5)
    assert (rollout.reward, rollout.metrics["guesses"], rollout.stop_reason) == (0.6, 5.0, "broken")
    assert rollout.completion[1]["content"] == "That is not a guess of 4 digits from 1 to 6."


async def test_a_list_of_all_codes_is_no_guess():
    spam = " ".join("".join(code) for code in product("123456", repeat=4))
    assert (await played(lambda code: [f"<guess>{spam}</guess>"] * 10)).reward == 0.0


async def test_the_same_guess_for_ever_earns_little():
    rollout = await played(lambda code: ["<guess>1111</guess>"] * 10)
    assert rollout.reward <= 0.2
    assert rollout.stop_reason == "max_turns_reached"


def test_codes_are_of_one_split():
    env = load_environment(num_examples=500)
    train, held_out = ({each.answer for each in env.dataset(split)} for split in ("train", "eval"))
    assert train.isdisjoint(held_out)
    with pytest.raises(ConfigError, match="`symbols` 2"):
        load_environment(symbols=2)
