"""Collects cyclic garbage less often while thousands of rollouts and connections live at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_LEAST, _MOST = 20_000, 1_000_000
_OBJECTS_A_ROLLOUT = 200
_wanted: list[int] = []
"""What the blocks that are under way want; the highest counts."""
_usual = gc.get_threshold()


@contextlib.contextmanager
def fewer_collections(live: int = 0) -> Iterator[None]:
    """Look for cyclic garbage less often while about so many rollouts live at once.

    Next to nothing of what rollouts leave is cyclic. At the usual 700 new objects a look takes a fifth of the
    time. And one that comes before the rollouts in flight have ended finds all their objects alive, which it
    then looks at again and again: at 1,024 rollouts another tenth.
    """
    global _usual
    if not _wanted:
        _usual = gc.get_threshold()
    if _usual[0] == 0:  # somebody has switched it off
        yield
        return
    mine = max(_usual[0], _LEAST, min(_MOST, _OBJECTS_A_ROLLOUT * live))
    _wanted.append(mine)
    gc.set_threshold(max(_wanted), *_usual[1:])
    try:
        yield
    finally:
        _wanted.remove(mine)
        gc.set_threshold(max(_wanted, default=_usual[0]), *_usual[1:])
