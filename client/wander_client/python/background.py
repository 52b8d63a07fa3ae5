"""The event loop for environments that a program loads. It runs in its own thread.

So the same calls work in a script, in Jupyter (whose own loop is running) and in any thread: a coroutine
function hands its work over and waits without blocking its own loop, and a plain function blocks.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, cast

from wander.errors import ArgumentsRefused, WanderError, in_python
from wander.loop_thread import LoopThread

from wander_client.errors import ClientError, UsageError
from wander_client.failures import explain_system
from wander_client.python.keywords import require_keywords

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CLOSE_SECONDS = 15.0
"""Seconds that the end of the program, or an interrupted call, waits for cleanup."""

_held: LoopThread | None = None
_holding = threading.Lock()
_closing: set[Future[None]] = set()
"""Closing operations that nobody waits for."""


def background() -> LoopThread:
    """Return the loop. The first call starts it."""
    global _held
    with _holding:
        if _held is None:
            _held = LoopThread("wander")
        return _held


async def hand_over(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on the loop and await its result here. Cancellation is passed on."""
    with explained():
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, background().loop))


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on the loop and block. An interrupt cancels it, and waits for its cleanup."""
    ended = threading.Event()

    async def whole() -> Result:
        try:
            return await work
        finally:
            ended.set()

    with contextlib.suppress(RuntimeError):
        if asyncio.get_running_loop() is background().loop:
            work.close()
            raise UsageError(
                "this call would block the loop on which it runs",
                hint="in a client, await the method without `_sync`: `await env.rollout(...)`",
            )
    with explained():
        try:
            return background().run(whole())
        except KeyboardInterrupt:
            ended.wait(CLOSE_SECONDS)
            raise


def blocking(
    method: Callable[Parameters, Coroutine[Any, Any, Result]],
) -> Callable[Parameters, Result]:
    """Return a plain function that runs a coroutine function and waits for its result."""

    @functools.wraps(method)
    def wait(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        return wait_for(method(*arguments, **options))

    wait.__name__ = f"{method.__name__}_sync"
    wait.__doc__ = (
        f"Call `{method.__name__}` and wait for its result. Also works while an event loop is running."
    )
    return wait


def close_later(stack: contextlib.AsyncExitStack, process: int) -> None:
    """Close an unreferenced environment, without waiting: the garbage collector calls this.

    Does nothing in a forked child, because only the `process` that opened the environment closes it.
    """
    if _held is not None and process == os.getpid():
        future = asyncio.run_coroutine_threadsafe(stack.aclose(), _held.loop)
        _closing.add(future)
        future.add_done_callback(_closing.discard)


def called_from_python(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function of the Python API: explain its errors, and suggest names for unknown keywords."""

    @functools.wraps(call)
    def plain(*arguments: Any, **options: Any) -> Any:
        with explained():
            require_keywords(call, options)
            return call(*arguments, **options)

    @functools.wraps(call)
    def listed(*arguments: Any, **options: Any) -> Any:
        with explained():
            require_keywords(call, options)
            yield from cast("Any", call)(*arguments, **options)

    @functools.wraps(call)
    async def awaited(*arguments: Any, **options: Any) -> Any:
        with explained():
            require_keywords(call, options)
            return await cast("Any", call)(*arguments, **options)

    wrapper = awaited if iscoroutinefunction(call) else listed if isgeneratorfunction(call) else plain
    return cast("Callable[Parameters, Result]", wrapper)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Add an error's hint and details to its traceback, and name options by their Python keywords.

    Like the command, this converts errors of the operating system and the connection to `ClientError`.
    """
    try:
        yield
    except (ClientError, WanderError) as error:
        # The command explains wrong arguments by its options. In Python, the environment's own error is
        # clearer.
        shown = error.__cause__ if isinstance(error.__cause__, ArgumentsRefused) else error
        _write_in_python(shown)
        _add_notes(shown)
        if shown is not error:
            raise shown from None
        raise
    except Exception as error:
        refusal = explain_system(error)
        if refusal is None:
            raise
        _add_notes(refusal)
        raise refusal from error


def _write_in_python(error: ClientError | WanderError) -> None:
    """Replace options by keywords in the message, the hint and the details of an error."""
    error.args = tuple(in_python(text) if isinstance(text, str) else text for text in error.args)
    error.hint = in_python(error.hint) if error.hint else None
    if isinstance(error, ClientError) and error.detail:
        error.detail = in_python(error.detail)


def _add_notes(error: BaseException) -> None:
    parts = (getattr(error, "detail", None), getattr(error, "hint", None), getattr(error, "request_id", None))
    notes = [f"{name}{text}" for name, text in zip(("", "hint: ", "request: "), parts, strict=True) if text]
    for note in notes:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _end() -> None:
    """Wait for pending closing operations, then stop the loop."""
    global _held
    if _held is None:
        return
    for future in list(_closing):
        try:
            future.result(CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the program ends, so it is only printed
            sys.stderr.write(f"wander: an environment did not close: {error}\n")
    _held.close()
    _held = None


def _forget() -> None:
    """Start without a loop in a forked process, because forking does not copy the parent's threads."""
    global _held
    _held = None
    _closing.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
