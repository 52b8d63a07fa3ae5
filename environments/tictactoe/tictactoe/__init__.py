"""Tic-tac-toe: the model plays X against an opponent that is anything from random to optimal."""

from __future__ import annotations

import re
from typing import Any, Literal

from wander import Example, Messages, MultiTurnEnv, Parser, ProceduralRows, Rubric, State, XMLParser, stop
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed
from wander.types import GridView

from tictactoe.game import EMPTY, best_moves, free_cells, is_over, other, placed, seen_as_x, shown, winner
from tictactoe.players import Player, optimal

__all__ = ["TicTacToeEnv", "load_environment"]

SYSTEM_PROMPT = (
    "You play tic-tac-toe as X. Free cells show their number. "
    "Think briefly, then choose a free cell. Answer in this form:\n"
    "<think>your reason</think><move>number</move>"
)
CELLS = {str(cell): cell for cell in range(9)}
TAGS = ["<think>", "</think>", "<move>", "</move>"]
ANY_TAG = re.compile("|".join(TAGS))
INVALID_MOVE_PENALTY = -0.1
MOST_RANDOM_MOVES = 4
"""Moves of each player before the game; after them, X has the last free cell."""
SAID = {"won": "You win.", "lost": "You lose.", "drawn": "Draw."}
REFERENCE_SCORES = {
    "optimal player, random opponent": 1.139,
    "optimal player, optimal opponent": 0.7,
    "random player, random opponent": 0.689,
    "random player, optimal opponent": 0.258,
}
"""Mean rewards of `tictactoe.players` over the 1,000 default eval examples, run seed 0."""


