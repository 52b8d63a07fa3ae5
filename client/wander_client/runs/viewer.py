"""Read the rollouts of a run in the terminal: a list, the open rollout, and a search line.

Needs the extra `tui`. Texts of a run come from models and hubs: they reach the screen as `rich.text.Text`
that `visible` or `one_line` made safe, never as markup.
"""

from __future__ import annotations

import asyncio
import operator
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.events import Resize
from textual.widgets import DataTable, Input, RichLog, Static

from wander_client.errors import ClientError
from wander_client.runs.text import ROLLOUT_COLUMNS, StyledLine, rollout_lines, rollout_row, row_order
from wander_client.terminal.escape import one_line, visible
from wander_client.terminal.output import STYLES, cell_text, cut

if TYPE_CHECKING:
    from wander.wire import RolloutRow

    from wander_client.runs.found import FoundRun

ORDERS = ("number", "reward", "turns", "completion_tokens", "seconds")
MOST = 10_000
"""Largest number of rows that are kept and shown; a longer run shows the first rows in the chosen order."""
_EXAMPLE_WIDTH = 24
_BOUND = re.compile(r"\s*(>=|<=|==|=|<|>)\s*(-?\d+(?:\.\d*)?|-?\.\d+)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_KEYS = (
    ("j,down", "move(1)", "down"),
    ("k,up", "move(-1)", "up"),
    ("space,pagedown", "page(1)", "a page down"),
    ("b,pageup", "page(-1)", "a page up"),
    ("g,home", "end(-1)", "first"),
    ("G,end", "end(1)", "last"),
    ("enter,l,right", "read", "open the rollout"),
    ("h,backspace,left", "leave", "back to the list, as escape"),
    ("],[", "neighbor({})", "next, previous rollout"),
    ("/", "search", "search all messages"),
    ("n,N", "match({})", "next, previous match"),
    ("f,F", "failure({})", "next, previous failure"),
    ("e", "only_failed", "only failed rollouts, or all"),
    ("r", "bound", "by reward: `<0.5`, `>=1`, `none`; empty for all"),
    ("s", "order", "order: number, reward, turns, tokens, seconds"),
    ("?", "help", "this help"),
    ("q", "quit", "quit"),
)
"""Keys, actions and help texts; of two keys with `{}`, the second moves in the opposite direction."""


