"""What the user sees: answers on stdout, everything else on stderr, in one of four modes.

human  colour and live progress, on a terminal
plain  no colour, TSV tables, one progress line per 10 %; when stdout is no terminal or an agent runs us
json   one envelope on stdout: {"schema": "wander.<command>/1", "data": ..., "warnings": [...]}
quiet  the answer and errors, nothing else
"""

from __future__ import annotations

import json
import os
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

# Set by coding agents; they get plain output unless WANDER_OUTPUT says otherwise.
AGENT_VARIABLES = ("AI_AGENT", "CLAUDECODE", "CODEX_SANDBOX", "CURSOR_AGENT", "GEMINI_CLI")

STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "hint": "cyan",
    "good": "green",
    "dim": "dim",
    "bold": "bold",
}
"""What each style is called by rich."""
_CODES = {"error": "31;1", "warning": "33;1", "hint": "36", "good": "32", "dim": "2", "bold": "1"}


def choose_mode(flag: Mode | None, environ: Mapping[str, str], *, terminal: bool) -> Mode:
    """Return the mode: flag, then WANDER_OUTPUT, then agent or no terminal means plain."""
    if flag is not None:
        return flag
    wanted = environ.get("WANDER_OUTPUT", "").strip().lower()
    for mode in MODES:
        if wanted == mode:
            return mode
    if wanted and wanted != "auto":
        raise UsageError(
            f"`WANDER_OUTPUT` is `{wanted}`", hint=f"set it to one of {', '.join(MODES)} or unset it"
        )
    if not terminal or any(environ.get(name) for name in AGENT_VARIABLES):
        return "plain"
    return "human"


def use_color(flag: str, environ: Mapping[str, str], stream: TextIO) -> bool:
    """Return whether to colour a stream: --color, NO_COLOR, FORCE_COLOR, TERM=dumb, terminal."""
    if flag in ("always", "never"):
        return flag == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE"):
        return True
    return environ.get("TERM") != "dumb" and stream.isatty()


class Output:
    """The one place that writes to stdout and stderr."""

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
        """Names the JSON schema: `wander.<command>/1`."""
        self.warnings: list[str] = []
        self.step: str | None = None
        """Which of its steps a long command is at; an error in JSON mode tells it."""
        self._progress = progress and mode in ("human", "plain")
        plain = mode != "human" and color != "always"
        self.color_out = not plain and use_color(color, environ, sys.stdout)
        self.color_err = not plain and use_color(color, environ, sys.stderr)

    @property
    def json(self) -> bool:
        """True when the answer is one JSON object."""
        return self.mode == "json"

    @property
    def human(self) -> bool:
        """True when a person looks at a terminal."""
        return self.mode == "human"

    @property
    def shows_progress(self) -> bool:
        """True when progress is to be told."""
        return self._progress

    # answers, on stdout

    def answer(self, data: Any, show: Callable[[], None] | str | None = None, **extra: Any) -> None:
        """Print the command's answer: the envelope in JSON mode, else `show` (a function or a text)."""
        if self.json:
            self.envelope(data, **extra)
        elif callable(show):
            show()
        elif show is not None:
            self.line(show)

    def envelope(self, data: Any, **extra: Any) -> None:
        """Print `{"schema", "data", "warnings"}` as one JSON object."""
        body = {"schema": f"wander.{self.command}/1", "data": jsonable(data), **extra}
        _print(sys.stdout, _json({**body, "warnings": self.warnings}))

    def stream(self, kind: str, **fields: Any) -> None:
        """Print one JSON line of a stream (`type` first); nothing in other modes."""
        if self.json:
            _print(sys.stdout, _json({"type": kind, **jsonable(fields)}))

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line of an answer; nothing in JSON mode."""
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
        """Print a table: aligned columns for people, TSV with a header otherwise.

        Where a terminal is too narrow the columns named in `shrink` are cut in the middle, no others; before
        one of them becomes hard to read, those named in `drop` are left out, the first first.
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

    # everything else, on stderr

    def note(self, text: str) -> None:
        """Tell what happens; silent in quiet and JSON mode."""
        if self.mode in ("human", "plain"):
            _print(sys.stderr, visible(text))

    def warn(self, text: str) -> None:
        """Warn; the JSON envelope carries it."""
        self.warnings.append(text)
        if not self.json:
            _print(sys.stderr, f"{paint('warning:', 'warning', self.color_err)} {visible(text)}")

    def next(self, *commands: str) -> None:
        """Print the commands that a user types next, last of all."""
        for command in commands if self.mode in ("human", "plain") else ():
            _print(sys.stderr, f"{paint('next:', 'hint', self.color_err)} {visible(command)}")

    def error(self, error: ClientError) -> None:
        """Print an error: `error:` and `hint:` on stderr, or the JSON object on stdout."""
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
        if error.request_id and isinstance(error, Unavailable):  # the hub's operator finds it in the log
            _print(sys.stderr, f"\n  request {one_line(error.request_id)}")
        if error.hint:
            _print(sys.stderr, f"\n{paint('hint:', 'hint', self.color_err)} {visible(error.hint)}")

    @contextmanager
    def progress(self, title: str, total: int | None, *, unit: str = "") -> Iterator[Progress]:
        """Show progress on stderr: a live bar on a terminal, else one line per 10 % or 30 s."""
        if not self._progress:
            yield Progress(title, total)
        elif self.human and sys.stderr.isatty():
            with LiveProgress(title, total, unit) as live:
                yield live
        else:
            yield LineProgress(title, total, unit)

    def ask(self, question: str, *, flag: str, secret: bool = False) -> str:
        """Ask on the terminal; without one fail with the flag that answers instead."""
        if not sys.stdin.isatty() or self.json:
            asked = question.rstrip(":? ")
            if flag == "--yes":  # a question that wants to be confirmed is a sentence, not a thing
                raise UsageError(
                    f"there is no terminal to ask on: {asked[:1].lower()}{asked[1:]}", hint=f"pass `{flag}`"
                )
            raise UsageError(f"{asked} is needed and there is no terminal to ask on", hint=f"pass `{flag}`")
        if secret:
            from getpass import getpass

            return getpass(f"{question}: ").strip()
        sys.stderr.write(f"{question}: ")
        sys.stderr.flush()
        return sys.stdin.readline().strip()

    def confirm(self, word: str, what: str, *, yes: bool) -> None:
        """Have a word typed before something happens, unless `yes`; raises `UsageError` for any other."""
        if not yes and self.ask(f"Type `{word}` to {what}", flag="--yes") != word:
            raise UsageError(f"`{word}` was not confirmed: nothing was changed", hint="or pass `--yes`")


