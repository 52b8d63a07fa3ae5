"""Output of commands: results on stdout, everything else on stderr, in one of four modes.

human  color and live progress, on a terminal
plain  no color, TSV tables, one progress line per 10%; used if stdout is not a terminal, and for agents
json   one object on stdout: {"schema": "wander.<command>/1", "data": ..., "warnings": [...]}
quiet  only results and errors
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from wander_client.errors import ClientError, Unavailable, UsageError
from wander_client.terminal.escape import escape_json, one_line, visible

if TYPE_CHECKING:
    from pydantic import BaseModel

Mode = Literal["human", "plain", "json", "quiet"]
MODES: tuple[Mode, ...] = ("human", "plain", "json", "quiet")
Cell = str | int | float | None

# Variables that coding agents set. Agents get plain output unless WANDER_OUTPUT is set.
AGENT_VARIABLES = ("AI_AGENT", "CLAUDECODE", "CODEX_SANDBOX", "CURSOR_AGENT", "GEMINI_CLI")

STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "hint": "cyan",
    "good": "green",
    "dim": "dim",
    "bold": "bold",
}
"""Style names in the syntax of rich."""
_CODES = {"error": "31;1", "warning": "33;1", "hint": "36", "good": "32", "dim": "2", "bold": "1"}


def choose_mode(flag: Mode | None, environ: Mapping[str, str], *, terminal: bool) -> Mode:
    """Return the output mode: the flag, else WANDER_OUTPUT, else plain for agents and without a terminal."""
    if flag is not None:
        return flag
    wanted = environ.get("WANDER_OUTPUT", "").strip().lower()
    for mode in MODES:
        if wanted == mode:
            return mode
    if wanted and wanted != "auto":
        raise UsageError(
            f"invalid `WANDER_OUTPUT`: `{wanted}`", hint=f"set it to one of {', '.join(MODES)}, or unset it"
        )
    if not terminal or any(environ.get(name) for name in AGENT_VARIABLES):
        return "plain"
    return "human"


def use_color(flag: str, environ: Mapping[str, str], stream: TextIO) -> bool:
    """Return whether to use color, from --color, NO_COLOR, FORCE_COLOR, TERM=dumb and the terminal."""
    if flag in ("always", "never"):
        return flag == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE"):
        return True
    return environ.get("TERM") != "dumb" and stream.isatty()


class Output:
    """The only writer to stdout and stderr."""

    def __init__(
        self,
        mode: Mode,
        *,
        command: str = "wander",
        color: str = "auto",
        progress: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.mode: Mode = mode
        self.command = command
        """Name of the command in the JSON schema: `wander.<command>/1`."""
        self.warnings: list[str] = []
        self.step: str | None = None
        """Current step of a long command. Errors in JSON mode include it."""
        self._progress = progress and mode in ("human", "plain")
        plain = mode != "human" and color != "always"
        self.color_out = not plain and use_color(color, environ, sys.stdout)
        self.color_err = not plain and use_color(color, environ, sys.stderr)

    @property
    def json(self) -> bool:
        """True if the output is a JSON object."""
        return self.mode == "json"

    @property
    def human(self) -> bool:
        """True if the output is for a person at a terminal."""
        return self.mode == "human"

    @property
    def shows_progress(self) -> bool:
        """True if progress is shown."""
        return self._progress

    # Results, on stdout.

    def answer(self, data: Any, show: Callable[[], None] | str | None = None, **extra: Any) -> None:
        """Print the command's result: JSON in JSON mode, otherwise `show` (a function or a text)."""
        if self.json:
            self.envelope(data, **extra)
        elif callable(show):
            show()
        elif show is not None:
            self.line(show)

    def envelope(self, data: Any, **extra: Any) -> None:
        """Print `{"schema", "data", "warnings"}` as a JSON object."""
        body = {"schema": f"wander.{self.command}/1", "data": jsonable(data), **extra}
        _print(sys.stdout, _json({**body, "warnings": self.warnings}))

    def document(self, data: Any) -> None:
        """Print a JSON document in a format of others, without the envelope, in every mode."""
        _print(sys.stdout, _json(data))

    def stream(self, kind: str, **fields: Any) -> None:
        """Print one JSON line of a stream, `type` first. Prints nothing in other modes."""
        if self.json:
            _print(sys.stdout, _json({"type": kind, **jsonable(fields)}))

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print a line of the result. Prints nothing in JSON mode."""
        if not self.json:
            _print(sys.stdout, paint(visible(text), style, self.color_out))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        shrink: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> None:
        """Print a table: aligned columns for people, otherwise TSV with a header.

        If the terminal is too narrow, the columns in `shrink` are shortened in the middle. Before they become
        unreadable, the columns in `drop` are left out, in that order.
        """
        if self.json:
            return
        cells = [[cell_text(value) for value in row] for row in rows]
        if not self.human:
            _print(sys.stdout, "\t".join(columns))
            for row in cells:
                _print(sys.stdout, "\t".join(row))
            return
        from shutil import get_terminal_size

        width = get_terminal_size().columns
        kept = fit_columns(columns, cells, shrink, drop, width)
        numeric = [_is_numeric([row[i] for row in rows]) for i in kept]
        names = [columns[i] for i in kept]
        cells = shrink_columns(names, [[row[i] for i in kept] for row in cells], shrink, width)
        for number, text in enumerate(align([names, *cells], numeric)):
            _print(sys.stdout, paint(text, "bold" if number == 0 else None, self.color_out))

    # Everything else, on stderr.

    def note(self, text: str) -> None:
        """Print a note. Prints nothing in quiet and JSON mode."""
        if self.mode in ("human", "plain"):
            _print(sys.stderr, visible(text))

    def warn(self, text: str) -> None:
        """Print a warning. In JSON mode, add it to the JSON object."""
        self.warnings.append(text)
        if not self.json:
            _print(sys.stderr, f"{paint('warning:', 'warning', self.color_err)} {visible(text)}")

    def next(self, *commands: str) -> None:
        """Print the commands that the user may want to run next."""
        for command in commands if self.mode in ("human", "plain") else ():
            _print(sys.stderr, f"{paint('next:', 'hint', self.color_err)} {visible(command)}")

    def error(self, error: ClientError) -> None:
        """Print `error:` and `hint:` on stderr, or a JSON object on stdout."""
        if self.json:
            body = {
                "code": error.code,
                "message": str(error),
                "hint": error.hint,
                "retryable": error.retryable,
            }
            if error.detail:
                body["detail"] = error.detail
            if error.request_id:
                body["request_id"] = error.request_id
            if self.step:
                body["step"] = self.step
            _print(sys.stdout, _json({"error": body}))
            return
        _print(sys.stderr, f"{paint('error:', 'error', self.color_err)} {visible(str(error))}")
        if error.detail:
            indented = "\n".join(f"  {line}" for line in visible(error.detail).splitlines())
            _print(sys.stderr, f"\n{indented}")
        if error.request_id and isinstance(error, Unavailable):  # the hub's operator can find it in the log
            _print(sys.stderr, f"\n  request {one_line(error.request_id)}")
        if error.hint:
            _print(sys.stderr, f"\n{paint('hint:', 'hint', self.color_err)} {visible(error.hint)}")

    @contextmanager
    def progress(self, title: str, total: int | None, *, unit: str = "") -> Iterator[Progress]:
        """Show progress on stderr: a live bar on a terminal, otherwise one line per 10% or 30 s."""
        if not self._progress:
            yield Progress(title, total)
        elif self.human and sys.stderr.isatty():
            with LiveProgress(title, total, unit) as live:
                yield live
        else:
            yield LineProgress(title, total, unit)

    def ask(self, question: str, *, flag: str, secret: bool = False) -> str:
        """Ask a question on the terminal.

        Without a terminal, raise `UsageError` that names the flag to use.
        """
        if not sys.stdin.isatty() or self.json:
            # A confirmation is a sentence, other questions are noun phrases.
            asked = "confirmation" if flag == "--yes" else f"the {question.rstrip(':? ')}"
            reason = "with `--json`" if self.json else "without a terminal"
            raise UsageError(f"cannot ask for {asked} {reason}", hint=f"pass `{flag}`")
        if secret:
            from getpass import getpass

            return getpass(f"{question}: ").strip()
        sys.stderr.write(f"{question}: ")
        sys.stderr.flush()
        return sys.stdin.readline().strip()

    def confirm(self, word: str, action: str, *, yes: bool) -> None:
        """Ask the user to type a word as confirmation, unless `yes`.

        Raises `UsageError` for any other answer.
        """
        if not yes and self.ask(f"Type `{word}` to {action}", flag="--yes") != word:
            raise UsageError("not confirmed; nothing was changed", hint=f"type `{word}`, or pass `--yes`")


class Progress:
    """A count of finished parts. This base class shows nothing."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title = title
        self.total = total
        self.done = 0

    def update(self, done: int, note: str = "") -> None:
        """Set the number of finished parts, with a short note such as a running score."""
        self.done = done


