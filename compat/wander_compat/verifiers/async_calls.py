"""Calls functions that may be sync or async, with the arguments that they take."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from wander_compat.verifiers.errors import InfraError, InvalidModelResponseError

T = TypeVar("T")


async def maybe_await(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and await its result if it is awaitable."""
    result = func(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def pick_arguments(func: Callable[..., Any], objects: dict[str, Any]) -> dict[str, Any]:
    """Return the objects that a function takes by name, or all of them if it has `**kwargs`."""
    parameters = inspect.signature(func).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return objects
    return {parameter.name: objects[parameter.name] for parameter in parameters if parameter.name in objects}


async def maybe_call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Call a function with the objects that it takes by name."""
    return await maybe_await(func, **pick_arguments(func, objects))


NullContext = NullAsyncContext = nullcontext
"""A context manager that does nothing, for sync and async code."""


async def maybe_semaphore(limit: int | None = None) -> AbstractAsyncContextManager[Any]:
    """Return a semaphore, or a context manager that does nothing without a limit."""
    return asyncio.Semaphore(limit) if limit and limit > 0 else nullcontext()


async def with_sem(sem: AbstractAsyncContextManager[Any], coro: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine inside a context manager."""
    try:
        async with sem:
            return await coro
    finally:
        coro.close()


def maybe_retry(
    func: Callable[..., Awaitable[Any]],
    max_retries: int = 0,
    initial: float = 1.0,
    max_wait: float = 60.0,
    error_types: tuple[type[Exception], ...] = (InfraError, InvalidModelResponseError),
) -> Callable[..., Awaitable[Any]]:
    """Return a function that is retried after certain errors, either raised or stored in its state."""

    async def tried(*args: Any, **kwargs: Any) -> Any:
        wait = initial
        for attempt in range(max_retries + 1):
            try:
                result = await func(*args, **kwargs)
            except error_types:
                if attempt == max_retries:
                    raise
            else:
                states = result if isinstance(result, list) else [result]
                errors = [state.get("error") for state in states if isinstance(state, dict)]
                if attempt == max_retries or not any(isinstance(error, error_types) for error in errors):
                    return result
            await asyncio.sleep(min(max_wait, wait) * (0.5 + random.random() / 2))  # noqa: S311 - only a delay
            wait *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    return tried if max_retries > 0 else func
