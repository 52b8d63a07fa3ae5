"""Limits on the calls in flight, and on the rate of calls to an endpoint that refuses them.

A limiter serves a client and everything that uses it: all rollouts, all workers, and judges that are called
through the host. Waiting calls leave in order of the age of their rollout, so that started rollouts finish
first. A refused call waits outside the limiter (`wander.clients.retries`), so it does not block other calls.

`Pace` decides the rate of calls to an endpoint that refuses some of them (429, 503, 529).
`benchmarks/rate_limits.py` measures it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic

from wander.clients.sub_calls import main_rollout_id
from wander.wire import EndpointUse

REFUSALS = frozenset({429, 503, 529})
"""Statuses that mean that the endpoint receives too many calls at the moment. The same call may succeed
later."""

_TOLERATED = 0.1
"""Share of refused calls up to which the rate is not lowered, unless the rate proved not to be the cause."""
_CALLS = 20
"""Number of calls that shows the share of refusals. After a hold, as many calls leave per second."""
_LEAST_RATE = 0.5
_GROWTH = 0.1
"""Share by which the rate grows in the first interval after it was lowered."""
_SHORTEST_HOLD, _LONGEST_HOLD = 0.5, 5.0
_LAG = 0.005
"""Seconds by which a late call may bring the next one forward, because timers are late by a millisecond."""


class Pace:
    """The rate of calls to an endpoint.

    Calls are not limited until the endpoint refuses some. Then the share of refused calls decides, once in
    each interval of a second, or of 20 calls if they take longer:

    - Up to a tenth of the calls refused: the rate grows by 10%, in the next interval by 20%, and so on up to
      100%. If fewer than half of the calls leave that it allows, the limit ends.
    - More refused: the rate becomes the number of calls per second that the endpoint accepted.
    - Still as many refused after the rate was lowered: the rate is not the cause. The share is tolerated, and
      the rate grows again.
    - Four of five refused: all calls are held for as long as the endpoint asks, or else for as long as it has
      accepted no call, at most five seconds. Then 20 calls per second test it.

    A call in flight counts as accepted until it is refused, because refusals arrive quickly, but completions
    may take minutes. `Pace` never reads a clock and never sleeps. The caller passes all times, in seconds of
    a monotonic clock.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        """Maximum number of calls per second; None without a limit."""
        self.in_flight = 0
        self.held_until = -math.inf
        """Time before which no call may leave."""
        self.accepted_at: float | None = None
        """Time when the endpoint last accepted a call, or first refused one."""
        self.refused_in_a_row = 0
        self.paused_seconds = 0.0
        """Total number of seconds that all calls were held."""
        self._next_at = -math.inf
        self._growth = _GROWTH
        self._tolerated = _TOLERATED
        self._share_before = math.inf
        """Share of refused calls before the rate was lowered, if that was in the last interval."""
        self._refusal_seconds = 0.0
        """Seconds that the last refusal took."""
        self._since, self._left, self._refused = -math.inf, 0, 0
        """Start of the current interval, number of calls that left since then, and number of refused ones."""

    def wait(self, now: float) -> float:
        """Return the seconds until a call may leave; 0 means now."""
        return max(0.0, self.held_until - now, self._next_at - now)

    def note_began(self, now: float) -> None:
        """Count a call that leaves."""
        if now - self._since >= self._interval():
            self._adjust()
            self._since, self._left, self._refused = now, 0, 0
        self._left += 1
        self.in_flight += 1
        if self.rate is not None:
            self._next_at = max(self._next_at, now - _LAG) + 1 / self.rate

    def note_ended(self) -> None:
        """Count a call in flight as ended, however it ended."""
        self.in_flight -= 1

    def note_accepted(self, now: float) -> None:
        """Record that the endpoint accepted a call, even if its response was a failure."""
        self.refused_in_a_row = 0
        self.accepted_at = now

    def note_refused(self, now: float, began: float, told: float | None) -> None:
        """Record, after `note_ended`, that a call that left at `began` was refused.

        `told` is the number of seconds until the endpoint wants the next request, if it named one.
        """
        self.refused_in_a_row += 1
        if self.accepted_at is None:
            self.accepted_at = now
        self._refusal_seconds = min(now - began, 15.0)
        if began < self._since:
            return
        self._refused += 1
        if self._refused >= max(_CALLS / 2, 0.8 * self._left):
            pause = min(max(_SHORTEST_HOLD, now - self.accepted_at), _LONGEST_HOLD) if told is None else told
            self._hold(now, pause)

    def _interval(self) -> float:
        """Return the length of an interval in seconds, long enough for most refusals to arrive."""
        return max(1.0, _CALLS / (self.rate or math.inf), 4 * self._refusal_seconds)

    def _adjust(self) -> None:
        """Change the rate at the end of an interval."""
        share = self._refused / max(1, self._left)
        # With few calls, chance easily adds three refusals.
        if self._refused > self._tolerated * self._left + 3:
            if share > 0.8 * self._share_before:
                # Lowering the rate did not help.
                self._tolerated, self._growth = 1.25 * share, 1.0
            else:
                self.rate = max(_LEAST_RATE, (self._left - self._refused) / self._interval())
                self._share_before, self._growth = share, _GROWTH
            return
        self._share_before = math.inf
        # Tolerance ends if the endpoint no longer refuses calls: it may have been a rate limit after all.
        self._tolerated = max(_TOLERATED, 0.9 * self._tolerated + 0.1 * 1.25 * share)
        if self.rate is not None and self._left >= self.rate * self._interval() / 2:
            self.rate *= 1 + self._growth
            self._growth = min(1.0, 2 * self._growth)
        else:
            self.rate = None

    def _hold(self, now: float, pause: float) -> None:
        """Hold all calls, then test the endpoint with a few."""
        self.held_until = self._since = now + pause
        self.paused_seconds += pause
        self.rate = _CALLS if self.rate is None else min(self.rate, _CALLS)
        self._growth, self._share_before = 1.0, math.inf
        self._left = self._refused = 0


