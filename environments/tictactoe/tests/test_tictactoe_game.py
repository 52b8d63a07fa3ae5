"""The rules, and perfect play proved over every line of the game."""

from __future__ import annotations

import pytest
from tictactoe.game import (
    EMPTY,
    best_moves,
    free_cells,
    is_over,
    other,
    placed,
    read_board,
    shown,
    value,
    winner,
)


def reachable() -> dict[str, str]:
    """Every unfinished board, with the mark that is to move, from both starting sides."""
    boards: dict[str, str] = {}
    waiting = [(EMPTY, "X"), (EMPTY, "O")]
    seen = set()
    while waiting:
        board, mark = waiting.pop()
        if (board, mark) in seen or is_over(board):
            continue
        seen.add((board, mark))
        boards[board] = mark
        waiting += [(placed(board, cell, mark), other(mark)) for cell in free_cells(board)]
    return boards


BOARDS = reachable()


def results(board: str, mark: str, perfect: str) -> set[str | None]:
    """All results of a game in which `perfect` plays any of its best moves and the other side anything."""
    if is_over(board):
        return {winner(board)}
    moves = best_moves(board, mark) if mark == perfect else free_cells(board)
    return set().union(*(results(placed(board, cell, mark), other(mark), perfect) for cell in moves))


@pytest.mark.parametrize("starts", ["X", "O"])
@pytest.mark.parametrize("perfect", ["X", "O"])
def test_a_perfect_player_loses_no_line(starts, perfect):
    assert results(EMPTY, starts, perfect) == {perfect, None}


def test_perfect_play_of_both_is_always_a_draw():
    def only_best(board, mark):
        if is_over(board):
            return {winner(board)}
        moves = best_moves(board, mark)
        return set().union(*(only_best(placed(board, cell, mark), other(mark)) for cell in moves))

    assert only_best(EMPTY, "X") == only_best(EMPTY, "O") == {None}
    assert best_moves(EMPTY, "X") == tuple(range(9))


def test_every_board_has_best_moves_among_the_free_cells():
    assert len(BOARDS) > 4000
    for board, mark in BOARDS.items():
        moves = best_moves(board, mark)
        assert moves
        assert set(moves) <= set(free_cells(board))
        after = {cell: -value(placed(board, cell, mark), other(mark)) for cell in free_cells(board)}
        assert set(moves) == {cell for cell, worth in after.items() if worth == max(after.values())}


def test_a_win_at_hand_is_always_taken():
    for board, mark in BOARDS.items():
        wins = tuple(cell for cell in free_cells(board) if winner(placed(board, cell, mark)) == mark)
        if wins:
            assert best_moves(board, mark) == wins


def wins_at_once(board: str, mark: str) -> bool:
    return any(winner(placed(board, cell, mark)) == mark for cell in free_cells(board))


def test_a_lost_position_is_defended_as_long_as_possible():
    defended = 0
    for board, mark in BOARDS.items():
        holds = {c for c in free_cells(board) if not wins_at_once(placed(board, c, mark), other(mark))}
        if value(board, mark) < 0 and 0 < len(holds) < len(free_cells(board)):
            assert set(best_moves(board, mark)) <= holds
            defended += 1
    assert defended > 10


def test_lines_and_full_boards_end_the_game():
    assert winner("XXX......") == winner("X..X..X..") == winner("X...X...X") == "X"
    assert winner("..O.O.O..") == "O"
    assert winner(EMPTY) is None
    assert is_over("XOXXOOOXX")
    assert not is_over("XX.......")


def test_a_board_is_shown_in_three_lines_and_read_back():
    assert shown("X...O...X") == "X 1 2\n3 O 5\n6 7 X"
    for board in BOARDS:
        assert read_board(shown(board)) == board
        assert read_board(f"Invalid move.\n{shown(board)}") == board


@pytest.mark.parametrize("text", ["", "no board", "0 1 2\n3 4 5", "0 1 2 3 4 5 6 7 8", "0 1 2\n3 4 9\n6 7 8"])
def test_a_text_without_a_board_shows_none(text):
    assert read_board(text) is None


def test_the_last_board_of_a_text_counts():
    assert read_board(f"{shown(EMPTY)}\nnow\n{shown('X........')}") == "X........"
