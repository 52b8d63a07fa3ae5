"""Methods that stand once and are two: plain ones on `Hub`, coroutines on `AsyncHub`.

    class HubCalls:
        @Request
        def whoami(self) -> Whoami: ...

    Hub().whoami()              # a Whoami
    await AsyncHub().whoami()   # the same, by a worker thread, so that an event loop goes on meanwhile

`Listing` is for methods that yield: an iterator on one, an asynchronous iterator on the other.
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
    """Whose calls return when they are done."""

    @property
    def _waits(self) -> Literal[True]: ...


class Asynchronous(Protocol):
    """Whose calls are awaited."""

    @property
    def _waits(self) -> Literal[False]: ...


class Request(Generic[P, T]):
    """A call with one answer."""

    def __init__(self, function: Callable[Concatenate[Any, P], T]) -> None:
        self._function = function

    @overload
    def __get__(self, of: None, kind: type) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, of: Plain, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, of: Asynchronous, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, of: Any, kind: type) -> Any:
        """Return the call for one of the two kinds; of a class the function, for those who read it."""
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
    """A call that yields one row after the other; nothing is asked before the first is wanted."""

    def __init__(self, function: Callable[Concatenate[Any, P], Iterator[T]]) -> None:
        self._function = function

    @overload
    def __get__(self, of: None, kind: type) -> Callable[Concatenate[Any, P], Iterator[T]]: ...
    @overload
    def __get__(self, of: Plain, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, of: Asynchronous, kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, of: Any, kind: type) -> Any:
        """Return the call for one of the two kinds; of a class the function, for those who read it."""
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