@dataclass(frozen=True)
class LimiterStatus:
    """The current state of a limiter."""

    in_flight: int
    waiting: int
    rate: float | None
    """Calls per second to the most strictly limited endpoint; None if no endpoint is limited."""
    paused_seconds: float
    """Seconds until calls to a held endpoint may leave."""


@dataclass
class _CallQueue:
    """The calls in flight and the waiting calls of everything that shares a limiter."""

    bounds: list[int]
    paces: defaultdict[str, Pace] = field(default_factory=lambda: defaultdict(Pace))
    waiting: dict[Pace, list[tuple[int, int, asyncio.Future[None]]]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    ages: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    timer: asyncio.TimerHandle | None = None


class CallLimiter:
    """Limits calls: `acquire` a permission, make the call, then `release` it.

    A limiter belongs to one event loop at a time.
    """

    def __init__(self, most: int | None = None) -> None:
        self._queue = _CallQueue([] if most is None else [most])
        self.calls = 0
        self.retries = 0
        self.refusals = 0

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Limit the calls in flight for the duration of a block; the lowest of several limits applies."""
        self._queue.bounds.append(calls)
        try:
            yield
        finally:
            self._queue.bounds.remove(calls)

    def pace(self, endpoint: str) -> Pace:
        """Return the pace of the endpoint at an address."""
        return self._queue.paces[endpoint]

    def begin(self, rollout_id: str) -> None:
        """Note that a rollout starts. Its calls leave before those of rollouts that start later."""
        self._queue.ages[self._own(rollout_id)] = next(self._queue.numbers)

    def end(self, rollout_id: str) -> None:
        """Note that a rollout ended."""
        self._queue.ages.pop(self._own(rollout_id), None)

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until a call may leave and return that time. Calls without a known rollout go first."""
        queue = self._queue
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        age = queue.ages.get(main_rollout_id(self._own(rollout_id)), -1)
        heapq.heappush(queue.waiting.setdefault(pace, []), (age, next(queue.numbers), left))
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
        """Count a call as ended and start waiting calls."""
        self._queue.in_flight -= 1
        pace.note_ended()
        if self._queue.waiting:
            self._dispatch()

    def give_up(self, pace: Pace, error: Exception) -> None:
        """Raise an error in every call that waits for an endpoint."""
        for _, _, left in self._queue.waiting.pop(pace, []):
            if not left.done():
                left.set_exception(error)

    def use(self) -> EndpointUse:
        """Return the use of endpoints through this limiter since it was created."""
        queue = self._queue
        now = monotonic()
        paused = sum(pace.paused_seconds - max(0.0, pace.held_until - now) for pace in queue.paces.values())
        return EndpointUse(
            calls=self.calls,
            retries=self.retries,
            refusals=self.refusals,
            paused_seconds=round(paused, 3),
        )

    def status(self) -> LimiterStatus:
        """Return the number of calls in flight and the current limits."""
        queue = self._queue
        now = monotonic()
        rates = [pace.rate for pace in queue.paces.values() if pace.rate is not None]
        return LimiterStatus(
            in_flight=queue.in_flight,
            waiting=sum(map(len, queue.waiting.values())),
            rate=min(rates, default=None),
            paused_seconds=max([0.0, *(pace.held_until - now for pace in queue.waiting)]),
        )

    def _own(self, rollout_id: str) -> str:
        """Return the id of a rollout that is unique among all rollouts that share the queue."""
        return rollout_id

    def _dispatch(self) -> None:
        """Start every waiting call that may leave, oldest first, and set a timer for the next one."""
        queue = self._queue
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        now = monotonic()
        while queue.waiting and queue.in_flight < min(queue.bounds, default=math.inf):
            pauses = {pace: pace.wait(now) for pace in queue.waiting}
            ready = [pace for pace, pause in pauses.items() if pause <= 0]
            if not ready:
                soonest = min(pauses.values())
                queue.timer = asyncio.get_running_loop().call_later(soonest, self._dispatch)
                return
            pace = min(ready, key=lambda candidate: queue.waiting[candidate][0])
            _, _, left = heapq.heappop(queue.waiting[pace])
            if not queue.waiting[pace]:
                del queue.waiting[pace]
            if not left.done():
                queue.in_flight += 1
                pace.note_began(now)
                left.set_result(None)


SHARED_LIMITER: ContextVar[CallLimiter | None] = ContextVar("wander_shared_limiter", default=None)
"""Limiter of the current evaluation, for clients without their own limiter, such as judges."""


class SharedLimiter(CallLimiter):
    """An evaluation's view of a shared limiter: limits, paces and order are shared, counts are its own.

    `name` distinguishes rollouts of different evaluations with the same ids. The evaluation's own limit
    (`at_most`) is ignored, because the shared limiter has a limit. Pauses delay all evaluations, and each of
    them reports all pauses.
    """

    def __init__(self, whole: CallLimiter, name: str) -> None:
        super().__init__()
        self._queue = whole._queue
        self._name = name

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Change nothing."""
        yield

    def _own(self, rollout_id: str) -> str:
        return f"{self._name}/{rollout_id}"
