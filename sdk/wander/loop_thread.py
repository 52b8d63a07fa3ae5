"""An event loop in a separate thread, for callers without a loop, or that must not block theirs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

Result = TypeVar("Result")
_TICK = 0.1


def wait_for(future: Future[Result]) -> Result:
    """Wait for a future and return its result.

    A signal that arrives just before the main thread starts to wait is handled only when the wait ends, so
    this waits many short times instead of once.
    """
    while not wait([future], timeout=_TICK).done:
        pass
    return future.result()


class LoopThread:
    """An event loop in a separate thread. Resources that are opened on it stay open between calls.

    `name` is the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.open = contextlib.AsyncExitStack()
        """Contexts that `close` exits on the loop before it stops."""
        self._running: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for its result; interrupting the caller cancels the coroutine.

        Raises `RuntimeError` if called on the loop itself, because it would wait for itself forever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this call would wait for its own event loop: await the coroutine instead")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._running.add(future)
        try:
            return wait_for(future)
        except BaseException:
            future.cancel()
            raise
        finally:
            self._running.discard(future)

    def interrupt(self) -> None:
        """Cancel all calls of `run` in other threads; they raise `CancelledError`."""
        for future in list(self._running):
            future.cancel()

    def enter(self, context: AbstractAsyncContextManager[Result]) -> Result:
        """Enter a context on the loop until `close`, and return its value."""
        return self.run(self.open.enter_async_context(context))

    def close(self) -> None:
        """Exit the entered contexts in reverse order, then stop the loop and the thread."""
        try:
            self.run(self.open.aclose())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()
