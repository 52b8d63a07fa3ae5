"""Every line of the game: optimal play loses none, careless play some, and those listed are losses."""

from __future__ import annotations

import pytest
from tictactoe import load_environment
from tictactoe.game import EMPTY, best_moves, free_cells, placed, read_board, winner
from tictactoe.players import careless, optimal
from wander import ScriptedClient
from wander.clients.choices import line_of
from wander.environment import LocalEnvironment
from wander.evals import WalkPlan, walk
from wander.parsers import message_text
from wander.wire import EnvironmentPin


async def walked(player, max_lines=100_000, **arguments):
    handle = LocalEnvironment(load_environment(**arguments))
    pin = EnvironmentPin(name="tictactoe", info=handle.info)
    return await walk(handle, ScriptedClient(player), WalkPlan(max_lines=max_lines), None, pin)


async def test_the_openings_are_both_sides_and_every_first_move():
    openings = await LocalEnvironment(load_environment()).openings()
    assert [each.info["board"] for each in openings] == [EMPTY, *(placed(EMPTY, c, "O") for c in range(9))]
    assert len({each.example_id for each in openings}) == 10


async def test_optimal_play_loses_no_line():
    result = await walked(optimal)
    assert result.count.clean
    assert result.count.invalid == 0
    assert result.count.won + result.count.drawn == result.count.lines > 400
    assert all(count.lines for count in result.by_opening.values())


async def test_careless_play_loses_lines_that_replay_to_losses():
    result = await walked(careless)
    assert len(result.bad) == result.count.lost > 0
    parse = load_environment().read_move
    for rollout in result.bad:
        start = read_board(message_text(rollout.prompt[-1]))
        replies = iter(line_of(rollout)["choices"])
        board = start
        for turn in rollout.turns:
            board = placed(board, parse(turn.message), "X")
            assert winner(board) is None
            board = placed(board, next(replies), "O")
        assert winner(board) == "O"
        assert next(replies, None) is None


@pytest.mark.parametrize("most_lines", [1000, pytest.param(100_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("most_careless", [0.0, 0.1])
async def test_the_opponent_may_make_every_move_that_it_could_draw(most_careless, most_lines):
    # A careless opponent has tens of thousands of lines. The full run walks all of them.
    result = await walked(careless, max_lines=most_lines, max_random_move_prob=most_careless)
    assert result.bad
    for rollout in result.bad:
        board = read_board(message_text(rollout.prompt[-1]))
        parse = load_environment().read_move
        line = line_of(rollout)
        for turn, reply, options in zip(rollout.turns, line["choices"], line["options"], strict=True):
            board = placed(board, parse(turn.message), "X")
            assert options == list(free_cells(board) if most_careless else best_moves(board, "O"))
            board = placed(board, reply, "O")