class LineProgress(Progress):
    """Progress as one line per 10% or 30 s, for logs."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        super().__init__(title, total)
        self._unit = f" {unit}" if unit else ""
        self._step = 0
        self._last = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        """Print a line if another 10% are finished or 30 s have passed."""
        super().update(done, note)
        step = 10 * done // self.total if self.total else 0
        if step <= self._step and time.monotonic() - self._last < 30:
            return
        self._step = max(step, self._step)
        self._last = time.monotonic()
        total = f"/{self.total}{self._unit} ({100 * done // self.total}%)" if self.total else self._unit
        tail = f"  {one_line(note)}" if note else ""
        _print(sys.stderr, f"{self.title}  {done}{total}{tail}")


class LiveProgress(Progress):
    """Progress as a bar on the terminal, which is cleared at the end."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        super().__init__(title, total)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=5,
        )
        self._task = self._bar.add_task(title, total=total, note=unit)
        self._started = False

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._started:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """Redraw the bar with the new count and note. The first call shows the bar."""
        super().update(done, note)
        if not self._started:
            self._started = True
            self._bar.start()
        self._bar.update(self._task, completed=done, total=self.total, note=one_line(note))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 rollout`, `3 rollouts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shell_word(value: object) -> str:
    """Return a path or a name as a word of a command line, in quotes if it needs them."""
    return shlex.quote(str(value))


