"""Reads the grids that messages show of a state, as the environment says (`wander.types.GridView`)."""

from __future__ import annotations

from dataclasses import dataclass

from wander.types import GridView

_MOST_ROWS = 32
_READ = 20_000
"""Characters at the end of a message in which a grid is looked for."""


@dataclass(frozen=True)
class Cell:
    """One cell as a page draws it."""

    drawn: str
    changed: bool = False
    """It was another one in the grid before."""


Grid = list[list[Cell]]


def read_grid(view: GridView, text: str) -> list[list[str]]:
    """Return the words of the last lines in a row that are rows of the grid; nothing where there are none."""
    found: list[list[str]] = []
    after_other = True
    for line in text[-_READ:].splitlines():
        words = line.strip().split(view.separator) if view.separator else list(line.strip())
        if len(words) == view.columns and all(word in view.cells for word in words):
            found = [words] if after_other else [*found, words]
            after_other = False
        else:
            after_other = True
    return found[-_MOST_ROWS:]


def draw(view: GridView, words: list[list[str]], before: list[list[str]] | None) -> Grid:
    """Return the cells of a grid, those marked that differ from the grid before where that had as many."""
    known = before if before is not None and len(before) == len(words) else words
    return [
        [Cell(view.cells[word], word != old) for word, old in zip(row, old_row, strict=True)]
        for row, old_row in zip(words, known, strict=True)
    ]
