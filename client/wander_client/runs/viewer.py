"""Read the rollouts of a run on a terminal: a list, the rollouts themselves, and a line to search with.

`Viewer` is what the keys do and what the screen shows, without a terminal;
`wander_client.runs.screen` has that.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from wander_client.errors import ClientError
from wander_client.runs.text import ROLLOUT_COLUMNS, StyledLine, rollout_lines, rollout_row
from wander_client.terminal.escape import one_line, visible

if TYPE_CHECKING:
    from wander.types import Rollout
    from wander.wire import RolloutRow

    from wander_client.runs.found import FoundRun

HELP = """\
j k, arrows      down, up                  space b, page keys   a page down, up
g G              first, last               enter, l             open the rollout
h, esc           back to the list          ] [                  next, previous rollout
/                search all messages       n N                  next, previous match
f F              next, previous failure    e                    only failed rollouts, or all
r                by reward: `<0.5`, `>=1`, `none`; empty for all
s                order: number, reward, turns, tokens, seconds  ?  this help     q  quit"""
ORDERS = ("number", "reward", "turns", "completion_tokens", "seconds")
_BOUND = re.compile(r"\s*(>=|<=|==|=|<|>)\s*(-?\d+(?:\.\d*)?|-?\.\d+)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


class Viewer:
    """The state of the viewer. `press` takes a key's name, `lines` says what the screen shows."""

    def __init__(self, found: FoundRun, *, failed: bool = False, order: str = "number") -> None:
        self._found = found
        self._rows = [*found.rows(), *found.sample_rows()]
        self._shown: list[RolloutRow] = []
        self._cursor = 0
        self._failed = failed
        self._bound = ""
        self._order = order.removeprefix("-")
        self._falling = order.startswith("-")
        self._matches: set[tuple[str, int, int | None]] | None = None
        self._query = ""
        self._open: list[StyledLine] | None = None
        self._folded: tuple[list[StyledLine] | None, int, list[StyledLine]] | None = None
        self._scroll = 0
        self._page = 10
        self._width = 80
        self._note = ""
        self._asking: tuple[str, Callable[[str], None]] | None = None
        self._typed = ""
        self.done = False
        self._keys: dict[str, Callable[[], None]] = {
            **dict.fromkeys(("j", "down"), lambda: self._move(1)),
            **dict.fromkeys(("k", "up"), lambda: self._move(-1)),
            **dict.fromkeys((" ", "pagedown"), lambda: self._move(self._page)),
            **dict.fromkeys(("b", "pageup"), lambda: self._move(-self._page)),
            **dict.fromkeys(("g", "home"), lambda: self._move(-len(self._shown) - self._length())),
            **dict.fromkeys(("G", "end"), lambda: self._move(len(self._shown) + self._length())),
            **dict.fromkeys(("enter", "l", "right"), self._show),
            **dict.fromkeys(("h", "escape", "backspace", "left"), self._back),
            "]": lambda: self._neighbour(1),
            "[": lambda: self._neighbour(-1),
            "/": lambda: self._ask("search: ", self._search),
            "n": lambda: self._match(1),
            "N": lambda: self._match(-1),
            "f": lambda: self._failure(1),
            "F": lambda: self._failure(-1),
            "e": self._toggle_failed,
            "r": lambda: self._ask("reward: ", self._set_bound),
            "s": self._next_order,
            "?": self._help,
            "q": self._quit,
        }
        self._select()

    def press(self, key: str) -> None:
        """Do what a key means; others are passed over."""
        self._note = ""
        if self._asking is not None:
            self._type(key)
        elif action := self._keys.get(key):
            action()

    def lines(self, width: int, height: int) -> list[StyledLine]:
        """Return as many lines as the screen has, none wider than it; style `cursor` is the chosen row."""
        self._width, self._page = width, max(1, height - 3)
        head = self._list_head() if self._open is None else ""
        body = self._list_body() if self._open is None else self._text()[self._scroll :][: self._page + 1]
        lines: list[StyledLine] = [(head, "bold"), *body] if self._open is None else list(body)
        lines += [("", None)] * (height - 1 - len(lines))
        cut_to = [(_fitted(text, width), style) for text, style in lines[: height - 1]]
        return [*cut_to, (_fitted(self._status(), width), "dim")]

    # the list

    def _select(self) -> None:
        """Apply filters and order, and stay on the rollout that was chosen, if it is still there."""
        before = self._chosen.number if self._shown else None
        shown = [row for row in self._rows if self._takes(row)]
        present = [row for row in shown if getattr(row, self._order) is not None]
        absent = [row for row in shown if getattr(row, self._order) is None]
        present.sort(key=lambda row: getattr(row, self._order), reverse=self._falling)
        self._shown = [*present, *absent]
        numbers = [row.number for row in self._shown]
        self._cursor = numbers.index(before) if before in numbers else 0

    def _takes(self, row: RolloutRow) -> bool:
        if self._failed and row.failure is None:
            return False
        if self._bound == "none":
            return row.reward is None
        if bound := _BOUND.fullmatch(self._bound):
            return row.reward is not None and _COMPARE[bound[1]](row.reward, float(bound[2]))
        return True

    @property
    def _chosen(self) -> RolloutRow:
        return self._shown[self._cursor]

    def _list_head(self) -> str:
        return "  ".join(
            f"{name:<{width}}" for name, width in zip(ROLLOUT_COLUMNS, self._widths(), strict=True)
        )

    def _list_body(self) -> list[StyledLine]:
        if not self._shown:
            return [("no rollout is like that: `e` and `r` change what is shown", None)]
        top = min(max(0, self._cursor - self._page // 2), max(0, len(self._shown) - self._page))
        widths = self._widths()
        lines: list[StyledLine] = []
        for place, row in enumerate(self._shown[top : top + self._page], start=top):
            cells = ["" if cell is None else _cell(cell) for cell in rollout_row(row)]
            text = "  ".join(
                _fitted(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True)
            )
            style = "cursor" if place == self._cursor else "error" if row.failure else None
            lines.append((text, style))
        return lines

    def _widths(self) -> list[int]:
        example = min(24, max([7, *(len(row.example_id) for row in self._rows[:1000])]))
        index = 5 if all(row.step is None for row in self._rows) else 9
        fixed = [len(str(max(len(self._rows) - 1, 0))), example, index, 8, 5, 18]
        return [*fixed, max(11, self._width - sum(fixed) - 2 * len(fixed))]

    def _move(self, by: int) -> None:
        if self._open is not None:
            self._scroll = min(max(0, self._scroll + by), max(0, self._length() - self._page))
        else:
            self._cursor = min(max(0, self._cursor + by), max(0, len(self._shown) - 1))

    # one rollout

    def _show(self) -> None:
        if not self._shown:
            return
        try:
            rollout = self._found.rollout(self._chosen.number)
        except ClientError as error:
            self._note = str(error)
            return
        self._open, self._scroll = list(rollout_lines(self._chosen.number, rollout)), 0

    def _back(self) -> None:
        self._open = None

    def _neighbour(self, by: int) -> None:
        was_open, before = self._open is not None, self._cursor
        self._open = None
        self._move(by)
        if was_open and self._cursor != before:
            self._show()
        elif was_open:
            self._show()
            self._note = "there is no other rollout that way"

    def _text(self) -> list[StyledLine]:
        """Return the open rollout as lines of the screen's width; folded once, since it may be long."""
        if self._folded and self._folded[0] is self._open and self._folded[1] == self._width:
            return self._folded[2]
        text = [
            (piece, style)
            for text, style in self._open or []
            for line in visible(text).expandtabs(4).split("\n")
            for piece in _pieces(line, self._width)
        ]
        self._folded = (self._open, self._width, text)
        return text

    def _length(self) -> int:
        return len(self._text()) if self._open is not None else 0

    # searching and choosing

    def _search(self, query: str) -> None:
        self._query, self._matches = query, None
        if not query:
            return
        wanted = query.lower()
        if self._open is None:
            self._matches = {
                (*one.key, one.step) for one in self._found.rollouts() if wanted in _searched(one)
            }
        self._match(1, including=True)

    def _match(self, by: int, *, including: bool = False) -> None:
        if not self._query:
            self._note = "nothing was searched for yet: `/`"
        elif self._open is not None:
            texts = [self._query.lower() in text.lower() for text, _ in self._text()]
            self._scroll_to(_next(texts, self._scroll, by, including))
        else:
            if self._matches is None:
                self._search(self._query)
                return
            self._choose([self._is_match(row) for row in self._shown], by, including, f"`{self._query}`")

    def _is_match(self, row: RolloutRow) -> bool:
        return (row.example_id, row.index, row.step) in (self._matches or ())

    def _failure(self, by: int) -> None:
        was_open = self._open is not None
        self._open = None
        self._choose([row.failure is not None for row in self._shown], by, False, "a failure")
        if was_open:
            note = self._note
            self._show()
            self._note = note

    def _choose(self, fitting: list[bool], by: int, including: bool, what: str) -> None:
        found = _next(fitting, self._cursor, by, including)
        if found is None:
            self._note = f"no rollout with {what}"
            return
        self._cursor = found
        self._note = f"{sum(fitting)} with {what}"

    def _scroll_to(self, line: int | None) -> None:
        if line is None:
            self._note = f"no `{self._query}` here"
        else:
            self._scroll = line

    def _toggle_failed(self) -> None:
        self._failed = not self._failed
        self._open = None
        self._select()

    def _set_bound(self, text: str) -> None:
        if text and text != "none" and not _BOUND.fullmatch(text):
            self._note = f"`{text}` is no bound: write `<0.5`, `>=1` or `none`"
            return
        self._bound, self._open = text, None
        self._select()

    def _next_order(self) -> None:
        self._order, self._falling = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)], False
        self._open = None
        self._select()

    # the last line

    def _ask(self, question: str, then: Callable[[str], None]) -> None:
        self._asking, self._typed = (question, then), ""

    def _type(self, key: str) -> None:
        assert self._asking is not None
        if key == "enter":
            then, self._asking = self._asking[1], None
            then(self._typed.strip())
        elif key == "escape":
            self._asking = None
        elif key == "backspace":
            self._typed = self._typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typed += key

    def _status(self) -> str:
        if self._asking is not None:
            return f"{self._asking[0]}{self._typed}_"
        parts = [self._note] if self._note else []
        if self._open is not None:
            end = min(self._scroll + self._page + 1, self._length())
            parts.append(f"lines {self._scroll + 1} to {end} of {self._length()}")
        elif self._shown:
            parts.append(f"{self._cursor + 1} of {len(self._shown)}")
        parts += ["failed only"] if self._failed else []
        parts += [f"reward {self._bound}"] if self._bound else []
        parts += [f"by {self._order}"] if self._order != "number" else []
        return "  ".join([*parts, "? help  q quit"])

    def _help(self) -> None:
        self._open, self._scroll = [(HELP, None)], 0

    def _quit(self) -> None:
        self.done = True


def _next(fitting: Iterable[bool], place: int, by: int, including: bool) -> int | None:
    """Return the nearest fitting place in a direction, going round at the end; None where nothing fits."""
    places = [number for number, fits in enumerate(fitting) if fits]
    if not places:
        return None
    if including and place in places:
        return place
    if by > 0:
        return next((one for one in places if one > place), places[0])
    return next((one for one in reversed(places) if one < place), places[-1])


def _searched(rollout: Rollout) -> str:
    return "\n".join(text for text, _ in rollout_lines(0, rollout)).lower()


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))


def _fitted(text: str, width: int) -> str:
    """Return a text that takes at most so many columns of a terminal."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def _pieces(text: str, width: int) -> list[str]:
    from rich.cells import chop_cells

    return chop_cells(text, width) or [""]
