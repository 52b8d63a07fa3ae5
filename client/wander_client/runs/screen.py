"""A terminal's whole screen: keys read one by one, lines drawn, everything put back at the end."""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wander_client.terminal.output import paint

if TYPE_CHECKING:
    from wander_client.runs.text import StyledLine

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|[\s\S]")
_NAMES = {
    **{"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"},
    **{"\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left"},
    **{"\x1b[5~": "pageup", "\x1b[6~": "pagedown", "\x1b[H": "home", "\x1b[F": "end"},
    **{"\x1bOH": "home", "\x1bOF": "end", "\x1b[1~": "home", "\x1b[4~": "end"},
    **{"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape"},
}
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_POLL_SECONDS = 0.25
"""How soon a terminal that changed its size is drawn anew."""


def can_be_used() -> bool:
    """Tell whether somebody sits before a terminal that can do this."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextmanager
def whole_screen() -> Iterator[None]:
    """Take the terminal: no echo, no line buffer, a screen of its own; give it back whatever happens."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    _write(_ENTER)
    try:
        yield
    finally:
        _write(_LEAVE)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def keys(draw: Callable[[int, int], None]) -> Iterator[str]:
    """Yield the names of keys as they are pressed; `draw(width, height)` is called before each wait.

    Ends when the terminal goes away.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    file = sys.stdin.fileno()
    while True:
        size = shutil.get_terminal_size()
        draw(size.columns, size.lines)
        while not select.select([file], [], [], _POLL_SECONDS)[0]:
            if shutil.get_terminal_size() != size:
                size = shutil.get_terminal_size()
                draw(size.columns, size.lines)
        try:
            data = os.read(file, 1024)
        except OSError:
            return
        if not data:
            return
        for match in _KEY.finditer(decoder.decode(data)):
            yield _NAMES.get(match[0], match[0])


def draw_lines(lines: list[StyledLine], *, color: bool) -> None:
    """Draw the whole screen in one write, so that nothing flickers."""
    drawn = [
        f"\x1b[7m{text}\x1b[0m" if style == "cursor" else paint(text, style, color) for text, style in lines
    ]
    _write("\x1b[H" + "\r\n".join(f"{text}\x1b[K" for text in drawn) + "\x1b[J")


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
