"""Detects from a thread that the code of one rollout blocks all others in its worker.

Environment code is often synchronous, and it may compute for minutes. This is not enough reason to end a
worker. The worker is ended only if the blocking rollout has exceeded its time limit, so that the others can
be played again, and the host learns which rollout it was. Code that never lets another thread run (such as a
backtracking regular expression) stops this watch as well. In that case the host ends the worker.
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
"""Seconds without a turn of the event loop after which the running code is logged."""


class StallWatch:
    """Watches the event loop of the thread that creates it."""

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
        """Watch the plays whose start times are in `begun`. On a stall, leave last words in the note and call
        `end`.

        `limits`: maximum seconds of a rollout including scoring, and of its playing before it is scored.
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
        self._logged = 0.0
        """The turn of the loop after which the stall was logged."""

    def start(self) -> None:
        """Watch until the process exits."""
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
            self._check_stall()

    def _beat(self) -> None:
        self._turned, self._asked = time.monotonic(), False

    def _check_stall(self) -> None:
        now = time.monotonic()
        stalled = now - self._turned
        if stalled < min(self._stall, _TELL_SECONDS):
            return
        innermost = sys._current_frames().get(self._thread)
        frames = [frame for frame, _ in traceback.walk_stack(innermost)] if innermost else []
        if stalled > _TELL_SECONDS and self._logged != self._turned:
            self._logged = self._turned
            self._log_stack(frames, f"this code has blocked everything else for {stalled:.0f} s:")
        play = self._note.current or None
        modules = {str(frame.f_globals.get("__name__")) for frame in frames}
        scoring = any(name.startswith("wander.rubrics.") for name in modules)
        begun = self._begun.get(play) if play is not None else min(list(self._begun.values()), default=None)
        limits = [limit for limit in (self._whole, not scoring and self._unscored) if limit]
        if begun is None or not limits or now - begun < min(limits) + self._stall:
            return
        if stalled >= self._stall:
            self._log_stack(
                frames, f"stopped after {stalled:.0f} s, because this code of an overdue rollout blocked it:"
            )
            where = ""
            if frames:  # without the file's folder, which is private to this machine
                code = frames[0].f_code
                where = f"{Path(code.co_filename).name}:{frames[0].f_lineno} {code.co_name}"
            boundary: Boundary = "rubric" if scoring else "environment"
            self._note.leave(LastWords(play=play, boundary=boundary, seconds=round(stalled, 1), where=where))
            self._end()

    def _log_stack(self, frames: list[FrameType], what: str) -> None:
        stack = "".join(traceback.format_stack(frames[0])) if frames else ""
        log_line(f"{what}\n{stack}")


def log_line(text: str) -> None:
    """Write a line to the log, unless the environment's code has closed it."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"wander worker: {text}\n")
        sys.stderr.flush()
