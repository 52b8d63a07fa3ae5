"""Collects cyclic garbage less often while thousands of rollouts and connections live at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_COLLECTION = 20_000
"""New objects after which the youngest generation of garbage is collected."""


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """Look for cyclic garbage less often: at the usual 700 new objects that takes a fifth of the time.

    Next to nothing of what rollouts leave is cyclic.
    """
    usual = gc.get_threshold()
    if usual[0] == 0 or usual[0] >= _COLLECTION:  # switched off, or another evaluation is at it
        yield
        return
    gc.set_threshold(_COLLECTION, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
