"""The environment: rewards, invalid moves, the opponent, strata."""

from __future__ import annotations

import pytest
from tictactoe import REFERENCE_SCORES, is_well_formed, load_environment
from tictactoe.game import EMPTY, best_moves, free_cells, is_over, read_board, winner
from tictactoe.players import optimal, random
from wander import ScriptedClient
from wander import load_environment as load_by_name
from wander.errors import ConfigError


def say(move: object, thought: str = "hm") -> str:
    return f"<think>{thought}</think><move>{move}</move>"


def empty_start(env):
    return next(example for example in env.dataset("eval") if example.info["board"] == EMPTY)


async def game(moves, replies=(), **arguments):
    """Play the model's moves against an opponent whose moves are given too."""
    env = load_environment(**arguments)
    answers = iter(replies)
    env.opponent_move = lambda board, state: next(answers)
    texts = [text if isinstance(text, str) else say(text) for text in moves]
    rollout = await env.rollout(ScriptedClient(texts), empty_start(env))
    assert rollout.failure is None, rollout.failure
    return rollout


@pytest.mark.parametrize(
    ("moves", "replies", "reward", "result"),
    [
        ([0, 1, 2], [3, 4], 1.2, "won"),
        ([4, 0, 5, 7, 2], [1, 8, 3, 6], 0.7, "drawn"),
        ([0, 1, 8], [2, 4, 6], 0.2, "lost"),
        ([0, 0, 1, 2], [3, 4], 1.1, "won"),
        ([0, 9, 9, 1, 2], [3, 4], 1.1, "won"),
        ([0, "<move>1</move>", 2], [3, 4], 1 + 0.2 * 2 / 3, "won"),
        (["<move>0</move>", "<move>1</move>", "<move>2</move>"], [3, 4], 1.0, "won"),
        ([0, "what?", 1, 2], [3, 4], 1 + 0.2 * 3 / 4 - 0.1, "won"),
    ],
)
async def test_the_table_of_rewards(moves, replies, reward, result):
    rollout = await game(moves, replies)
    assert rollout.reward == pytest.approx(reward)
    assert rollout.metrics[result] == 1.0
    assert sum(rollout.metrics[each] for each in ("won", "drawn", "lost")) == 1.0
    assert rollout.metrics["turns"] == len(moves)
    assert rollout.stop_reason == "game_over"
    said = {"won": "You win.", "drawn": "Draw.", "lost": "You lose."}[result]
    assert rollout.completion[-1]["content"].startswith(f"{said}\n")


async def test_metrics_and_weights():
    rollout = await game([0, 0, "x", 1, 2], [3, 4])
    assert rollout.metrics == {
        "outcome": 1.0,
        "format": 0.8,
        "invalid_move_penalty": -0.1,
        "won": 1.0,
        "drawn": 0.0,
        "lost": 0.0,
        "invalid_moves": 2.0,
        "turns": 5.0,
    }
    weights = {each.name: each.weight for each in load_environment().info.reward_functions}
    assert {name: weight for name, weight in weights.items() if weight} == {
        "outcome": 1.0,
        "format": 0.2,
        "invalid_move_penalty": 1.0,
    }
    assert set(weights) == set(rollout.metrics)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "<move></move>",
        "<move>9</move>",
        "<move>-1</move>",
        "<move>44</move>",
        "<move>4 4</move>",
        "<move>four</move>",
        "<move>４</move>",
        "<move>4",
        "</move>4<move>",
        "<MOVE>4</MOVE>",
        say(0),
    ],
)
async def test_an_invalid_move_costs_the_turn_but_not_the_game(text):
    rollout = await game([0, text, 1, 2], [3, 4])
    assert rollout.completion[3] == {"role": "user", "content": "Invalid move.\nX 1 2\nO 4 5\n6 7 8"}
    assert (rollout.metrics["won"], rollout.metrics["invalid_moves"]) == (1.0, 1.0)
    assert rollout.metrics["invalid_move_penalty"] == -0.1


@pytest.mark.parametrize(
    "text", ["<move> 1 </move>", "<move>\n1\n</move>", "<move>9</move> no, <move>1</move>"]
)
async def test_the_last_move_tag_counts_and_spaces_do_not(text):
    rollout = await game([0, text, 2], [3, 4])
    assert (rollout.metrics["won"], rollout.metrics["invalid_moves"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (say(4), True),
        (f"Well. {say(4)}\n", True),
        ("<think></think><move></move>", True),
        ("<move>4</move><think>hm</think>", False),
        ("<think>hm<move>4</move></think>", False),
        ("<think>hm</think><move>4</move><move>5</move>", False),
        ("<think>hm</think>4", False),
        ("", False),
    ],
)
def test_good_form_is_each_tag_once_and_in_order(text, good):
    assert is_well_formed(text) is good


@pytest.mark.parametrize(("text", "reward"), [("no idea", -0.1), (say(9), 0.1)])
async def test_a_game_that_runs_out_of_turns_scores_zero(text, reward):
    rollout = await game([text] * 9)
    assert (rollout.stop_reason, len(rollout.turns)) == ("max_turns_reached", 8)
    assert rollout.metrics["outcome"] == 0.0
    assert [rollout.metrics[each] for each in ("won", "drawn", "lost")] == [0.0, 0.0, 0.0]
    assert rollout.reward == pytest.approx(reward)


async def test_max_turns_may_be_changed():
    assert len((await game([0, 8], [4, 3], max_turns=2)).turns) == 2


def states(env, count=300):
    return [env.init_state(example, run_seed=1) for example in env.dataset("eval").examples(0, count)]


