"""Decorators that mark an environment's methods as hooks, and the functions that find and call hooks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, overload

from wander.errors import BoundaryError, EnvironmentFault
from wander.rollout.activity import ACTIVITY
from wander.rollout.faults import blame
from wander.types import Message, Messages, canonical_json

Hook = TypeVar("Hook", bound=Callable[..., Any])
T = TypeVar("T")

PLAIN = frozenset((type(None), bool, int, float, str, list, dict))
"""The most common types of hook results. Checking for them is faster than checking whether a result is
awaitable."""

STOP = "stop"
CLEANUP = "cleanup"
TEARDOWN = "teardown"


@overload
def stop(function: Hook) -> Hook: ...
@overload
def stop(*, priority: int = 0) -> Callable[[Hook], Hook]: ...
def stop(function: Any = None, *, priority: int = 0) -> Any:
    """Mark a method `(self, state) -> bool` that ends the rollout. Its name becomes the stop reason.

    Conditions are checked after every completion and after the environment's answer to it, by descending
    priority and then by name.
    """
    return _mark(STOP, function, priority)


@overload
def cleanup(function: Hook) -> Hook: ...
@overload
def cleanup(*, priority: int = 0) -> Callable[[Hook], Hook]: ...
def cleanup(function: Any = None, *, priority: int = 0) -> Any:
    """Mark a method `(self, state)` that runs when a rollout ends, even if it failed or was canceled.

    It runs before the rubric scores the rollout.
    """
    return _mark(CLEANUP, function, priority)


@overload
def teardown(function: Hook) -> Hook: ...
@overload
def teardown(*, priority: int = 0) -> Callable[[Hook], Hook]: ...
def teardown(function: Any = None, *, priority: int = 0) -> Any:
    """Mark a method `(self)` that runs once, when the environment is closed."""
    return _mark(TEARDOWN, function, priority)


def _mark(kind: str, function: Any, priority: int) -> Any:
    def mark(marked: Any) -> Any:
        marked.__wander_hook__ = (kind, priority)
        return marked

    return mark if function is None else mark(function)


def find_marked(owner: object, kind: str) -> list[tuple[str, Callable[..., Any]]]:
    """Return (name, bound method) of every method marked with `kind`, in running order.

    An overridden method is marked if any base class marked a method with its name. A subclass can therefore
    change a condition without repeating the decorator, or disable it by setting the name to None.
    """
    priorities: dict[str, int] = {}
    for cls in type(owner).__mro__:
        for name, value in vars(cls).items():
            mark = getattr(value, "__wander_hook__", None)
            if mark is not None and mark[0] == kind:
                priorities.setdefault(name, mark[1])
    names = sorted(priorities, key=lambda name: (-priorities[name], name))
    return [(name, method) for name in names if (method := getattr(owner, name)) is not None]


async def call_hook(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call an author's sync or async hook. Any exception becomes a `BoundaryError`.

    Hooks run on the event loop, because switching to a thread would cost more than most hooks do.
    """
    activity, name = ACTIVITY.get(), getattr(hook, "__name__", "hook")
    if activity is not None:
        activity.enter(name)
    try:
        result = hook(*arguments)
        return await result if type(result) not in PLAIN and inspect.isawaitable(result) else result
    except BaseException as error:
        blame(error, EnvironmentFault, name, passing=BoundaryError)
        raise
    finally:
        if activity is not None:
            activity.leave(name)


async def call_every(hooks: Iterable[Callable[[], Any]]) -> None:
    """Call all hooks in order, even if one fails. Then raise the first `BoundaryError`, if any."""
    first: BoundaryError | None = None
    for hook in hooks:
        try:
            await call_hook(hook)
        except BoundaryError as error:
            first = first or error
    if first is not None:
        raise first


async def wait_for_every(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results in order. If any fail, wait until all have ended, and raise the first failure."""
    results: list[T] = []
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def check_messages(value: Any, where: str) -> Messages:
    """Return the messages of a hook. Raises `EnvironmentFault` with the problem if they are invalid."""
    if isinstance(value, tuple):
        raise EnvironmentFault(
            f"`{where}` returned a tuple; it must return only the list of messages",
            hint="return `messages`, not `(messages, state)`: change the state in place",
        )
    if not isinstance(value, list):
        raise EnvironmentFault(f"`{where}` must return a list of messages, got `{type(value).__name__}`")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EnvironmentFault(f"`{where}` returned a message without a `role`: {str(message)[:200]}")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise EnvironmentFault(
                f"`{where}` returned a message whose `content` is a `{type(content).__name__}`"
            )
        for part in message.values():
            if not isinstance(part, str):
                _refuse_unwritable(message, where)
    return value


def _refuse_unwritable(message: Message, where: str) -> None:
    """Raise `EnvironmentFault` for a message that cannot be written to the rollout's record."""
    try:
        canonical_json(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFault(f"`{where}` returned a message that is not a JSON value: {error}") from error
