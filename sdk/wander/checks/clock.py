"""A clock that is wrong on purpose: what depends on it comes out otherwise."""

from __future__ import annotations

import ctypes
import datetime
import gc
import os
import time
from collections.abc import Callable
from typing import Any

CLOCK = "WANDER_CLOCK_SHIFT"
"""The variable that tells a process by how many seconds its clock is to be ahead."""


def take_clock_shift() -> None:
    """Move this process's clock as its variable says, and hide the variable.

    Python's own ways to ask for the date and time follow; what a C library or another program asks the system
    does not.
    """
    if shift := int(os.environ.pop(CLOCK, "0")):
        _move_clock(shift)


def _move_clock(shift: int) -> None:
    def later(ask: Callable[..., Any], by: int) -> Callable[[], Any]:
        return lambda: ask() + by

    def of_now(write: Callable[..., Any], place: int) -> Callable[..., Any]:
        """Return a function of the calendar that, where it is given no time, takes the moved one."""

        def written(*given: Any) -> Any:
            whole = len(given) > place and given[place] is not None
            now = time.time() if write in seconds else time.localtime()
            return write(*given) if whole else write(*given[:place], now)

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
    # `date.today` and `datetime.today` ask `time.time`; these two ask the system.
    (methods,) = gc.get_referents(vars(datetime.datetime))
    methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
    methods["utcnow"] = classmethod(
        lambda cls: cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)
    )
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
