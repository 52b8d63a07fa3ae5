"""Wait for work of the hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

State = TypeVar("State")


def watch(
    state: State, look: Callable[[State], State], is_waiting: Callable[[State], bool]
) -> Iterator[State]:
    """Yield what `look` returns, at growing intervals of up to 5 s, while `is_waiting` is true."""
    pause = 0.25
    while is_waiting(state):
        time.sleep(pause)
        pause = min(5.0, pause * 1.25)
        state = look(state)
        yield state
