"""Decorators that mark methods of environments and rubrics, and the function that finds them.

A mark is an attribute of the function itself (`stop`, `stop_priority`...), because packages look for it
there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

Hook = TypeVar("Hook", bound=Callable[..., Any])


@overload
def stop(func: Hook) -> Hook: ...
@overload
def stop(func: None = None, priority: int = 0) -> Callable[[Hook], Hook]: ...
def stop(func: Any = None, priority: int = 0) -> Any:
    """Mark a method `(self, state) -> bool` that ends the rollout. Its name becomes the stop condition."""
    return _mark(func, "stop", priority=priority)


@overload
def cleanup(func: Hook) -> Hook: ...
@overload
def cleanup(func: None = None, priority: int = 0, stage: str = "rollout") -> Callable[[Hook], Hook]: ...
def cleanup(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """Mark a method that runs at the end of every rollout. It gets arguments by name, such as `state`."""
    return _mark(func, "cleanup", priority=priority, stage=stage)


def teardown(func: Any = None, priority: int = 0) -> Any:
    """Mark a method `(self)` that runs once, when the environment is closed."""
    return _mark(func, "teardown", priority=priority)


def setup(func: Any = None, priority: int = 0) -> Any:
    """Mark a method that runs at the start of every rollout."""
    return _mark(func, "setup", priority=priority)


def update(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """Mark a method that runs after every turn."""
    return _mark(func, "update", priority=priority, stage=stage)


def reward(func: Any = None, weight: float = 1.0, priority: int = 0, stage: str = "rollout") -> Any:
    """Mark a reward function."""
    return _mark(func, "reward", priority=priority, weight=weight, stage=stage)


def metric(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """Mark a metric."""
    return _mark(func, "metric", priority=priority, stage=stage)


def advantage(func: Any = None, priority: int = 0) -> Any:
    """Mark a function that computes the advantages of a group."""
    return _mark(func, "advantage", priority=priority)


def _mark(func: Any, mark: str, **values: Any) -> Any:
    def put(function: Any) -> Any:
        setattr(function, mark, True)
        for name, value in values.items():
            setattr(function, f"{mark}_{name}", value)
        return function

    return put if func is None else put(func)


def discover_decorated(obj: Any, attr: str) -> list[Callable[..., Any]]:
    """Return the bound methods with a mark, by descending priority and then by name."""
    methods = []
    for name in dir(type(obj)):
        method = inspect.getattr_static(type(obj), name, None)
        if callable(getattr(method, "__func__", method)) and getattr(method, attr, False) is True:
            methods.append(getattr(obj, name))
    return sorted(methods, key=lambda method: (-getattr(method, f"{attr}_priority", 0), method.__name__))
