"""What author's code raises, told apart from a request that it end.

Everything that leaves a hook, a tool or a reward function is its rollout's failure: also what is no
`Exception` (`SystemExit`, pytest's outcomes, a panic of a Rust extension) and a `CancelledError` that nobody
asked for. Left alone, one of these would end the process or leave a rollout without an answer.
"""

from __future__ import annotations

import asyncio
import traceback
from pathlib import PurePath

from wander.errors import BoundaryError

_keyboard = True


def without_keyboard() -> None:
    """Say that nobody can interrupt this process by a keyboard: a `KeyboardInterrupt` is the author's."""
    global _keyboard
    _keyboard = False


def is_fault(error: BaseException) -> bool:
    """Tell whether an exception is the fault of the code that raised it; else it must go on its way.

    Call it in the task that caught the exception: a cancellation of that task is no fault.
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
    """Raise an error of its boundary for what author's code raised; `raise` follows, for all that is none.

    `where` names the code: a function, as its author calls it. Errors of the classes in `passing` go on as
    they are, and so does what is no fault of the code. This is no context manager: hooks are called dozens of
    times in a rollout, and a `try` that catches nothing costs nothing.
    """
    if not isinstance(error, passing) and is_fault(error):
        raise kind(describe_fault(error, where)) from error


def describe_fault(error: BaseException, where: str) -> str:
    """Say what was raised, where: type, message and the innermost frames, without folder names.

    Folders are left out so that two machines record the same failure in the same words.
    """
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    trail = " > ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    text = str(error)
    raised = f"`{type(error).__name__}: {text}`" if text else f"`{type(error).__name__}`"
    return f"`{where}` raised {raised} ({trail})"
