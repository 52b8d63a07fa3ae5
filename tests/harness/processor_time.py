"""The processor time that a piece of work takes by itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds_of(work: Callable[[], object], tries: int = 4) -> float:
    """Return the least processor time of this thread in several tries.

    What else the machine does only adds to it. Garbage is not collected meanwhile: a collection costs by what
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
