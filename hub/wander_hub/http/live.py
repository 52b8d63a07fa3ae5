"""Live updates of open pages: server-sent events with the HTML of the part that changed.

A process reads the rows from the database and sends the same HTML that the page contains, so it does not
matter which process changes the rows. Each process counts its own streams.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from wander_hub.http.boundary import caller_of, database_of
from wander_hub.http.limits import sender_of
from wander_hub.http.problems import HubProblem

MOST, MOST_OF_ONE = 200, 12
"""Maximum number of streams of one process, and of one address or user among them."""
LONGEST_SECONDS = 300.0
"""Maximum duration of a stream. The browser then reconnects, with the permissions that its user has by
then."""
LOOK_SECONDS = 1.0
ALIVE_SECONDS = 15.0
"""Seconds between keep-alive comments, because proxies close silent connections."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
States = list[tuple[Any, ...]] | None
"""Values that differ when the part must be drawn again, or None if nothing was read yet."""
_END = b"event: end\ndata: nothing is under way\n\n"


class Part(NamedTuple):
    """The part of a page that changes."""

    html: bytes
    under_way: bool
    """Whether the part may change again."""


_Look = Callable[[States], tuple[States, Part | None]]
"""Function that returns the current states, and the part if the states differ from the known ones."""


class _Shared(NamedTuple):
    at: float
    states: States
    part: Part | None


@dataclass
class Streams:
    """Open streams of one process, and the results that they share."""

    open: Counter[str] = field(default_factory=Counter)
    _shared: dict[Hashable, asyncio.Task[_Shared]] = field(default_factory=dict)

    @contextmanager
    def count(self, who: str) -> Iterator[None]:
        """Count a stream while the block is active; raise a 429 problem if there are too many."""
        if self.open.total() >= MOST or self.open[who] >= MOST_OF_ONE:
            hint = "reload the page to see the current state"
            detail = "too many pages are open that follow jobs"
            raise HubProblem(429, "too_many_streams", detail, hint=hint, headers={"Retry-After": "60"})
        self.open[who] += 1
        try:
            yield
        finally:
            self.open[who] -= 1
            if not self.open[who]:
                del self.open[who]
            if not self.open:
                self._shared.clear()

    async def look(self, look: _Look, known: States, shared: Hashable | None) -> tuple[States, Part | None]:
        """Look in a thread; streams with the same `shared` key look only once per `LOOK_SECONDS` together."""
        if shared is None:
            return await run_in_threadpool(look, known)
        task = self._shared.get(shared)
        if task is None or (task.done() and _is_old(task)):
            task = self._shared[shared] = asyncio.create_task(_look_again(look, task))
        shared_result = await asyncio.shield(task)
        return shared_result.states, None if shared_result.states == known else shared_result.part


def _is_old(task: asyncio.Task[_Shared]) -> bool:
    return task.exception() is not None or time.monotonic() - task.result().at >= LOOK_SECONDS


async def _look_again(look: _Look, last: asyncio.Task[_Shared] | None) -> _Shared:
    previous = last.result() if last is not None and last.exception() is None else None
    states, part = await run_in_threadpool(look, previous and previous.states)
    part = part if part is not None or previous is None else previous.part
    return _Shared(time.monotonic(), states, part)


class _CountedStream(StreamingResponse):
    """A stream that is counted while it is sent, even if the client disconnects before the first event."""

    def __init__(self, events: AsyncIterator[bytes], streams: Streams, who: str) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._streams, self._who = streams, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, or raise a 429 problem if there are too many streams."""
        with self._streams.count(self._who):
            await super().__call__(scope, receive, send)


def stream(
    request: Request,
    read: Callable[[Session], States],
    draw: Callable[[Session], Part],
    shared: Hashable | None = None,
) -> Response:
    """Respond with events: `changed` with new HTML after each change, then `end` when nothing more will
    change.

    `read` returns the states, and `draw` is called when they differ from the last ones. Readers who see the
    same part can share the database queries with a key.
    """
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=_HEADERS)
    caller = caller_of(request)
    who = caller.user if caller is not None else sender_of(request.scope)
    streams: Streams = request.app.state.streams
    database = database_of(request)

    def look(known: States) -> tuple[States, Part | None]:
        with database.read(caller) as session:
            states = read(session)
            return states, draw(session) if states != known else None

    async def look_once(known: States) -> tuple[States, Part | None]:
        return await streams.look(look, known, shared)

    return _CountedStream(_send(look_once, lambda: bool(request.app.state.draining)), streams, who)


async def _send(
    look: Callable[[States], Awaitable[tuple[States, Part | None]]], draining: Callable[[], bool]
) -> AsyncIterator[bytes]:
    known: States = None
    heard = began = time.monotonic()
    while not draining() and time.monotonic() - began < LONGEST_SECONDS:
        try:
            known, part = await look(known)
        except HubProblem:  # the reader lost access, or the object was deleted
            yield _END
            return
        if part is not None:
            heard = time.monotonic()
            lines = b"".join(b"data: " + line + b"\n" for line in part.html.splitlines())
            yield b"event: changed\n" + lines + b"\n"
            if not part.under_way:
                yield _END
                return
        elif time.monotonic() - heard >= ALIVE_SECONDS:
            heard = time.monotonic()
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_SECONDS)
