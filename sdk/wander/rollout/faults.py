"""Distinguishes exceptions of the author's code from requests to end that code.

Every exception that leaves a hook, a tool or a reward function is a failure of its rollout. This includes
exceptions that are not an `Exception` (`SystemExit`, pytest's outcomes, a panic of a Rust extension), and a
`CancelledError` that nobody requested. Otherwise these would end the process, or leave a rollout without an
answer.
"""

from __future__ import annotations

import asyncio
import traceback
from pathlib import PurePath

from wander.errors import BoundaryError

_keyboard = True


def without_keyboard() -> None:
    """Declare that this process lacks a keyboard. A `KeyboardInterrupt` then comes from the author's code."""
    global _keyboard
    _keyboard = False


def is_fault(error: BaseException) -> bool:
    """Return whether an exception is a fault of the code that raised it. Otherwise it must not be caught.

    Must be called in the task that caught the exception, because a cancellation of that task is not a fault.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    if isinstance(error, KeyboardInterrupt):
        return not _keyboard
    return not isinstance(error, GeneratorExit)


def blame(
    error: BaseException,
    kind: type[BoundaryError],
    where: str,
    *,
    passing: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> None:
    """Raise a boundary error for an exception of the author's code. Returns if the exception must pass
    unchanged.

    `where` is the name of the function in the author's code. Exceptions of the classes in `passing`, and
    exceptions that are not the code's fault, must pass: the caller re-raises them with `raise`. This is not a
    context manager, because hooks are called dozens of times per rollout, and a `try` that catches nothing
    costs nothing.
    """
    if not isinstance(error, passing) and is_fault(error):
        raise kind(describe_fault(error, where)) from error


def describe_fault(error: BaseException, where: str) -> str:
    """Describe an exception and its origin: type, message and the innermost frames, without folder names.

    Folder names are left out so that two machines record the same failure with the same text.
    """
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    trail = " > ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    text = str(error)
    raised = f"`{type(error).__name__}: {text}`" if text else f"`{type(error).__name__}`"
    return f"`{where}` raised {raised} ({trail})"
