"""Reads boards and tables from messages, in the format that the environment declares in its view."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from wander.types import GridView, TableView

from wander_hub.web.text import shorten

_MOST_ROWS = 32
_READ = 20_000
"""Characters at the end of a message that are searched for a state."""
_LONGEST = 60
"""Maximum number of characters of a value in a table."""

View = GridView | TableView
_Line = tuple[tuple[str, ...], list[str]]
"""The words of a line, with the keys if the line is a JSON object."""


class Words(NamedTuple):
    """A state as the message shows it."""

    heading: tuple[str, ...] | None
    """Column names of a table, possibly empty. None for a board."""
    rows: list[list[str]]


@dataclass(frozen=True)
class Cell:
    """One cell as a page draws it."""

    drawn: str
    changed: bool = False
    """Whether the cell differs from the previous state."""


@dataclass(frozen=True)
class Grid:
    """A state as a page draws it."""

    heading: tuple[str, ...] | None
    rows: list[list[Cell]]


def read_state(view: View, text: str) -> Words | None:
    """Return the last consecutive lines that are rows of a state, or None."""
    lines = text[-_READ:].splitlines()
    if isinstance(view, TableView):
        return _read_table(view, lines)

    def read(line: str) -> _Line | None:
        words = line.strip().split(view.separator) if view.separator else list(line.strip())
        return ((), words) if len(words) == view.columns and all(one in view.cells for one in words) else None

    found = [words for _, words in _last_in_a_row(lines, read)]
    return Words(None, found[-_MOST_ROWS:]) if found else None


def _read_table(view: TableView, lines: Iterable[str]) -> Words | None:
    found = _last_in_a_row(lines, _values)
    if not found:
        return None
    keys, rows = found[0][0], [values for _, values in found]
    heading = keys or (tuple(rows.pop(0)) if view.heading and len(rows) > 1 else ())
    return Words(heading, rows[:_MOST_ROWS])


def _values(line: str) -> _Line | None:
    """Return the keys (empty for an array) and the values of a line that is a JSON array or object."""
    try:
        found = json.loads(line) if line.lstrip()[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        return None
    if not found:
        return None
    values = [
        shorten(_as_text(one), _LONGEST) for one in (found.values() if isinstance(found, dict) else found)
    ]
    return tuple(found) if isinstance(found, dict) else (), values


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _last_in_a_row(lines: Iterable[str], read: Callable[[str], _Line | None]) -> list[_Line]:
    """Return the last consecutive lines that `read` accepts and that have the same keys and width."""
    found: list[_Line] = []
    after_other = True
    for line in lines:
        one = read(line)
        if one is None:
            after_other = True
            continue
        if after_other or (one[0], len(one[1])) != (found[0][0], len(found[0][1])):
            found = []
        found.append(one)
        after_other = False
    return found


def draw(view: View, words: Words, before: Words | None) -> Grid:
    """Return the cells of a state. Mark the cells that differ from a previous state of the same size."""
    is_comparable = before is not None and (before.heading, len(before.rows)) == (
        words.heading,
        len(words.rows),
    )
    known = before.rows if before is not None and is_comparable else words.rows
    drawn = view.cells if isinstance(view, GridView) else {}
    rows = [
        [Cell(drawn.get(word, word), word != old) for word, old in zip(row, old_row, strict=True)]
        for row, old_row in zip(words.rows, known, strict=True)
    ]
    return Grid(words.heading, rows)