class RunViewer(App[bool]):
    """Shows the list of a run's rollouts and the open rollout; returns True after an interrupt."""

    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    DataTable, RichLog { height: 1fr; scrollbar-size: 0 0; background: ansi_default; }
    DataTable > .datatable--cursor { text-style: reverse; color: ansi_default; background: ansi_default; }
    Input { border: none; height: 1; padding: 0; }
    #status { height: 1; text-style: dim; }
    """
    # With priority, the app handles each key immediately, so the line is open before text after `/` arrives.
    BINDINGS: ClassVar = [
        *(
            Binding(key, action.format(by), priority=True)
            for keys, action, _ in (*_KEYS, ("escape", "dismiss", ""), ("ctrl+c", "interrupt", ""))
            for key, by in (zip(keys.split(","), (1, -1), strict=True) if "{}" in action else [(keys, 0)])
        )
    ]

    def __init__(self, found: FoundRun, *, failed: bool = False, order: str = "number") -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own colors
        self._found = found
        self._kept: list[RolloutRow] | None = None
        """All rows, unless there are too many to keep."""
        self._fitting = 0
        """Number of rows that match the filters."""
        self._shown: list[RolloutRow] = []
        self._failed = failed
        self._bound = ""
        self._order = order.removeprefix("-")
        self._falling = order.startswith("-")
        self._matches: set[tuple[str, int, int | None]] | None = None
        self._query = ""
        self._open: list[StyledLine] | None = None
        self._line = 0
        """Line of the open rollout where the next search starts."""
        self._answer: Callable[[str], None] = self._search
        """Function that receives the line the user types."""
        self._table: DataTable[Text] = DataTable(cursor_type="row")
        self._page = RichLog(wrap=True, auto_scroll=False, min_width=1)
        self._question = Input()
        self._status = Static(markup=False, id="status")

    def compose(self) -> ComposeResult:
        """Lay out the list, the page of the open rollout and the status line."""
        self._table.can_focus = self._page.can_focus = False  # keys belong to the viewer
        self._page.display = self._question.display = False
        yield from (self._table, self._page, self._question, self._status)

    def on_mount(self) -> None:
        """Fill the list, and let a signal end the app as a key does, which restores the terminal."""
        loop = asyncio.get_running_loop()
        if not self.is_headless:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.action_interrupt)
        self._select()

    def on_resize(self, _: Resize) -> None:
        """Wrap the open rollout to the new width."""
        self.call_after_refresh(self._draw)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow only these two keys' actions while a line is being typed."""
        return action in ("dismiss", "interrupt") or not self._question.display

    def action_interrupt(self) -> None:
        """End the viewer as Ctrl-C ends every command."""
        self.exit(True)

    # the list

    def _select(self) -> None:
        """Apply the filters and the order; keep the current rollout selected if it is still listed."""
        before, self._matches = self._chosen.number if self._shown else None, None
        self._shown = nsmallest(MOST, self._choose_rows(), row_order(self._order, falling=self._falling))
        self._table.clear(columns=True)
        self._table.add_columns(*ROLLOUT_COLUMNS)
        self._table.add_rows(_cells(row) for row in self._shown)
        numbers = [row.number for row in self._shown]
        self._go_to(numbers.index(before) if before in numbers else 0)
        self.action_leave()

    def _choose_rows(self) -> Iterator[RolloutRow]:
        """Yield the rows that match; a run with too many rows to keep is read again each time."""
        rows: Iterable[RolloutRow] | None = self._kept
        if rows is None:
            stream = chain(self._found.rows(), self._found.sample_rows())
            first = list(islice(stream, MOST + 1))
            self._kept = first if len(first) <= MOST else None
            rows = chain(first, stream)
        self._fitting = 0
        for row in rows:
            if self._takes(row):
                self._fitting += 1
                yield row

    def _takes(self, row: RolloutRow) -> bool:
        if self._failed and row.failure is None:
            return False
        if self._bound == "none":
            return row.reward is None
        if bound := _BOUND.fullmatch(self._bound):
            return row.reward is not None and _COMPARE[bound[1]](row.reward, float(bound[2]))
        return True

    @property
    def _cursor(self) -> int:
        return self._table.cursor_row

    @property
    def _chosen(self) -> RolloutRow:
        return self._shown[self._cursor]

    def _go_to(self, place: int) -> None:
        self._table.move_cursor(row=min(max(0, place), len(self._shown) - 1))

    def action_move(self, by: int) -> None:
        """Move by this many rows or lines."""
        if self._open is None:
            self._go_to(self._cursor + by)
        else:
            self._scroll_to(round(self._page.scroll_offset.y) + by)
        self._tell()

    def action_page(self, direction: int) -> None:
        """Move by this many pages."""
        self.action_move(direction * max(1, self.size.height - 3))

    def action_end(self, direction: int) -> None:
        """Move to the last row or line, or to the first."""
        self.action_move(direction * (len(self._shown) + len(self._page.lines)))

    # one rollout

    def action_read(self, note: str = "") -> None:
        """Open the selected rollout."""
        if not self._shown:
            return
        try:
            rollout = self._found.rollout(self._chosen.number)
        except ClientError as error:
            self._tell(str(error))
            return
        self._show(list(rollout_lines(self._chosen.number, rollout)), note)

    def action_help(self) -> None:
        """Show the help for all keys."""
        self._show([(f"{keys.replace(',', ' '):<26}{said}", None) for keys, _, said in _KEYS])

    def _show(self, lines: list[StyledLine], note: str = "") -> None:
        self._open = lines
        self._table.display, self._page.display = False, True
        self._draw()
        self._scroll_to(0)
        self.call_after_refresh(self._tell, note)  # the first page is folded once its size is known

    def _draw(self) -> None:
        """Write the open rollout, wrapped to the width, and highlight matches."""
        if self._open is not None:
            text = Text("\n", overflow="fold").join(
                Text(visible(line).expandtabs(4), STYLES.get(style or "", "")) for line, style in self._open
            )
            if self._query:
                text.highlight_words([self._query], "reverse", case_sensitive=False)
            self._page.clear()
            self._page.write(text, width=max(1, self.size.width), scroll_end=False)
        self._tell()

    def _scroll_to(self, line: int) -> None:
        self._page.scroll_to(y=line, animate=False, immediate=True)
        self._line = round(self._page.scroll_offset.y)

    def action_leave(self) -> None:
        """Go back to the list."""
        self._open = None
        self._table.display, self._page.display = True, False
        self._tell()

    def action_dismiss(self) -> None:
        """Close the question, or the rollout."""
        if self._question.display:
            self._close_question()
            self._tell()
        else:
            self.action_leave()

    def action_neighbor(self, by: int) -> None:
        """Move to the next rollout, and open it if a rollout was open."""
        before = self._cursor
        self._go_to(before + by)
        if self._open is not None:
            self.action_read("no more rollouts in this direction" if self._cursor == before else "")
        else:
            self._tell()

    # searching and choosing

    def action_search(self) -> None:
        """Ask for the text to search for."""
        self._ask("search", self._search)

    def _search(self, query: str) -> None:
        self._query, self._matches = query, None
        self._draw()
        if query:
            self.action_match(1, including=True)

    def action_match(self, by: int, including: bool = False) -> None:
        """Move to the next match: a line of the open rollout, or a rollout in the list."""
        if not self._query:
            self._tell("press `/` to search first")
        elif self._open is not None:
            fitting = [self._query.lower() in line.text.lower() for line in self._page.lines]
            line = _next(fitting, self._line, by, including)
            if line is not None:
                self._scroll_to(line)
                self._line = line
            self._tell(f"no `{self._query}` here" if line is None else "")
        else:
            if self._matches is None:
                self._matches, including = set(self._find_matches()), True
            found = [_key(row) in self._matches for row in self._shown]
            self._tell(self._choose(found, by, including, f"`{self._query}`"))

    def _find_matches(self) -> Iterator[tuple[str, int, int | None]]:
        """Yield the keys of the listed rollouts that contain the search text, until all are read."""
        wanted, left = self._query.lower(), {_key(row) for row in self._shown}
        for one in self._found.rollouts() if left else ():
            if (key := (*one.key, one.step)) in left:
                left.remove(key)
                if any(wanted in text.lower() for text, _ in rollout_lines(0, one)):
                    yield key
                if not left:
                    return

    def action_failure(self, by: int) -> None:
        """Move to the next failure, and open it if a rollout was open."""
        note = self._choose([row.failure is not None for row in self._shown], by, False, "a failure")
        if self._open is not None:
            self.action_read(note)
        else:
            self._tell(note)

    def _choose(self, fitting: list[bool], by: int, including: bool, what: str) -> str:
        """Move to the nearest matching row; return a status message."""
        found = _next(fitting, self._cursor, by, including)
        if found is None:
            return f"no rollout with {what} on this list"
        self._go_to(found)
        return f"{sum(fitting)} with {what}"

    def action_only_failed(self) -> None:
        """Switch between failed rollouts and all rollouts."""
        self._failed = not self._failed
        self._select()

    def action_bound(self) -> None:
        """Ask for the rewards to show."""
        self._ask("reward", self._set_bound)

    def _set_bound(self, text: str) -> None:
        if text and text != "none" and not _BOUND.fullmatch(text):
            self._tell(f"`{text}` is not a valid bound: write `<0.5`, `>=1` or `none`")
            return
        self._bound = text
        self._select()

    def action_order(self) -> None:
        """Switch to the next order."""
        self._order, self._falling = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)], False
        self._select()

    # the last line

    def _ask(self, question: str, then: Callable[[str], None]) -> None:
        self._answer = then
        self._question.value, self._question.display = "", True
        self.set_focus(self._question)
        self._status.update(f"{question}: enter accepts, escape cancels")

    def _close_question(self) -> None:
        self._question.display = False
        self.set_focus(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Handle the line that was typed."""
        self._close_question()
        self._answer(event.value.strip())
        # The layout without the question may be drawn with the last line left out (seen once under load).
        self.call_after_refresh(self._status.refresh)

    def _tell(self, note: str = "") -> None:
        parts = [one_line(note)] if note else []
        if self._open is not None:
            count, first = len(self._page.lines), round(self._page.scroll_offset.y)
            parts.append(f"lines {first + 1} to {min(first + self.size.height - 1, count)} of {count}")
        elif self._shown:
            more = f" (the first of {self._fitting:,})" if self._fitting > len(self._shown) else ""
            parts.append(f"{self._cursor + 1} of {len(self._shown)}{more}")
        else:
            parts.append("no rollout matches: `e` and `r` change the filters")
        parts += ["failed only"] if self._failed else []
        parts += [f"reward {self._bound}"] if self._bound else []
        parts += [f"by {self._order}"] if self._order != "number" else []
        self._status.update("  ".join([*parts, "? help  q quit"]))


def _key(row: RolloutRow) -> tuple[str, int, int | None]:
    return row.example_id, row.index, row.step


def _cells(row: RolloutRow) -> list[Text]:
    number, example, *others = (cell_text(cell) for cell in rollout_row(row))
    style = STYLES["error"] if row.failure else ""
    return [Text(cell, style, no_wrap=True) for cell in (number, cut(example, _EXAMPLE_WIDTH), *others)]


def _next(fitting: Iterable[bool], place: int, by: int, including: bool) -> int | None:
    """Return the nearest matching index in a direction, wrapping around; None if nothing matches."""
    places = [number for number, fits in enumerate(fitting) if fits]
    if including and place in places:
        return place
    ahead = [one for one in places if (one > place if by > 0 else one < place)] or places
    return None if not ahead else ahead[0] if by > 0 else ahead[-1]