class TicTacToeEnv(MultiTurnEnv):
    """The game; an opponent's move depends only on the run's seed, the example's seed and the board.

    `most_careless` is the greatest probability of a random move; with 0 the opponent makes best moves only.
    With `players` the moves of O are a player's, who sees the board with the marks changed over: each is X to
    itself, so one policy can play both.
    """

    def __init__(self, *, most_careless: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.most_careless = most_careless

    def openings(self) -> list[dict[str, Any]] | None:
        """Return the empty board, and the boards after every first move that O may make.

        None if O is a player, because the environment does not make its choices.
        """
        if self.players:
            return None
        firsts = free_cells(EMPTY) if self.most_careless > 0 else best_moves(EMPTY, "O")
        boards = {"x-first": EMPTY, **{f"o-first-{cell}": placed(EMPTY, cell, "O") for cell in firsts}}
        return [
            {
                "example_id": name,
                "question": shown(board),
                "info": {"board": board, "random_move_prob": self.most_careless},
            }
            for name, board in boards.items()
        ]

    def setup_state(self, state: State) -> None:
        """Set up the board of the example, where O may have moved already."""
        state["board"] = state["info"]["board"]
        state["invalid_moves"] = {"X": 0, "O": 0}
        state["to_move"] = "X"
        if self.players:  # the rules are everybody's, the first board is X's
            state.prompt[-1]["player"] = "X"

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Play the move, and the reply of an opponent who is not a player. An invalid move costs the turn."""
        board, mark, move = state["board"], state["to_move"], self.read_move(messages[-1])
        if move not in free_cells(board):
            state["invalid_moves"][mark] += 1
            return [{"role": "user", "content": f"Invalid move.\n{as_seen_by(mark, board)}"}]
        board = placed(board, move, mark)
        if self.players:
            state["to_move"] = other(mark)
        elif not is_over(board):
            board = placed(board, self.opponent_move(board, state), "O")
        state["board"] = board
        if not is_over(board):
            return [{"role": "user", "content": as_seen_by(state["to_move"], board)}]
        state["final_env_response"] = [
            {"role": "user", "content": f"{SAID[str(result(board, each))]}\n{as_seen_by(each, board)}"}
            | ({"player": each} if self.players else {})
            for each in self.players or "X"
        ]
        return []

    def next_player(self, state: State) -> str:
        """Return the mark whose turn it is. It stays the same after an invalid move."""
        return str(state["to_move"])

    @stop
    def game_over(self, state: State) -> bool:
        """Return whether somebody has won or all cells are taken."""
        return is_over(state["board"])

    def gold(self, example: Example) -> Player:
        """Return the optimal player: it earns a high reward in every game."""
        return optimal

    def read_move(self, message: dict[str, Any]) -> int:
        """Return the cell that the last move tag names, or -1 if it names no cell."""
        said = self.parser.parse_answer([message])
        return CELLS.get(said, -1)

    def opponent_move(self, board: str, state: State) -> int:
        """Return a random free cell, with the example's probability, else one of the best moves."""
        careless, best = state["info"]["random_move_prob"], best_moves(board, "O")

        def drawn() -> int:
            rng = self.rng(state, "opponent", board)
            return rng.choice(free_cells(board) if rng.random() < careless else best)

        return self.choose(state, free_cells(board) if careless > 0 else best, drawn)


def as_seen_by(mark: str, board: str) -> str:
    """Return the board as a message shows it to the player of a mark, who is X to itself."""
    return shown(seen_as_x(board, mark))


def result(board: str, mark: str) -> str | None:
    """Return whether a mark has `won`, `lost` or `drawn`; None while the game continues."""
    if not is_over(board):
        return None
    return {mark: "won", None: "drawn"}.get(winner(board), "lost")


def outcome(state: State) -> float:
    """1 for a win, 0.5 for a draw, 0 for a loss or a game that ran out of turns."""
    return {"won": 1.0, "drawn": 0.5}.get(own_result(state) or "", 0.0)


def format(state: State, parser: Parser) -> float:
    """Share of turns that have each think and move tag once, in order."""
    texts = [parser.written(turn.message) for turn in state.turns]
    return sum(is_well_formed(text) for text in texts) / len(texts) if texts else 0.0


def invalid_move_penalty(state: State) -> float:
    """-0.1 for a game with any invalid move."""
    return INVALID_MOVE_PENALTY if invalid_moves(state) else 0.0


def won(state: State) -> bool:
    """Return whether the player has three in a line."""
    return own_result(state) == "won"


def drawn(state: State) -> bool:
    """Return whether the board is full without a line."""
    return own_result(state) == "drawn"


def lost(state: State) -> bool:
    """Return whether the other player has three in a line."""
    return own_result(state) == "lost"


def invalid_moves(state: State) -> int:
    """Return the number of turns that did not name a free cell."""
    return int(state["invalid_moves"][state.get("player", "X")])


def turns(state: State) -> int:
    """Return the number of the player's turns."""
    return len(state.turns)


def own_result(state: State) -> str | None:
    """Return how the game ended for the player whose reward is asked for: X, unless both are players."""
    return result(state["board"], state.get("player", "X"))


def is_well_formed(text: str) -> bool:
    """Return whether the text has each tag exactly once, in order."""
    return ANY_TAG.findall(text) == TAGS


def load_environment(
    num_examples: int = 1000,
    min_random_move_prob: float = 0.0,
    max_random_move_prob: float = 1.0,
    max_turns: int = 8,
    num_groups: int = 1,
    seed: int = 0,
    opponent: Literal["environment", "player"] = "environment",
    random_moves: int = 0,
    show_examples: int = 0,
) -> TicTacToeEnv:
    """Return the environment; the train and the eval split have `num_examples` different games each.

    Example i belongs to stratum i mod `num_groups`; its opponent plays a random move with a probability drawn
    from that stratum's equal slice of [`min_random_move_prob`, `max_random_move_prob`]. With
    `opponent="player"` the environment plays no moves: the run says who is asked for those of the player `O`.
    Up to `random_moves` moves of each are made at random before the game begins.
    """
    if opponent not in ("environment", "player"):
        raise ConfigError(f"`{opponent}` is not an opponent", hint='give "environment" or "player"')
    if not 0 <= min_random_move_prob <= max_random_move_prob <= 1:
        raise ConfigError(
            f"the random move probabilities {min_random_move_prob} to {max_random_move_prob} are not a range",
            hint="give 0 <= min_random_move_prob <= max_random_move_prob <= 1",
        )
    if num_groups < 1 or num_examples < 1:
        raise ConfigError(f"`num_groups` ({num_groups}) and `num_examples` ({num_examples}) must be positive")
    if not 0 <= random_moves <= MOST_RANDOM_MOVES:
        raise ConfigError(f"`random_moves` ({random_moves}) is not from 0 to {MOST_RANDOM_MOVES}")

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            example_seed = derived_seed("tictactoe", seed, split, index)
            stratum = index % num_groups
            share = (stratum + derived_rng(example_seed, "difficulty").random()) / num_groups
            careless = min_random_move_prob + share * (max_random_move_prob - min_random_move_prob)
            return opening_row(example_seed, stratum, careless, random_moves)

        return ProceduralRows(row_at, num_examples)

    return TicTacToeEnv(
        most_careless=max_random_move_prob,
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=2 * max_turns if opponent == "player" else max_turns,
        players=("X", "O") if opponent == "player" else (),
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["think", "move"], answer_field="move"),
        rubric=Rubric(
            [outcome, format, invalid_move_penalty, won, drawn, lost, invalid_moves, turns],
            [1.0, 0.2, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ),
        strata=num_groups,
        summary="Play tic-tac-toe as X against an opponent that is anything from random to optimal.",
        tags=("game", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES if opponent == "environment" else {},
        reward_bounds=(INVALID_MOVE_PENALTY, 1.2),
        view=GridView(columns=3, cells={"X": "✕", "O": "◯", **{str(cell): "" for cell in range(9)}}),
    )


def opening_row(
    example_seed: int, stratum: int, random_move_prob: float, random_moves: int
) -> dict[str, Any]:
    """Return the row of one game; a coin decides whether O has made the first move."""
    rng = derived_rng(example_seed, "opening")
    # Every first move of a perfect player leads to a draw, so all first moves are best moves.
    board = placed(EMPTY, rng.choice(best_moves(EMPTY, "O")), "O") if rng.random() < 0.5 else EMPTY
    for _ in range(rng.randint(0, random_moves) if random_moves else 0):
        cells = rng.sample(free_cells(board), 2)
        after = placed(placed(board, cells[0], "X"), cells[1], "O")
        if is_over(after):
            break
        board = after
    return {
        "question": shown(board),
        "info": {"board": board, "random_move_prob": random_move_prob},
        "seed": example_seed,
        "stratum": stratum,
    }