@pytest.mark.parametrize("board", [EMPTY, "X........", "X...O...X", "X.O.X...."])
def test_an_optimal_opponent_plays_every_best_move_and_no_other(board):
    env = load_environment(max_random_move_prob=0.0)
    assert {env.opponent_move(board, state) for state in states(env)} == set(best_moves(board, "O"))


def test_a_random_opponent_plays_every_free_cell():
    env = load_environment(min_random_move_prob=1.0)
    board = "X...O...X"
    assert {env.opponent_move(board, state) for state in states(env)} == set(free_cells(board))


def test_an_opponent_in_between_errs_as_often_as_its_example_says():
    env = load_environment(num_examples=600, min_random_move_prob=0.5, max_random_move_prob=0.5)
    board = "OO.XX...."  # only 2 wins at once; a random move finds it one time in five
    wrong = sum(env.opponent_move(board, state) != 2 for state in states(env, 600)) / 600
    assert 0.33 < wrong < 0.47


def test_a_board_gets_one_reply_whatever_the_rollout():
    env = load_environment()
    example = env.dataset("train")[0]
    boards = ["X........", "X...O...X", "XO..X...."]
    replies = {
        tuple(env.opponent_move(board, env.init_state(example, index=index, run_seed=4)) for board in boards)
        for index in range(8)
    }
    assert len(replies) == 1
    # What was asked before does not matter either.
    state = env.init_state(example, run_seed=4)
    assert [env.opponent_move(board, state) for board in reversed(boards)][::-1] == list(replies.pop())


async def test_two_rollouts_of_one_group_meet_the_same_opponent():
    env = load_environment(min_random_move_prob=1.0)
    example = empty_start(env)
    client = ScriptedClient([say(cell) for cell in (4, 0, 8, 1, 2, 3, 5, 6, 7)])
    first, second = [await env.rollout(client, example, index=index) for index in (0, 1)]
    assert first.completion == second.completion
    others = [(await env.rollout(client, example, run_seed=seed)).completion for seed in range(1, 6)]
    assert any(other != first.completion for other in others)


async def test_no_board_leaks_into_the_next_game():
    env = load_environment()
    example = empty_start(env)
    for _ in range(2):
        rollout = await env.rollout(ScriptedClient([say(0), say(0)]), example)
        board = read_board(rollout.completion[1]["content"])
        assert board is not None
        assert (board.count("X"), board.count("O")) == (1, 1)
        assert example.info["board"] == EMPTY


def test_both_sides_start_about_as_often_and_o_opens_anywhere():
    openings = [example.info["board"] for example in load_environment().dataset("eval")]
    assert 400 < openings.count(EMPTY) < 600
    assert {board.index("O") for board in openings if board != EMPTY} == set(range(9))
    for example in load_environment(num_examples=20).dataset("train"):
        assert read_board(example.prompt[-1]["content"]) == example.info["board"]
        assert [message["role"] for message in example.prompt] == ["system", "user"]


def test_difficulty_is_drawn_within_the_stratum():
    env = load_environment(num_examples=60, min_random_move_prob=0.2, max_random_move_prob=0.7, num_groups=5)
    assert env.info.strata == 5
    for index, example in enumerate(env.dataset("train")):
        assert example.stratum == index % 5
        low = 0.2 + 0.1 * example.stratum
        assert low - 1e-9 <= example.info["random_move_prob"] <= low + 0.1 + 1e-9
    assert len({example.info["random_move_prob"] for example in env.dataset("train")}) == 60


def test_equal_arguments_give_equal_bytes_and_other_seeds_other_games():
    def whole(**arguments):
        env = load_environment(num_examples=50, **arguments)
        return [[each.model_dump_json() for each in env.dataset(split)] for split in ("train", "eval")]

    assert whole() == whole() == whole(seed=0)
    assert whole(seed=1) != whole()
    train, evaluation = whole()
    assert not {each.split('"seed":')[1][:20] for each in train} & {
        each.split('"seed":')[1][:20] for each in evaluation
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_random_move_prob": 0.8, "max_random_move_prob": 0.2},
        {"min_random_move_prob": -0.1},
        {"max_random_move_prob": 1.1},
        {"num_groups": 0},
        {"num_examples": 0},
        {"max_turns": 0},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ConfigError):
        load_environment(**arguments)


@pytest.mark.parametrize(("name", "player"), [("optimal", optimal), ("random", random)])
@pytest.mark.parametrize(("opponent", "probability"), [("random", 1.0), ("optimal", 0.0)])
async def test_the_reference_scores_are_what_comes_out(name, player, opponent, probability):
    env = load_by_name("tictactoe", min_random_move_prob=probability, max_random_move_prob=probability)
    client = ScriptedClient(player)
    rollouts = [await env.rollout(client, example) for example in env.dataset("eval")]
    mean = sum(rollout.reward for rollout in rollouts) / len(rollouts)
    assert mean == pytest.approx(REFERENCE_SCORES[f"{name} player, {opponent} opponent"], abs=0.0006)
    if name == "optimal":
        assert not any(rollout.metrics["lost"] for rollout in rollouts)
    if opponent == "optimal":
        assert not any(rollout.metrics["won"] for rollout in rollouts)
    for rollout in rollouts[:50]:
        board = read_board(rollout.completion[-1]["content"])
        assert board is not None
        assert (winner(board) == "X") == (rollout.metrics["won"] == 1.0)


def test_games_begin_where_random_moves_lead_to():
    dataset = load_environment(num_examples=300, random_moves=4).dataset("train")
    boards = [dataset[index].info["board"] for index in range(300)]
    assert {board.count(".") for board in boards} == set(range(1, 10))
    assert all(board.count("O") - board.count("X") in (0, 1) and not is_over(board) for board in boards)
    with pytest.raises(ConfigError, match="`random_moves`"):
        load_environment(random_moves=5)
