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
