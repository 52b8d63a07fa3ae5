"""What perfect play comes to, and that nothing but looking at the payoffs earns anything."""

from __future__ import annotations

from statistics import mean

import pytest
from two_levers import load_environment
from two_levers.bandit import pairs, solve
from two_levers.players import optimal, planner, pull, random, repeating, win_stay
from wander import ScriptedClient
from wander.errors import ConfigError


async def mean_reward(player, count, **arguments):
    env = load_environment(**arguments)
    examples = env.dataset("eval").examples(0, count)
    return mean([(await env.rollout(ScriptedClient(player), each)).reward for each in examples])


def test_the_solution_is_that_of_small_bandits_by_hand():
    """One pull is blind. The second stays where the first was paid, which is right nine times in ten."""
    assert pairs(0.8) == [(0.1, 0.9)]
    assert solve(1, (0.8,)).optimum == pytest.approx(0.0)
    assert solve(2, (0.8,)).optimum == pytest.approx((0 + 0.9 - 0.1) / 2)


async def test_looking_pays_and_nothing_else_does():
    scores = [await mean_reward(player, 150) for player in (optimal, win_stay, random, repeating)]
    assert scores[0] > scores[1] + 0.1 > 0.7
    assert scores[0] == pytest.approx(1.0, abs=0.1)
    assert all(abs(score) < 0.2 for score in scores[2:])


async def test_other_arguments_have_a_perfect_player_too():
    assert await mean_reward(planner(4, (0.8,)), 150, pulls=4, gaps=[0.8]) == pytest.approx(1.0, abs=0.15)


async def test_a_turn_without_a_lever_is_lost():
    env = load_environment(pulls=3)
    example = env.dataset("eval")[0]
    replies = ["left", pull("middle"), pull("left") + pull("right")]
    rollout = await env.rollout(ScriptedClient(replies), example)
    assert rollout.reward < 0
    assert rollout.completion[1]["content"] == "no lever"


async def test_rollouts_that_pull_alike_are_paid_alike():
    env = load_environment()
    example = env.dataset("eval")[0]
    rollouts = [await env.rollout(ScriptedClient([pull("left")] * 10), example) for _ in range(2)]
    assert rollouts[0].completion == rollouts[1].completion
    assert len({one["content"] for one in rollouts[0].completion[1::2]}) <= 2


def test_arguments_that_make_no_sense_are_refused():
    for arguments in ({"pulls": 0}, {"gaps": []}, {"gaps": [0.9]}, {"gaps": [0.0]}):
        with pytest.raises(ConfigError, match="gaps"):
            load_environment(**arguments)
