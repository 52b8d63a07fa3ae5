"""The score of an order, and lists that grow."""

from __future__ import annotations

import pytest
from alphabet_sort import SURNAMES, load_environment, order_score
from alphabet_sort.players import expert, written
from hypothesis import given
from hypothesis import strategies as st
from wander import ScriptedClient
from wander.errors import ConfigError


@given(st.permutations("abcdef"))
def test_only_the_right_order_scores_one(said):
    score = order_score(list(said), list("abcdef"))
    assert (score == 1.0) == (said == list("abcdef"))
    assert 0.0 <= score <= 1.0


def test_other_names_and_reversed_lists_score_nothing():
    expected = list("abcd")
    for said in ("abc", "abcdd", "abcde", "dcba", ""):
        assert order_score(list(said), expected) == 0.0
    assert order_score(list("abdc"), expected) == pytest.approx(2 / 3)


async def test_every_turn_counts():
    env = load_environment()
    example = env.dataset("eval")[2]
    client = ScriptedClient(lambda request: expert(request) if request.turn < 2 else written(["Ada Abbott"]))
    rollout = await env.rollout(client, example)
    assert rollout.reward == pytest.approx(2 / 3)
    assert rollout.metrics["exact"] == 0.0
    assert len(rollout.turns) == 3


async def test_names_in_the_order_they_came_earn_little():
    env = load_environment(turns=1, names=8)
    rewards = []
    for example in env.dataset("eval").examples(0, 40):
        client = ScriptedClient(
            lambda request: written(request.messages[-1]["content"].replace("- ", "").splitlines()[1:])
        )
        rewards.append((await env.rollout(client, example)).reward)
    assert sum(rewards) / 40 < 0.25


def test_surnames_are_unique_and_enough():
    assert len(set(SURNAMES)) == len(SURNAMES)
    with pytest.raises(ConfigError, match="names in all"):
        load_environment(turns=30, names=4)
