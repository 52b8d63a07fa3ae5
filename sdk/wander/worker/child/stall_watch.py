"""Sees from a thread when the code of one rollout keeps all others of its worker from going on.

Environment code is synchronous more often than not, and it may compute for minutes: that alone is never a
reason to end a worker. It is ended when the rollout that holds it up is past its time limit, so that the
others can be played again, and the host is told which one it was. Code that never lets another thread run
(a regular expression that backtracks for ever) stops this watch too; then the host ends the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from wander.types import Boundary
from wander.worker.note import Note
from wander.worker.protocol import LastWords

_TELL_SECONDS = 30.0
"""After so long without a turn of the loop the log is told where it stands."""


class StallWatch:
    """Watches the loop of the thread that makes it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        note: Note,
        begun: Mapping[int, float],
        end: Callable[[], None],
        *,
        limits: tuple[float | None, float | None],
        stall_seconds: float,
    ) -> None:
        """Watch the plays that `begun` tells the start of; leave last words in the note and call `end` once.

        `limits`: seconds that a rollout may take as a whole, and that it may be played before it is scored.
        """
        self._loop = loop
        self._thread = threading.get_ident()
        self._note = note
        self._begun = begun
        self._end = end
        self._whole, self._unscored = limits
        self._stall = stall_seconds
        self._tick = min(1.0, stall_seconds / 4)
        self._turned = time.monotonic()
        self._asked = False
        self._told = 0.0
        """The turn after which the log was told."""

    def start(self) -> None:
        """Watch until the process ends."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            if not self._asked:
                self._asked = True
                try:
                    self._loop.call_soon_threadsafe(self._beat)
                except RuntimeError:  # closed
                    return
            time.sleep(self._tick)
            self._look()

    def _beat(self) -> None:
        self._turned, self._asked = time.monotonic(), False

    def _look(self) -> None:
        now = time.monotonic()
        stood = now - self._turned
        if stood < min(self._stall, _TELL_SECONDS):
            return
        innermost = sys._current_frames().get(self._thread)
        frames = [frame for frame, _ in traceback.walk_stack(innermost)] if innermost else []
        if stood > _TELL_SECONDS and self._told != self._turned:
            self._told = self._turned
            self._tell(frames, f"nothing else has gone on here for {stood:.0f} s, while this ran:")
        play = self._note.current or None
        modules = {str(frame.f_globals.get("__name__")) for frame in frames}
        scoring = any(name.startswith("wander.rubrics.") for name in modules)
        begun = self._begun.get(play) if play is not None else min(list(self._begun.values()), default=None)
        limits = [each for each in (self._whole, not scoring and self._unscored) if each]
        if begun is None or not limits or now - begun < min(limits) + self._stall:
            return
        if stood >= self._stall:
            self._tell(frames, f"ended after {stood:.0f} s, since a rollout past its time ran this:")
            where = ""
            if frames:  # without the file's folder, which is this machine's own matter
                code = frames[0].f_code
                where = f"{Path(code.co_filename).name}:{frames[0].f_lineno} {code.co_name}"
            boundary: Boundary = "rubric" if scoring else "environment"
            self._note.leave(LastWords(play=play, boundary=boundary, seconds=round(stood, 1), where=where))
            self._end()

    def _tell(self, frames: list[FrameType], what: str) -> None:
        stack = "".join(traceback.format_stack(frames[0])) if frames else ""
        log_line(f"{what}\n{stack}")


def log_line(text: str) -> None:
    """Write a line to the log, unless the environment's code, which writes to it too, has closed it."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"wander worker: {text}\n")
        sys.stderr.flush()
