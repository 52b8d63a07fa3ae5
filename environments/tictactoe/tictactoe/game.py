"""The rules of tic-tac-toe and its exact solution.

A board is nine characters, row by row: `X`, `O`, or `.` for a free cell.
"""

from __future__ import annotations

import re
from functools import cache

EMPTY = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
SHOWN_ROW = re.compile(r"[0-8XO] [0-8XO] [0-8XO]")


@cache
def free_cells(board: str) -> tuple[int, ...]:
    """Return the free cells, ascending."""
    return tuple(cell for cell, mark in enumerate(board) if mark == ".")


def placed(board: str, cell: int, mark: str) -> str:
    """Return the board with one more mark."""
    return f"{board[:cell]}{mark}{board[cell + 1 :]}"


@cache
def winner(board: str) -> str | None:
    """Return the mark that has a line, or None."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None


@cache
def is_over(board: str) -> bool:
    """Return whether somebody has won or no cell is free."""
    return "." not in board or winner(board) is not None


def seen_as_x(board: str, mark: str) -> str:
    """Return the board with the marks changed over, unless the mark is X."""
    return board if mark == "X" else board.translate(str.maketrans("XO", "OX"))


def other(mark: str) -> str:
    """Return the opponent's mark."""
    return "O" if mark == "X" else "X"


@cache
def value(board: str, mark: str) -> int:
    """Return what the position is worth to `mark`, who is to move, when both play perfectly.

    A win is worth more the sooner it comes and a loss costs more, since every free cell left counts one.
    """
    if winner(board) is not None:
        return -(1 + board.count("."))
    if "." not in board:
        return 0
    return max(-value(placed(board, cell, mark), other(mark)) for cell in free_cells(board))


@cache
def best_moves(board: str, mark: str) -> tuple[int, ...]:
    """Return all equally good moves of `mark`, ascending."""
    best = value(board, mark)
    moves = free_cells(board)
    return tuple(cell for cell in moves if -value(placed(board, cell, mark), other(mark)) == best)


@cache
def shown(board: str) -> str:
    """Return the board as three lines, free cells by their number."""
    cells = [str(cell) if mark == "." else mark for cell, mark in enumerate(board)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def read_board(text: str) -> str | None:
    """Return the board that a text shows in its last three rows of cells, or None."""
    rows = [line for line in text.splitlines() if SHOWN_ROW.fullmatch(line.strip())]
    cells = " ".join(rows[-3:]).split()
    return "".join(cell if cell in "XO" else "." for cell in cells) if len(cells) == 9 else None
