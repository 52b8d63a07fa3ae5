"""The processor time of a piece of work, without the influence of other processes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds_of(work: Callable[[], object], tries: int = 4) -> float:
    """Return the least processor time of this thread in several tries.

    Other load only adds to the time. Garbage collection is off, because its cost depends on the objects that
    earlier tests left in the process.
    """
    found = []
    gc.disable()
    try:
        for _ in range(tries):
            begun = time.thread_time()
            work()
            found.append(time.thread_time() - begun)
    finally:
        gc.enable()
    return min(found)


def a_second() -> float:
    """Return the processor time that this machine needs, now, for about a second's work of an idle machine.

    A limit in seconds would measure the machine and its other load, too.
    """
    return 15 * seconds_of(lambda: sum(number * number for number in range(1_000_000)))
