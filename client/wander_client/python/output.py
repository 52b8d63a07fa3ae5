"""Output for programs: notes, and a progress bar."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wander.errors import in_python

from wander_client.context import CommonOptions, Invocation
from wander_client.credentials import Credential
from wander_client.terminal.output import Output, Progress

if TYPE_CHECKING:
    import httpx


_log = logging.getLogger("wander")


class PythonOutput(Output):
    """Output with bars by `tqdm.auto` and Python warnings. Without `progress`, only warnings."""

    def __init__(self, *, progress: bool = True) -> None:
        super().__init__("quiet")
        self._shows_progress = progress

    @property
    def shows_progress(self) -> bool:
        """True if progress is shown."""
        return self._shows_progress

    def note(self, text: str) -> None:
        """Print a note above the bar. Without progress, write it to the logger `wander`."""
        text = in_python(text)
        if self._shows_progress:
            # Notebooks show stderr with a red background.
            stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
            _tqdm().write(text, file=stream)
        else:
            _log.info(text)

    def warn(self, text: str) -> None:
        """Issue a Python warning."""
        text = in_python(text)
        self.warnings.append(text)
        warnings.warn_explicit(text, UserWarning, *_find_caller())

    @contextmanager
    def progress(self, title: str, total: int | None, *, unit: str = "") -> Iterator[Progress]:
        """Show a bar."""
        if not self._shows_progress:
            yield Progress(title, total)
            return
        with _tqdm()(desc=title, total=total, unit=f" {unit}" if unit else "it") as bar:
            yield BarProgress(title, total, bar)


_MACHINERY = frozenset(
    {"wander", "wander_client", "asyncio", "concurrent", "contextlib", "selectors", "threading"}
)


def _find_caller() -> tuple[str, int]:
    """Return the file and line of the code that called Wander, in this thread or in the main thread."""
    frames = sys._current_frames()
    for thread in (threading.current_thread(), threading.main_thread()):
        frame = frames.get(thread.ident or 0)
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] not in _MACHINERY:
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
    return __file__, 0


class BarProgress(Progress):
    """A bar of `tqdm.auto`."""

    def __init__(self, title: str, total: int | None, bar: Any) -> None:
        super().__init__(title, total)
        self._bar = bar

    def update(self, done: int, note: str = "") -> None:
        """Redraw with the new count and note."""
        super().update(done, note)
        self._bar.total = self.total
        self._bar.set_postfix_str(note, refresh=False)
        if done != self._bar.n:
            self._bar.update(done - self._bar.n)  # tqdm draws at most ten times a second
        else:
            self._bar.refresh()


def open_invocation(
    hub: str | None = None,
    token: str | None = None,
    *,
    progress: bool = True,
    transport: httpx.BaseTransport | None = None,
) -> Invocation:
    """Return the state for calls on a hub: settings, token and output.

    `hub` is a URL or a name from the settings file. The defaults are those of the command.
    """
    given = None if token is None else Credential(token, "the argument `token`")
    return Invocation(CommonOptions(hub=hub), PythonOutput(progress=progress), transport, given=given)


def _tqdm() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns in notebooks without ipywidgets
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    return tqdm