def clock_time(seconds: float) -> str:
    """Format seconds as `4:05`, or `1:04:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def paint(text: str, style: str | None, color: bool) -> str:
    """Wrap text in the escape codes of a style, if color is on."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and color and text else text


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Pad cells so that columns line up. True in `right` aligns a column to the right."""
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(right))]
    lines = []
    for row in rows:
        cells = []
        for text, width, flush_right in zip(row, widths, right, strict=True):
            pad = " " * (width - cell_len(text))
            cells.append(pad + text if flush_right else text + pad)
        lines.append("  ".join(cells).rstrip())
    return lines


READABLE = 20
"""Minimum width of shortened columns before other columns are left out."""


def fit_columns(
    columns: Sequence[str], rows: list[list[str]], shrink: Sequence[str], drop: Sequence[str], width: int
) -> list[int]:
    """Return the indexes of the columns to show. Leaves out columns of `drop` until the others fit."""
    widths = [max(len(text) for text in column) for column in zip(columns, *rows, strict=True)]
    least = {
        index: min(width, READABLE) if columns[index] in shrink else width
        for index, width in enumerate(widths)
    }
    for name in drop:
        if sum(least.values()) + 2 * (len(least) - 1) <= width:
            break
        del least[list(columns).index(name)]
    return list(least)


def shrink_columns(
    columns: Sequence[str], rows: list[list[str]], names: Sequence[str], width: int
) -> list[list[str]]:
    """Shorten the named columns in the middle until the rows fit the width, but to at least 12 characters."""
    widths = [max(len(text) for text in column) for column in zip(columns, *rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for name in names:
        if excess <= 0:
            break
        if name not in columns:
            continue
        index = list(columns).index(name)
        room = max(12, widths[index] - excess)
        excess -= widths[index] - min(room, widths[index])
        rows = [[cut(text, room) if i == index else text for i, text in enumerate(row)] for row in rows]
    return rows


def cut(text: str, width: int) -> str:
    """Return the text, or its start and end around an ellipsis if it is longer than `width`."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def _json(value: Any) -> str:
    """Return JSON that is safe to print: JSON itself does not escape C1 and bidirectional controls."""
    return escape_json(json.dumps(value, ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """Convert pydantic models, paths and dates in a value to plain JSON values."""
    if hasattr(value, "model_dump"):
        model: BaseModel = value
        return model.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def cell_text(value: Cell) -> str:
    """Format a value for a table cell, safe to print."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))


def _is_numeric(values: Sequence[Cell]) -> bool:
    return any(isinstance(v, int | float) for v in values) and not any(isinstance(v, str) for v in values)


def _print(stream: TextIO, text: str) -> None:
    # Lone surrogates and characters that the terminal cannot encode must not raise an error here.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
