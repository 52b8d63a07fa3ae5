"""A limiter whose permits come from the coordinator, so that all shards together keep to one limit.

While an endpoint accepts all calls, a shard keeps its share of the permits: when a call ends, it sends the
next one without asking. Four times a second it reports its calls and learns its share. If the endpoint
refuses calls, or a budget is set, it asks before every call.
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
    """This shard's permits for an endpoint, its unreported calls, and its waiting calls."""

    keep: int = 0
    """Number of permits that this shard may keep when calls end."""
    held: int = 0
    """Number of permits, including those of calls in flight."""
    idle: int = 0
    """Number of permits without a call."""
    least_idle: int = 0
    """Lowest number of idle permits since the last talk with the coordinator."""
    released: int = 0
    replaced: int = 0
    accepted: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    asking: int = 0
    """Number of permits that were requested and have not arrived."""
    due: asyncio.Handle | None = None

    def use(self) -> None:
        """Take an idle permit for a call."""
        self.idle -= 1
        self.least_idle = min(self.least_idle, self.idle)

    def serve(self) -> int:
        """Give idle permits to waiting calls; return the number of calls."""
        served = 0
        while self.idle and self.waiting:
            left = self.waiting.popleft()
            if not left.done():
                self.use()
                left.set_result(None)
                served += 1
        return served

    def give_back(self, permits: int) -> None:
        """Return idle permits to the coordinator."""
        self.idle -= permits
        self.held -= permits
        self.released += permits


class _ToldPace(Pace):
    """Delays no call itself. It reports to the coordinator which calls the endpoint accepted and refused."""

    def __init__(self, endpoint: str, open_: _Open, tell: Callable[[], None]) -> None:
        super().__init__()
        self.endpoint = endpoint
        self._open, self._tell = open_, tell

    def wait(self, now: float) -> float:
        """Return 0: the coordinator decides when a call may leave."""
        return 0.0

    def note_accepted(self, now: float) -> None:
        """Count the call, and include it in the next report."""
        super().note_accepted(now)
        self._open.accepted += 1

    def note_refused(self, now: float, began: float, told: float | None) -> None:
        """Count the refusal, and report it."""
        super().note_refused(now, began, told)
        self._open.refusals.append(Refusal(now - began, told))
        self._tell()


class RayLimiter(CallLimiter):
    """Sends a call when the coordinator permits it, or when another call has ended. Reports are batched.

    The limit of a single evaluation (`at_most`) is ignored, because all evaluations share one limit.
    """

    def __init__(self, trade: Callable[[Trade], Awaitable[Terms]]) -> None:
        """`trade` sends a report to the coordinator and returns its answer."""
        super().__init__()
        self._trade = trade
        self._opens: defaultdict[str, _Open] = defaultdict(_Open)
        self._talks: set[asyncio.Task[None]] = set()

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Return idle permits when the block ends. It sets no limit."""
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
        """Wait until the limit of all shards has room for a call; return when the call left."""
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
        """Count a call as ended, here and at the coordinator."""
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
        """Give the permit of an ended call to a waiting call, or return it."""
        open_ = self._opens[endpoint]
        open_.idle += 1
        if open_.held > open_.keep:
            open_.give_back(1)
            self._tell(endpoint)
        else:
            open_.replaced += open_.serve()

    def _tell(self, endpoint: str) -> None:
        """Schedule a report at the end of this turn of the event loop."""
        open_, loop = self._opens[endpoint], asyncio.get_running_loop()
        if isinstance(open_.due, asyncio.TimerHandle):
            open_.due.cancel()
            open_.due = None
        if open_.due is None:
            open_.due = loop.call_soon(self._begin_talk, endpoint)

    def _tell_later(self, endpoint: str) -> None:
        """Schedule the next report, if this shard has permits."""
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
        except Exception as error:  # noqa: BLE001 - raised in every waiting call
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
