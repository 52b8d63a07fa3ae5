"""O as a player of its own: each sees itself as X, and each is scored for itself."""

from __future__ import annotations

import pytest
from tictactoe import load_environment
from tictactoe.game import EMPTY, read_board
from tictactoe.players import optimal, random
from wander import ScriptedClient
from wander.clients.players import PlayersClient
from wander.errors import ConfigError


def say(cell):
    return f"<think>go</think><move>{cell}</move>"


async def game(*moves):
    env = load_environment(opponent="player")
    example = next(each for each in env.dataset("eval") if each.info["board"] == EMPTY)
    rollout = await env.rollout(
        ScriptedClient([each if isinstance(each, str) else say(each) for each in moves]), example
    )
    assert rollout.failure is None, rollout.failure
    return rollout


async def test_each_sees_itself_as_x():
    rollout = await game(0, 4, 1, 3, 2)
    shown = [(each["player"], each["content"]) for each in rollout.completion if each["role"] == "user"]
    assert shown == [
        ("O", "O 1 2\n3 4 5\n6 7 8"),
        ("X", "X 1 2\n3 O 5\n6 7 8"),
        ("O", "O O 2\n3 X 5\n6 7 8"),
        ("X", "X X 2\nO O 5\n6 7 8"),
        ("X", "You win.\nX X X\nO O 5\n6 7 8"),
        ("O", "You lose.\nO O O\nX X 5\n6 7 8"),
    ]
    assert [each.get("player") for each in rollout.prompt] == [None, "X"]
    assert rollout.rewards == {"X": 1.2, "O": 0.2}
    assert rollout.reward == 1.2
    assert (rollout.metrics["won"], rollout.metrics["turns"], rollout.stop_reason) == (1.0, 3.0, "game_over")


async def test_o_may_win_and_an_invalid_move_is_its_own():
    rollout = await game(0, 4, 4, 1, 2, "what?", 8, 6)
    assert [turn.player for turn in rollout.turns] == ["X", "O", "X", "X", "O", "X", "X", "O"]
    assert rollout.metrics["lost"] == 1.0
    assert rollout.rewards["O"] == pytest.approx(1.2)
    assert rollout.rewards["X"] == pytest.approx(0.2 * 4 / 5 - 0.1)


async def test_the_players_of_the_package_play_either_side():
    env = load_environment(opponent="player", num_examples=40)
    examples = list(env.dataset("eval"))
    perfect = ScriptedClient(optimal)
    drawn = [await env.rollout(perfect, example) for example in examples]
    assert all(each.metrics["drawn"] == 1.0 for each in drawn)
    beaten = PlayersClient(ScriptedClient(random), {"O": "scripted:tictactoe.players:optimal"})
    rollouts = [await env.rollout(beaten, example) for example in examples]
    assert not any(each.metrics["won"] for each in rollouts)
    assert sum(each.metrics["lost"] for each in rollouts) > 20
    assert read_board(rollouts[0].completion[-1]["content"]) is not None


def test_an_opponent_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="`nobody`"):
        load_environment(opponent="nobody")
