"""Bounds the calls of one shard by what all shards may ask: a limiter whose permits the coordinator gives."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from wander.clients.rate_limit import CallLimiter, Pace

from wander_client.ray_engine.coordinator import Refusal, Trade


class Trader(Protocol):
    """Asks the coordinator in a shard's name."""

    async def trade(self, trade: Trade) -> int:
        """Return how many calls may leave."""
        ...


@dataclass
class _Open:
    """What the coordinator has not been told of an endpoint, and who waits for it."""

    released: int = 0
    accepted: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    asking: int = 0
    """Permits that are asked for already."""
    due: bool = False


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
        """Count it, and pass it on."""
        super().note_accepted(now)
        self._open.accepted += 1
        self._tell()

    def note_refused(
        self, now: float, began: float, retry_after: float | None, *, status: int = 429, earlier: int = 0
    ) -> float:
        """Return how long this call waits by itself, and pass the refusal on."""
        self._open.refusals.append(Refusal(now - began, retry_after, status, earlier))
        self._tell()
        return super().note_refused(now, began, retry_after, status=status, earlier=earlier)


class RayLimiter(CallLimiter):
    """Calls leave when the coordinator says so; what it is to be told goes together, once a turn of the loop.

    The bound that an evaluation itself asks for (`at_most`) does not count: the whole has one.
    """

    def __init__(self, trader: Trader) -> None:
        super().__init__()
        self._trader = trader
        self._opens: defaultdict[str, _Open] = defaultdict(_Open)
        self._talks: set[asyncio.Task[None]] = set()

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Change nothing."""
        yield

    def pace(self, endpoint: str) -> Pace:
        """Return the pace of the endpoint at an address."""
        if endpoint not in self._line.paces:
            told = _ToldPace(endpoint, self._opens[endpoint], lambda: self._tell(endpoint))
            self._line.paces[endpoint] = told
        return self._line.paces[endpoint]

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until all shards together leave room for a call; return when it left."""
        assert isinstance(pace, _ToldPace)
        open_ = self._opens[pace.endpoint]
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        open_.waiting.append(left)
        self._tell(pace.endpoint)
        try:
            await left
        except asyncio.CancelledError:
            if left.done() and not left.cancelled() and left.exception() is None:
                self._give_back(pace.endpoint, 1)
            raise
        now = monotonic()
        self._leave(pace, now)
        return now

    def release(self, pace: Pace) -> None:
        """Count a call as ended, here and for all."""
        super().release(pace)
        assert isinstance(pace, _ToldPace)
        self._give_back(pace.endpoint, 1)

    def give_up(self, pace: Pace, error: Exception) -> None:
        """Raise an error in every call of this shard that waits for an endpoint."""
        assert isinstance(pace, _ToldPace)
        for left in self._opens[pace.endpoint].waiting:
            if not left.done():
                left.set_exception(error)

    def _give_back(self, endpoint: str, permits: int) -> None:
        self._opens[endpoint].released += permits
        self._tell(endpoint)

    def _tell(self, endpoint: str) -> None:
        """Talk to the coordinator at the end of this turn of the event loop."""
        open_ = self._opens[endpoint]
        if not open_.due:
            open_.due = True
            asyncio.get_running_loop().call_soon(self._begin_talk, endpoint)

    def _begin_talk(self, endpoint: str) -> None:
        open_ = self._opens[endpoint]
        open_.due = False
        open_.waiting = deque(left for left in open_.waiting if not left.done())
        wanted = max(0, len(open_.waiting) - open_.asking)
        if not (open_.released or open_.accepted or open_.refusals or wanted):
            return
        trade = Trade(endpoint, open_.released, open_.accepted, tuple(open_.refusals), wanted)
        open_.released = open_.accepted = 0
        open_.refusals = []
        open_.asking += wanted
        talk = asyncio.create_task(self._talk(trade))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, trade: Trade) -> None:
        open_ = self._opens[trade.endpoint]
        try:
            granted = await self._trader.trade(trade)
        except Exception as error:  # noqa: BLE001 - told to whoever waits: without permits nothing goes on
            open_.asking -= trade.wanted
            self.give_up(self.pace(trade.endpoint), error)
            return
        open_.asking -= trade.wanted
        while granted and open_.waiting:
            left = open_.waiting.popleft()
            if not left.done():
                left.set_result(None)
                granted -= 1
        if granted:
            self._give_back(trade.endpoint, granted)
        elif open_.waiting:
            self._tell(trade.endpoint)
