"""An event loop in a thread of its own, for callers that have none or must not hold theirs up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a thread of its own: what is opened on it stays open between calls.

    `name` is the thread's.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.open = contextlib.AsyncExitStack()
        """What `close` closes on the loop before it ends."""
        self._running: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and wait for its result; an interrupt of the caller cancels it.

        Raises `RuntimeError` on the loop itself, which would wait for itself for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would wait for its own event loop: await the coroutine in its place")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._running.add(future)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._running.discard(future)

    def interrupt(self) -> None:
        """Cancel what other threads wait for; they raise `CancelledError`."""
        for future in list(self._running):
            future.cancel()

    def enter(self, context: AbstractAsyncContextManager[Result]) -> Result:
        """Enter a context on the loop, until `close`, and return what it yields."""
        return self.run(self.open.enter_async_context(context))

    def close(self) -> None:
        """Close what was entered, the last first, then stop the loop and the thread."""
        try:
            self.run(self.open.aclose())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()
