"""Tells what is a task set of `verifiers.v1`, without importing the library."""

from __future__ import annotations

from types import ModuleType
from typing import Any

TASKSET = "verifiers.v1.taskset.Taskset"


def taskset_in(module: ModuleType) -> type | None:
    """Return the task set that a module exports by `__all__`, or None."""
    exported = (getattr(module, name, None) for name in getattr(module, "__all__", ()))
    return next((each for each in exported if is_taskset(each)), None)


def is_taskset(value: Any) -> bool:
    """Tell whether a value is a class of task sets of `verifiers.v1`."""
    mro = value.__mro__[1:] if isinstance(value, type) else ()
    return any(f"{cls.__module__}.{cls.__name__}" == TASKSET for cls in mro)
