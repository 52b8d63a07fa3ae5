"""Lakes, ways, and that Gymnasium moves the player."""

from __future__ import annotations

import pytest
from gym_frozenlake import load_environment
from gym_frozenlake.players import expert, way
from wander import ScriptedClient
from wander.errors import ConfigError


async def played(env, replies, index=0, run_seed=0):
    return await env.rollout(ScriptedClient(replies), env.dataset("eval")[index], run_seed=run_seed)


def test_every_lake_can_be_crossed_and_is_of_one_split():
    env = load_environment(num_examples=60)
    lakes = {split: {each.answer for each in env.dataset(split)} for split in ("train", "eval")}
    assert lakes["train"].isdisjoint(lakes["eval"])
    for lake in lakes["train"] | lakes["eval"]:
        rows = lake.splitlines()
        assert (rows[0][0], rows[-1][-1]) == ("S", "G")
        assert len(way(rows)) >= 6


async def test_the_player_walks_on_the_examples_lake():
    env = load_environment()
    rollout = await played(env, expert)
    assert (rollout.reward, rollout.stop_reason) == (1.0, "game_over")
    assert rollout.metrics["steps"] == len(way(rollout.answer.splitlines()))
    first = rollout.prompt[-1]["content"]
    assert first == rollout.answer.replace("S", "P")
    assert rollout.completion[-1]["content"].endswith("You reached the goal.")


async def test_a_hole_ends_it_and_an_unknown_word_costs_a_turn():
    env = load_environment(max_turns=3)
    said = ["I go <action>west</action>", "right", "<action>up</action>"]
    rollout = await played(env, said)
    assert (rollout.reward, rollout.stop_reason, rollout.metrics["no_actions"]) == (
        0.0,
        "max_turns_reached",
        2,
    )
    assert rollout.completion[1]["content"].startswith("That is no action. Answer with `left`")
    lake = next(each for each in env.dataset("eval").examples(0, 50) if each.answer.splitlines()[0][1] == "H")
    fallen = await played(env, ["<action>Right</action>"], index=lake.index)
    assert (fallen.reward, fallen.stop_reason) == (0.0, "game_over")
    assert "You fell into a hole." in fallen.completion[-1]["content"]


async def test_slippery_ice_follows_the_seed():
    env = load_environment(slippery=True, frozen=0.9)
    walks = []
    for run_seed in (0, 0, 1, 2):
        rollout = await played(env, ["<action>down</action>"] * 20, run_seed=run_seed)
        walks.append([each["content"] for each in rollout.completion if each["role"] == "user"])
    assert walks[0] == walks[1]
    assert walks[0] not in walks[2:]


def test_arguments_out_of_range():
    with pytest.raises(ConfigError, match="`size` 2"):
        load_environment(size=2)
