"""The scripted players: legal, varied, reproducible, and truthful about why they move."""

from __future__ import annotations

import re

import pytest
from tictactoe import is_well_formed
from tictactoe.game import LINES, best_moves, free_cells, is_over, placed, shown, winner
from tictactoe.players import optimal, optimal_player, purpose, random, random_player, teacher
from wander.clients import ModelRequest, scripted_client_from_spec
from wander.errors import ConfigError, ModelError

BOARDS = [".........", "....O....", "X...O....", "XX.OO....", "X.O.O....", "X...O...X", "XOXOO.X.."]


def request(board: str, seed: int = 0) -> ModelRequest:
    return ModelRequest(
        rollout_id="0/0", turn=0, messages=[{"role": "user", "content": shown(board)}], seed=seed
    )


def move(reply: str) -> int:
    found = re.fullmatch(r"<think>[^<>]{3,30}</think><move>([0-8])</move>", reply)
    assert found, reply
    return int(found[1])


@pytest.mark.parametrize("board", BOARDS)
def test_the_optimal_player_plays_every_best_move_and_no_other(board):
    played = {move(optimal(request(board, seed))) for seed in range(150)}
    assert played == set(best_moves(board, "X"))


@pytest.mark.parametrize("board", BOARDS)
def test_the_random_player_plays_every_free_cell(board):
    played = {move(random(request(board, seed))) for seed in range(150)}
    assert played == set(free_cells(board))


def test_a_teacher_errs_as_often_as_it_is_told_to():
    board = "XX.OO...."
    careful, careless = teacher(0.0), teacher(0.3)
    assert {move(careful(request(board, seed))) for seed in range(100)} == {2}
    wrong = sum(move(careless(request(board, seed))) != 2 for seed in range(500)) / 500
    assert 0.15 < wrong < 0.35  # 0.3 * 4/5 of the random moves miss the winning cell


def test_replies_depend_on_the_seeds_only():
    board = "....O...."
    assert optimal_player is optimal
    assert random_player is random
    assert random(request(board, 5)) == random(request(board, 5))
    assert len({random(request(board, seed)) for seed in range(30)}) > 8
    assert teacher(0.5, seed=1)(request(board, 5)) == teacher(0.5, seed=1)(request(board, 5))
    first, second = teacher(1.0, seed=1), teacher(1.0, seed=2)
    assert [first(request(board, s)) for s in range(9)] != [second(request(board, s)) for s in range(9)]


def test_replies_are_well_formed():
    replies = {random(request(board, seed)) for board in BOARDS for seed in range(20)}
    assert all(is_well_formed(reply) for reply in replies)
    assert len(replies) > 30


def two_in_line(board: str, cell: int) -> int:
    return sum(sorted(board[each] for each in line) == [".", "X", "X"] for line in LINES if cell in line)


@pytest.mark.parametrize("board", BOARDS)
def test_what_a_player_thinks_is_true(board):
    for cell in free_cells(board):
        why, after = purpose(board, cell), placed(board, cell, "X")
        wins, blocks = winner(after) == "X", winner(placed(board, cell, "O")) == "O"
        expected = (
            "win" if wins else "block" if blocks else ("", "threat", "fork")[min(2, two_in_line(after, cell))]
        )
        assert why == (expected or ("center" if cell == 4 else "edge" if cell in (1, 3, 5, 7) else "corner"))


def test_known_reasons():
    assert purpose("XX.OO....", 2) == "win"
    assert purpose("X...O..OX", 1) == "block"
    assert purpose("X...O...X", 2) == "fork"
    assert purpose(".........", 4) == "center"


def test_a_conversation_without_a_board_is_refused():
    with pytest.raises(ModelError, match="shows no tic-tac-toe board"):
        optimal(ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": "hello"}]))
    with pytest.raises(ModelError, match="with a free cell"):
        optimal(request("XOXXOOOXX"))
    assert is_over("XOXXOOOXX")


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_a_probability_is_one(probability):
    with pytest.raises(ModelError, match="between 0 and 1"):
        teacher(probability)


async def test_players_run_by_their_name():
    client = scripted_client_from_spec("scripted:tictactoe.players:optimal")
    assert client.model == "scripted:tictactoe.players:optimal"
    answer = await client.complete(request("XX.OO...."))
    assert move(answer.message["content"]) == 2
    noisy = scripted_client_from_spec("scripted:tictactoe.players:teacher?random_move_prob=1&seed=3")
    assert move((await noisy.complete(request("XX.OO...."))).message["content"]) in {2, 5, 6, 7, 8}
    with pytest.raises(ConfigError, match="unexpected keyword argument 'randomness'"):
        scripted_client_from_spec("scripted:tictactoe.players:teacher?randomness=1")
