"""Pages that stay open are sent what changes on them: server-sent events, each with the HTML of the part.

A browser is sent the same HTML that the page has, whenever the rows in the database say something else: so it
does not matter which process works on them. Each process counts its own streams.
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
"""Streams of one process at a time, and those of one address or user among them."""
LONGEST_SECONDS = 300.0
"""After which a stream ends; a browser asks again, with what its user may do then."""
LOOK_SECONDS = 1.0
ALIVE_SECONDS = 15.0
"""Between two signs of life: a proxy in front lets a silent connection go."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
States = list[tuple[Any, ...]] | None
"""What differs once a page says something else, as far as it was read."""
_END = b"event: end\ndata: nothing is under way\n\n"


class Part(NamedTuple):
    """A part of a page that changes."""

    html: bytes
    under_way: bool
    """Whether it may change again by itself."""


_Look = Callable[[States], tuple[States, Part | None]]
"""Return the states, and the part where those are others than were known."""


class _Shared(NamedTuple):
    at: float
    states: States
    part: Part | None


@dataclass
class Streams:
    """The streams that one process sends."""

    open: Counter[str] = field(default_factory=Counter)
    _shared: dict[Hashable, asyncio.Task[_Shared]] = field(default_factory=dict)

    @contextmanager
    def count(self, who: str) -> Iterator[None]:
        """Count one more as long as the block lasts; raise a 429 where there are too many."""
        if self.open.total() >= MOST or self.open[who] >= MOST_OF_ONE:
            hint = "load the page again to see how far it is"
            detail = "too many pages follow jobs at this moment"
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
        """Look by a thread: of all who share a look, once in `LOOK_SECONDS` for them together."""
        if shared is None:
            return await run_in_threadpool(look, known)
        task = self._shared.get(shared)
        if task is None or (task.done() and _is_old(task)):
            task = self._shared[shared] = asyncio.create_task(_look_again(look, task))
        found = await asyncio.shield(task)
        return found.states, None if found.states == known else found.part


def _is_old(task: asyncio.Task[_Shared]) -> bool:
    return task.exception() is not None or time.monotonic() - task.result().at >= LOOK_SECONDS


async def _look_again(look: _Look, last: asyncio.Task[_Shared] | None) -> _Shared:
    last_found = last.result() if last is not None and last.exception() is None else None
    states, part = await run_in_threadpool(look, last_found and last_found.states)
    part = part if part is not None or last_found is None else last_found.part
    return _Shared(time.monotonic(), states, part)


class _CountedStream(StreamingResponse):
    """Events that are counted while they are sent, also to somebody who left before the first of them."""

    def __init__(self, events: AsyncIterator[bytes], streams: Streams, who: str) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._streams, self._who = streams, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them, or a refusal where there are too many."""
        with self._streams.count(self._who):
            await super().__call__(scope, receive, send)


def stream(
    request: Request,
    read: Callable[[Session], States],
    draw: Callable[[Session], Part],
    shared: Hashable | None = None,
) -> Response:
    """Answer with events: `changed` with HTML whenever it changed, then `end` when nothing is under way.

    The part is drawn whenever the states that are read are others than before. Readers to whom the same
    part is shown may share the looks, by a key.
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
            known, found = await look(known)
        except HubProblem:  # its reader may see it no longer, or it is gone
            yield _END
            return
        if found is not None:
            heard = time.monotonic()
            lines = b"".join(b"data: " + line + b"\n" for line in found.html.splitlines())
            yield b"event: changed\n" + lines + b"\n"
            if not found.under_way:
                yield _END
                return
        elif time.monotonic() - heard >= ALIVE_SECONDS:
            heard = time.monotonic()
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_SECONDS)
