"""What author's code raises, told apart from a request that it end.

Everything that leaves a hook, a tool or a reward function is its rollout's failure: also what is no
`Exception` (`SystemExit`, pytest's outcomes, a panic of a Rust extension) and a `CancelledError` that nobody
asked for. Left alone, one of these would end the process or leave a rollout without an answer.
"""

from __future__ import annotations

import asyncio
import traceback
from pathlib import PurePath
from types import TracebackType

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


class Blame:
    """Turns what author's code raises in a `with` block into an error of its boundary.

    Errors of the classes in `passing` go on as they are, and so does what is no fault of the code.
    """

    __slots__ = ("_kind", "_passing", "_where")

    def __init__(
        self,
        kind: type[BoundaryError],
        where: str,
        *,
        passing: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        self._kind = kind
        self._where = where
        """Names the code: a function, as its author calls it."""
        self._passing = passing

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, self._passing) or not is_fault(error):
            return
        raise self._kind(describe_fault(error, self._where)) from error


def describe_fault(error: BaseException, where: str) -> str:
    """Say what was raised, where: type, message and the innermost frames, without folder names.

    Folders are left out so that two machines record the same failure in the same words.
    """
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    trail = " > ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    text = str(error)
    raised = f"`{type(error).__name__}: {text}`" if text else f"`{type(error).__name__}`"
    return f"`{where}` raised {raised} ({trail})"
