"""Methods that are written once and exist twice: blocking on `Hub`, as coroutines on `AsyncHub`.

    class HubCalls:
        @Request
        def whoami(self) -> Whoami: ...

    Hub().whoami()              # a Whoami
    await AsyncHub().whoami()   # the same, in a worker thread, so that the event loop is not blocked
`Listing` is for methods that yield: it makes an iterator on `Hub`, an asynchronous iterator on `AsyncHub`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from wander_client.python.background import explained
from wander_client.python.keywords import require_keywords

P = ParamSpec("P")
T = TypeVar("T")


class Plain(Protocol):
    """An object whose calls block until they are done."""

    @property
    def _waits(self) -> Literal[True]: ...


class Asynchronous(Protocol):
    """An object whose calls are awaited."""

    @property
    def _waits(self) -> Literal[False]: ...


class Request(Generic[P, T]):
    """A call with a single result."""

    def __init__(self, function: Callable[Concatenate[Any, P], T]) -> None:
        self._function = function

    @overload
    def __get__(self, of: None, kind: type) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, of: Plain, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, of: Asynchronous, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, of: Any, kind: type) -> Any:
        """Return the blocking or awaitable call. On a class, return the function, for documentation tools."""
        function = self._function
        if of is None:
            return function

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with explained():
                require_keywords(function, kwargs)
                return function(of, *args, **kwargs)

        @functools.wraps(function)
        async def call_in_thread(*args: P.args, **kwargs: P.kwargs) -> T:
            return await asyncio.to_thread(call, *args, **kwargs)

        return call if of._waits else call_in_thread


class Listing(Generic[P, T]):
    """A call that yields rows. The first request is sent when the first row is needed."""

    def __init__(self, function: Callable[Concatenate[Any, P], Iterator[T]]) -> None:
        self._function = function

    @overload
    def __get__(self, of: None, kind: type) -> Callable[Concatenate[Any, P], Iterator[T]]: ...
    @overload
    def __get__(self, of: Plain, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, of: Asynchronous, kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, of: Any, kind: type) -> Any:
        """Return the blocking or asynchronous iterator.

        On a class, return the function, for documentation tools.
        """
        function = self._function
        if of is None:
            return function

        @functools.wraps(function)
        def rows(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            with explained():
                require_keywords(function, kwargs)
                yield from function(of, *args, **kwargs)

        @functools.wraps(function)
        async def rows_by_thread(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            source = rows(*args, **kwargs)
            while (row := await asyncio.to_thread(_take, source)) is not None:
                yield row[0]

        return rows if of._waits else rows_by_thread


def _take(source: Iterator[T]) -> tuple[T] | None:
    """Return the next row, or None after the last: `StopIteration` cannot leave a coroutine."""
    for row in source:
        return (row,)
    return None
