"""What author's code raises, told apart from a request that it end.

Everything that leaves a hook, a tool or a reward function is its rollout's failure: also what is no
`Exception` (`SystemExit`, pytest's outcomes, a panic of a Rust extension) and a `CancelledError` that nobody
asked for. Left alone, one of these would end the process or leave a rollout without an answer.
"""

from __future__ import annotations

import asyncio

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
