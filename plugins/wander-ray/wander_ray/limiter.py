"""Bounds the calls of one shard by what all shards may ask: a limiter whose permits the coordinator gives.

While an endpoint takes all calls, a shard keeps its share of the permits, and lets a call leave for each that
ended without asking; four times a second it says what it did and learns what its share is. At an endpoint
that refuses, and where a budget is bound, it asks for every call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from wander.clients.rate_limit import CallLimiter, Pace

from wander_ray.coordinator import Refusal, Terms, Trade

TALK_SECONDS = 0.25


@dataclass
class _Open:
    """This shard's permits for an endpoint, what the coordinator has not been told, and who waits."""

    keep: int = 0
    """So many permits need not be given back when a call ends."""
    held: int = 0
    """Permits, those of calls in flight included."""
    idle: int = 0
    """Permits that no call uses."""
    least_idle: int = 0
    """Since the coordinator was last talked to: so many were not needed."""
    released: int = 0
    replaced: int = 0
    accepted: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    asking: int = 0
    """Permits that are asked for already."""
    due: asyncio.Handle | None = None

    def use(self) -> None:
        """Have a call leave with an idle permit."""
        self.idle -= 1
        self.least_idle = min(self.least_idle, self.idle)

    def serve(self) -> int:
        """Let those who wait leave with the permits that are there; return how many did."""
        served = 0
        while self.idle and self.waiting:
            left = self.waiting.popleft()
            if not left.done():
                self.use()
                left.set_result(None)
                served += 1
        return served

    def give_back(self, permits: int) -> None:
        """Hold so many idle permits less."""
        self.idle -= permits
        self.held -= permits
        self.released += permits


class _ToldPace(Pace):
    """Holds nobody back here; says to the coordinator what the endpoint took and refused."""

    def __init__(self, endpoint: str, open_: _Open, tell: Callable[[], None]) -> None:
        super().__init__()
        self.endpoint = endpoint
        self._open, self._tell = open_, tell

    def wait(self, now: float) -> float:
        """Let every call ask the coordinator."""
        return 0.0

    def note_accepted(self, now: float) -> None:
        """Count it, and pass it on with what is told next."""
        super().note_accepted(now)
        self._open.accepted += 1

    def note_refused(self, now: float, began: float, told: float | None) -> None:
        """Count it here, and pass it on."""
        super().note_refused(now, began, told)
        self._open.refusals.append(Refusal(now - began, told))
        self._tell()


class RayLimiter(CallLimiter):
    """Calls leave when the coordinator says so, or in place of others; what it is to be told goes together.

    The bound that an evaluation itself asks for (`at_most`) does not count: the whole has one.
    """

    def __init__(self, trade: Callable[[Trade], Awaitable[Terms]]) -> None:
        """`trade` asks the coordinator in the shard's name."""
        super().__init__()
        self._trade = trade
        self._opens: defaultdict[str, _Open] = defaultdict(_Open)
        self._talks: set[asyncio.Task[None]] = set()

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Change nothing, but give back in the end what no call needs."""
        try:
            yield
        finally:
            for endpoint, open_ in self._opens.items():
                open_.least_idle = open_.idle
                self._tell(endpoint)

    def pace(self, endpoint: str) -> Pace:
        """Return the pace of the endpoint at an address."""
        if endpoint not in self._queue.paces:
            told = _ToldPace(endpoint, self._opens[endpoint], lambda: self._tell(endpoint))
            self._queue.paces[endpoint] = told
        return self._queue.paces[endpoint]

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until all shards together leave room for a call; return when it left."""
        assert isinstance(pace, _ToldPace)
        open_ = self._opens[pace.endpoint]
        if open_.idle:
            open_.use()
            open_.replaced += 1
        else:
            left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            open_.waiting.append(left)
            self._tell(pace.endpoint)
            try:
                await left
            except asyncio.CancelledError:
                if left.done() and not left.cancelled() and left.exception() is None:
                    self._pass_on(pace.endpoint)
                raise
        now = monotonic()
        self._leave(pace, now)
        return now

    def release(self, pace: Pace) -> None:
        """Count a call as ended, here and for all."""
        super().release(pace)
        assert isinstance(pace, _ToldPace)
        self._pass_on(pace.endpoint)

    def give_up(self, pace: Pace, error: Exception) -> None:
        """Raise an error in every call of this shard that waits for an endpoint."""
        assert isinstance(pace, _ToldPace)
        for left in self._opens[pace.endpoint].waiting:
            if not left.done():
                left.set_exception(error)

    def _pass_on(self, endpoint: str) -> None:
        """Have a permit that was used serve who waits, or give it back."""
        open_ = self._opens[endpoint]
        open_.idle += 1
        if open_.held > open_.keep:
            open_.give_back(1)
            self._tell(endpoint)
        else:
            open_.replaced += open_.serve()

    def _tell(self, endpoint: str) -> None:
        """Talk to the coordinator at the end of this turn of the event loop."""
        open_, loop = self._opens[endpoint], asyncio.get_running_loop()
        if isinstance(open_.due, asyncio.TimerHandle):
            open_.due.cancel()
            open_.due = None
        if open_.due is None:
            open_.due = loop.call_soon(self._begin_talk, endpoint)

    def _tell_later(self, endpoint: str) -> None:
        """Talk again after a while, for as long as there are permits."""
        open_ = self._opens[endpoint]
        if open_.held and open_.due is None:
            loop = asyncio.get_running_loop()
            open_.due = loop.call_later(TALK_SECONDS, self._begin_talk, endpoint)

    def _begin_talk(self, endpoint: str) -> None:
        open_ = self._opens[endpoint]
        open_.due = None
        open_.give_back(max(open_.least_idle, min(open_.idle, open_.held - open_.keep)))
        open_.least_idle = open_.idle
        open_.waiting = deque(left for left in open_.waiting if not left.done())
        wanted = max(0, len(open_.waiting) - open_.asking)
        self._tell_later(endpoint)
        if not (open_.held or open_.released or open_.accepted or open_.refusals or wanted):
            return
        trade = Trade(endpoint, open_.released, open_.replaced, open_.accepted, tuple(open_.refusals), wanted)
        open_.released = open_.replaced = open_.accepted = 0
        open_.refusals = []
        open_.asking += wanted
        talk = asyncio.create_task(self._talk(trade))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, trade: Trade) -> None:
        open_ = self._opens[trade.endpoint]
        try:
            terms = await self._trade(trade)
        except Exception as error:  # noqa: BLE001 - told to whoever waits: without permits nothing goes on
            open_.asking -= trade.wanted
            open_.keep = 0
            self.give_up(self.pace(trade.endpoint), error)
            return
        open_.asking -= trade.wanted
        open_.keep = terms.keep
        open_.held += terms.granted
        open_.idle += terms.granted
        open_.serve()
        if len(open_.waiting) > open_.asking or (open_.idle and open_.held > open_.keep):
            self._tell(trade.endpoint)
        self._tell_later(trade.endpoint)
