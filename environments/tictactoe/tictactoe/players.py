"""Scripted players, to compare a model with and to learn from.

Each is a function from a model request to a reply, so `ScriptedClient(optimal)` plays it, and so does
`--model scripted:tictactoe.players:optimal` on the command line. What a player thinks is true of its move.
"""

from __future__ import annotations

from collections.abc import Callable

from wander.clients import ModelRequest
from wander.errors import ModelError
from wander.parsers import message_text
from wander.seeding import derived_rng

from tictactoe.game import LINES, best_moves, free_cells, placed, read_board, winner

Player = Callable[[ModelRequest], str]

THOUGHTS = {
    "win": ("win at {}", "{} wins", "{} makes three"),
    "block": ("block {}", "O wins at {}, block", "stop O at {}"),
    "fork": ("fork at {}", "{} makes two threats"),
    "threat": ("threat at {}", "{} makes two in line"),
    "center": ("take center {}", "center {}"),
    "corner": ("take corner {}", "corner {}"),
    "edge": ("take edge {}", "edge {}"),
}


def teacher(random_move_prob: float = 0.0, seed: int = 0) -> Player:
    """Return a player that makes a random move with that probability and a best one otherwise.

    Its choices depend only on the request's seed and on `seed`.
    """
    if not 0 <= random_move_prob <= 1:
        raise ModelError(f"`random_move_prob` must be between 0 and 1, got {random_move_prob}")

    def play(request: ModelRequest) -> str:
        board = read_board(message_text(request.messages[-1]))
        if board is None or not free_cells(board):
            raise ModelError("the last message shows no tic-tac-toe board with a free cell")
        rng = derived_rng("tictactoe player", seed, request.seed)
        careless = rng.random() < random_move_prob
        move = rng.choice(free_cells(board) if careless else best_moves(board, "X"))
        thought = rng.choice(THOUGHTS[purpose(board, move)]).format(move)
        return f"<think>{thought}</think><move>{move}</move>"

    return play


def purpose(board: str, move: int) -> str:
    """Return what a move of X does: the first of win, block, fork, threat that holds, else where it is."""
    after = placed(board, move, "X")
    if winner(after) == "X":
        return "win"
    if winner(placed(board, move, "O")) == "O":
        return "block"
    threats = sum(sorted(after[cell] for cell in line) == [".", "X", "X"] for line in LINES if move in line)
    if threats:
        return "fork" if threats > 1 else "threat"
    return "center" if move == 4 else "edge" if move % 2 else "corner"


optimal_player = optimal = teacher(0.0)
"""Makes a best move, any of them with equal chance."""

random_player = random = teacher(1.0)
"""Makes a random move."""

careless_player = careless = teacher(0.3)
"""Makes a random move three times in ten: a teacher that a student can outgrow."""
