"""Sets a deliberately wrong clock, so that everything that depends on the time changes."""

from __future__ import annotations

import ctypes
import datetime
import gc
import os
import time
from collections.abc import Callable
from typing import Any

CLOCK = "WANDER_CLOCK_SHIFT"
"""Environment variable with the seconds that a process's clock is moved forward."""


def take_clock_shift() -> None:
    """Move this process's clock by the value of the variable, and remove the variable.

    This affects Python's own functions for date and time, but not C libraries and other programs.
    """
    if shift := int(os.environ.pop(CLOCK, "0")):
        _move_clock(shift)


def _move_clock(shift: int) -> None:
    def later(read: Callable[..., Any], offset: int) -> Callable[[], Any]:
        return lambda: read() + offset

    def of_now(write: Callable[..., Any], position: int) -> Callable[..., Any]:
        """Return a calendar function that uses the moved clock if it gets no time as an argument."""

        def written(*arguments: Any) -> Any:
            has_time = len(arguments) > position and arguments[position] is not None
            now = time.time() if write in seconds else time.localtime()
            return write(*arguments) if has_time else write(*arguments[:position], now)

        return written

    system = time.clock_gettime, time.clock_gettime_ns
    moved: dict[str, Callable[..., Any]] = {
        "time": later(time.time, shift),
        "time_ns": later(time.time_ns, shift * 1_000_000_000),
        "clock_gettime": lambda clock: system[0](clock) + shift * (clock == time.CLOCK_REALTIME),
        "clock_gettime_ns": lambda clock: (
            system[1](clock) + shift * 1_000_000_000 * (clock == time.CLOCK_REALTIME)
        ),
    }
    seconds = (time.localtime, time.gmtime, time.ctime)
    for write in (*seconds, time.asctime):
        moved[write.__name__] = of_now(write, 0)
    moved["strftime"] = of_now(time.strftime, 1)
    for name, function in moved.items():
        setattr(time, name, function)
    # `date.today` and `datetime.today` call `time.time`. These two call the system instead.
    (methods,) = gc.get_referents(vars(datetime.datetime))
    methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
    methods["utcnow"] = classmethod(
        lambda cls: cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)
    )
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