class Progress:
    """Counts finished parts; the base shows nothing."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title = title
        self.total = total
        self.done = 0

    def update(self, done: int, note: str = "") -> None:
        """Set how many parts are done, with a short note (a running score)."""
        self.done = done


class LineProgress(Progress):
    """One line per 10 % or 30 s, for logs."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        super().__init__(title, total)
        self._unit = f" {unit}" if unit else ""
        self._step = 0
        self._last = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        """Print when another tenth is done or 30 s went by."""
        super().update(done, note)
        step = 10 * done // self.total if self.total else 0
        if step <= self._step and time.monotonic() - self._last < 30:
            return
        self._step = max(step, self._step)
        self._last = time.monotonic()
        of = f"/{self.total} ({100 * done // self.total} %)" if self.total else ""
        tail = f"  {one_line(note)}" if note else ""
        _print(sys.stderr, f"{self.title}  {done}{of}{self._unit}{tail}")


class LiveProgress(Progress):
    """A bar on the terminal that leaves nothing behind."""

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
        """Redraw with the new count and note; the first call makes the bar appear."""
        super().update(done, note)
        if not self._started:
            self._started = True
            self._bar.start()
        self._bar.update(self._task, completed=done, total=self.total, note=one_line(note))


def counted(number: int, what: str) -> str:
    """Return a number with its word: `1 rollout`, `3 rollouts`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def clock_time(seconds: float) -> str:
    """Return seconds as `4:05`, or `1:04:05`."""
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}" if minutes >= 60 else f"{minutes}:{left:02}"


def paint(text: str, style: str | None, color: bool) -> str:
    """Wrap text in the escape codes of a style, when colour is on."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and color and text else text


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Pad cells so that columns line up; True in `right` puts a column flush right."""
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
"""Characters that a column which may be cut keeps as long as another one can be left out."""


def fit_columns(
    columns: Sequence[str], rows: list[list[str]], shrink: Sequence[str], drop: Sequence[str], width: int
) -> list[int]:
    """Return the places of the columns to show: all but those of `drop` that have no room beside the rest."""
    widths = [max(len(text) for text in column) for column in zip(columns, *rows, strict=True)]
    least = {
        place: min(width, READABLE) if columns[place] in shrink else width
        for place, width in enumerate(widths)
    }
    for name in drop:
        if sum(least.values()) + 2 * (len(least) - 1) <= width:
            break
        del least[list(columns).index(name)]
    return list(least)


def shrink_columns(
    columns: Sequence[str], rows: list[list[str]], names: Sequence[str], width: int
) -> list[list[str]]:
    """Cut the named columns in the middle until rows fit the width, but to no less than 12 characters."""
    widths = [max(len(text) for text in column) for column in zip(columns, *rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for name in names:
        if excess <= 0:
            break
        if name not in columns:
            continue
        place = list(columns).index(name)
        room = max(12, widths[place] - excess)
        excess -= widths[place] - min(room, widths[place])
        rows = [[cut(text, room) if i == place else text for i, text in enumerate(row)] for row in rows]
    return rows


def cut(text: str, width: int) -> str:
    """Return the text, or its two ends around an ellipsis when it is longer than `width`."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def _json(value: Any) -> str:
    """Return JSON that a terminal may show: JSON itself escapes neither C1 nor bidirectional controls."""
    return escape_json(json.dumps(value, ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """Turn pydantic models, paths and dates inside a value into plain JSON values."""
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
    """Return a value as one cell of a table shows it, safe to print."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))


def _is_numeric(values: Sequence[Cell]) -> bool:
    return any(isinstance(v, int | float) for v in values) and not any(isinstance(v, str) for v in values)


def _print(stream: TextIO, text: str) -> None:
    # Lone surrogates and characters outside the terminal's encoding must not crash an answer.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
