"""Bounds the model calls in flight: of everybody who shares the limiter, and of each endpoint as it allows.

One limiter serves a client and all who use it: every rollout, every worker, and the judges that ask through
the host. Calls that wait leave by the age of their rollout, so that what was begun is finished first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from wander.clients.pace import Pace
from wander.clients.sub_calls import main_rollout_id
from wander.wire import EndpointUse


@dataclass(frozen=True)
class LimiterStatus:
    """What a limiter does at the moment."""

    in_flight: int
    waiting: int
    rate: float | None
    """Calls a second that the strictest endpoint gets; None while none refuses."""
    paused_seconds: float
    """How long no call will leave to an endpoint that is waited for."""


class CallLimiter:
    """Lets calls leave; `acquire` one, make it, `release` it. Belongs to one event loop at a time."""

    def __init__(self, most: int | None = None) -> None:
        self._bounds: list[int] = [] if most is None else [most]
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._waiting: dict[Pace, list[tuple[int, int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()
        self._ages: dict[str, int] = {}
        self._in_flight = 0
        self._timer: asyncio.TimerHandle | None = None
        self.calls = 0
        self.retries = 0
        self.refusals = 0

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Bound the calls in flight for the length of a block; the lowest of several bounds counts."""
        self._bounds.append(calls)
        try:
            yield
        finally:
            self._bounds.remove(calls)

    def pace(self, endpoint: str) -> Pace:
        """Return the pace of the endpoint at an address."""
        return self._paces[endpoint]

    def begin(self, rollout_id: str) -> None:
        """Learn that a rollout begins: its calls leave before those of rollouts that begin later."""
        self._ages[rollout_id] = next(self._numbers)

    def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        self._ages.pop(rollout_id, None)

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until a call may leave; return when it did. Calls of no known rollout are the first."""
        now = monotonic()
        if not self._waiting and self._has_room() and pace.wait(now) <= 0:
            self._leave(pace, now)
            return now
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        age = self._ages.get(main_rollout_id(rollout_id), -1)
        heapq.heappush(self._waiting.setdefault(pace, []), (age, next(self._numbers), left))
        self._dispatch()
        try:
            await left
        except asyncio.CancelledError:
            if left.done() and not left.cancelled() and left.exception() is None:
                self.release(pace)
            else:
                self._dispatch()
            raise
        return monotonic()

    def release(self, pace: Pace) -> None:
        """Count a call as ended and let the next ones leave."""
        self._in_flight -= 1
        pace.ended()
        if self._waiting:
            self._dispatch()

    def give_up(self, pace: Pace, error: Exception) -> None:
        """Raise an error in every call that waits for an endpoint."""
        for _, _, left in self._waiting.pop(pace, []):
            if not left.done():
                left.set_exception(error)

    def use(self) -> EndpointUse:
        """Return the use of endpoints through this limiter since it was made."""
        now = monotonic()
        paused = sum(each.paused_seconds - max(0.0, each.held_until - now) for each in self._paces.values())
        return EndpointUse(
            calls=self.calls,
            retries=self.retries,
            refusals=self.refusals,
            paused_seconds=round(paused, 3),
        )

    def status(self) -> LimiterStatus:
        """Return what is in flight and what delays calls."""
        now = monotonic()
        rates = [rate for pace in self._paces.values() if (rate := pace.rate(now)) is not None]
        return LimiterStatus(
            in_flight=self._in_flight,
            waiting=sum(map(len, self._waiting.values())),
            rate=min(rates, default=None),
            paused_seconds=max((pace.held_until - now for pace in self._waiting), default=0.0),
        )

    def _has_room(self) -> bool:
        return not self._bounds or self._in_flight < min(self._bounds)

    def _leave(self, pace: Pace, now: float) -> None:
        self._in_flight += 1
        pace.began(now)

    def _dispatch(self) -> None:
        """Let every call leave that may, the oldest first; come back when time alone lets another leave."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = monotonic()
        while self._waiting and self._has_room():
            pauses = {pace: pace.wait(now) for pace in self._waiting}
            ready = [pace for pace, pause in pauses.items() if pause <= 0]
            if not ready:
                soonest = min(pauses.values())
                self._timer = asyncio.get_running_loop().call_later(soonest, self._dispatch)
                return
            pace = min(ready, key=lambda each: self._waiting[each][0])
            _, _, left = heapq.heappop(self._waiting[pace])
            if not self._waiting[pace]:
                del self._waiting[pace]
            if not left.done():
                self._leave(pace, now)
                left.set_result(None)
