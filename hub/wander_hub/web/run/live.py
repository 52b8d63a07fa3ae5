"""How far the hub's own replays of a run are: on its page, and sent to a page that stays open.

A browser is sent the same HTML that the page has, whenever the rows of the jobs say something else: they are
in the database, so it does not matter which process works on them. Each process counts its own streams.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from wander.wire.verification import LEVELS_SOUGHT, VerificationInfo

from wander_hub.http.boundary import caller_of, database_of
from wander_hub.http.limits import sender_of
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.jobs import OPEN
from wander_hub.runs import service as runs
from wander_hub.settings import Settings
from wander_hub.verification import service as verification
from wander_hub.web.templates import render

MOST, MOST_OF_ONE = 200, 12
"""Streams of one process at a time, and those of one address or user among them."""
LONGEST_SECONDS = 300.0
"""After which a stream ends; a browser asks again, with what its user may do then."""
LOOK_SECONDS = 1.0
ALIVE_SECONDS = 15.0
"""Between two signs of life: a proxy in front lets a silent connection go."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
States = list[tuple[Any, ...]] | None
"""Of the jobs, as far as they were read."""
_END = b"event: end\ndata: no replay is under way\n\n"


@dataclass(frozen=True)
class Replays:
    """The hub's own replays of a run, as its page shows them."""

    run_id: str
    data: list[VerificationInfo]
    may_ask: bool
    """Whether the reader may ask for another one here."""
    may_cancel: frozenset[int]
    """Those that the reader may call off."""
    levels: tuple[str, ...] = LEVELS_SOUGHT

    @property
    def under_way(self) -> bool:
        """Whether one waits or runs."""
        return any(one.state in OPEN for one in self.data)


def list_replays(session: Session, settings: Settings, run_id: str, caller: Identity | None) -> Replays:
    """Return the replays of a run, and what its reader may do about them."""
    run = runs.find(session, run_id)
    data = verification.list_page(session, run_id).data
    return Replays(
        run_id,
        data,
        may_ask=caller is not None and verification.find_refusal(run, settings, caller) is None,
        may_cancel=frozenset(
            one.id
            for one in data
            if caller is not None
            and one.state in OPEN
            and verification.may_cancel(caller, one.requested_by, run.environment)
        ),
    )


@dataclass
class Streams:
    """The streams that one process sends."""

    open: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def count(self, who: str) -> Iterator[None]:
        """Count one more as long as the block lasts; raise a 429 where there are too many."""
        if self.open.total() >= MOST or self.open[who] >= MOST_OF_ONE:
            hint = "load the page again to see how far it is"
            detail = "too many pages follow verifications at this moment"
            raise HubProblem(429, "too_many_streams", detail, hint=hint, headers={"Retry-After": "60"})
        self.open[who] += 1
        try:
            yield
        finally:
            self.open[who] -= 1
            if not self.open[who]:
                del self.open[who]


class CountedStream(StreamingResponse):
    """Events that are counted while they are sent, also to somebody who left before the first of them."""

    def __init__(self, events: AsyncIterator[bytes], streams: Streams, who: str) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._streams, self._who = streams, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them, or a refusal where there are too many."""
        with self._streams.count(self._who):
            await super().__call__(scope, receive, send)


def stream_replays(request: Request, session: Session, run_id: str) -> Response:
    """Answer with events: `replays` with HTML whenever it changed, then `end` when no replay is under way."""
    caller = caller_of(request)
    settings: Settings = request.app.state.settings
    runs.find(session, run_id)  # who may not see the run gets what its page answers
    database = database_of(request)

    def look(known: States) -> tuple[States, Replays | None]:
        """Return the states of the jobs, and the replays where those are others than were known."""
        with database.read(caller) as looking:
            states = verification.list_states(looking, run_id)
            return states, None if states == known else list_replays(looking, settings, run_id, caller)

    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=_HEADERS)
    who = caller.user if caller is not None else sender_of(request.scope)
    events = _send(look, lambda: bool(request.app.state.draining))
    return CountedStream(events, request.app.state.streams, who)


async def _send(
    look: Callable[[States], tuple[States, Replays | None]], draining: Callable[[], bool]
) -> AsyncIterator[bytes]:
    known: States = None
    heard = began = time.monotonic()
    while not draining() and time.monotonic() - began < LONGEST_SECONDS:
        try:
            known, found = await run_in_threadpool(look, known)
        except HubProblem:  # it is private by now, or gone
            yield _END
            return
        if found is not None:
            heard = time.monotonic()
            html = render("replays.html", replays=found)
            lines = b"".join(b"data: " + line + b"\n" for line in html.splitlines())
            yield b"event: replays\n" + lines + b"\n"
            if not found.under_way:
                yield _END
                return
        elif time.monotonic() - heard >= ALIVE_SECONDS:
            heard = time.monotonic()
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_SECONDS)
