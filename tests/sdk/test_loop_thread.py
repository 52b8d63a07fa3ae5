"""An event loop in a thread of its own."""

from __future__ import annotations

import contextlib

import pytest
from wander.loop_thread import LoopThread


def test_the_loop_thread_does_not_wait_for_itself() -> None:
    with contextlib.closing(LoopThread("waits")) as thread:

        async def one() -> int:
            return 1

        async def ask() -> int:
            return thread.run(one())

        assert thread.run(one()) == 1
        with pytest.raises(RuntimeError, match="await the coroutine"):
            thread.run(ask())
        assert thread.run(one()) == 1
