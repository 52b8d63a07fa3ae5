"""Limits on the calls in flight, and on the rate of calls to an endpoint that refuses them.

A limiter serves a client and everything that uses it: all rollouts, all workers, and judges that are called
through the host. Waiting calls leave in order of the age of their rollout, so that started rollouts finish
first. A refused call waits outside the limiter (`wander.clients.retries`), so it does not block other calls.

`Pace` decides the rate of calls to an endpoint that refuses some of them (429, 503, 529).
`benchmarks/rate_limits.py` measures it against many kinds of endpoints.

- Endpoints refuse single calls for reasons of their own. As long as fewer than a tenth of the calls are
  refused, other calls are not slowed down.
- If significantly more calls are refused, the rate is set to the number of calls that the endpoint accepted
  in the last second. It then grows again: slowly up to the rate that was refused, otherwise faster with each
  second without refusals.
- If refusals continue although the endpoint now accepts fewer calls than before, the rate is not the cause.
  The limit is then lifted, and that share of refusals is tolerated.
- If nearly all calls are refused, ten calls per second test whether that lasts. If it does, all calls wait
  until the earliest time that the endpoint named, or for a pause that doubles up to five seconds.

A call in flight counts as accepted until it is refused, because refusals arrive quickly, but completions may
take minutes. `Pace` never reads a clock and never sleeps. The caller passes all times, in seconds of a
monotonic clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import defaultdict, deque
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

_TOLERATED, _MOST_TOLERATED = 0.1, 0.6
"""Tolerated share of refusals, below which calls are not slowed down: initially, and at most if the rate
proved not to be the cause."""
_ALL_REFUSED = 0.93
_SECOND, _CALLS = 1.0, 20
"""Window for judging refusals: the last second, or the last 20 calls if those took longer."""
_FIRST_CALLS, _FIRST_RATE, _FIRST_DOUBLING = 16, 100.0, 0.1
"""Number of calls that may leave together at the start, and the rate that follows and doubles every 0.1 s. A
strict endpoint then refuses dozens of calls instead of thousands. After half a second the rate no longer
limits anything."""
_DOUBLING, _FAST_DOUBLING, _SHORTEST_DOUBLING = 60.0, 1.0, 0.5
"""Seconds until a lowered rate has doubled: the normal value, the value if less than a second was measured,
and the minimum. The time is halved after each second with almost no refusals, unless the rate is just below
the rate that was refused."""
_PROBE_RATE, _PROBES = 10.0, 15
"""Calls per second, and number of calls, that test whether an endpoint refuses everything."""
_LEAST_RATE, _MOST_RATE = 0.5, 1e6
_KEPT = 0.85
"""Smallest share of the rate that a cut leaves, unless the endpoint refused most of the calls. An endpoint
that allows no bursts refuses every second call even if the rate is only slightly too high."""
_LONGEST_HOLD = 5.0
_LAG = 0.005
"""Seconds of calls that may leave together at high rates, because timers are not finer than a millisecond. At
lower rates, calls leave one by one, for endpoints that allow no bursts."""


@dataclass
class _Departures:
    """A group of calls that left within a tenth of a second."""

    since: float
    left: int = 0
    refused: int = 0


class Pace:
    """The rate of calls to an endpoint."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.held_until = -math.inf
        """Time before which no call may leave."""
        self.accepted_at: float | None = None
        """Time when the endpoint last accepted a call, or first refused one."""
        self.refused_in_a_row = 0
        self.paused_seconds = 0.0
        """Total number of seconds that all calls were held."""
        self._recent: deque[_Departures] = deque()
        self._next_at = -math.inf
        self._tolerated = _TOLERATED
        self._taken_before: float | None = None
        """Accepted calls per second before the first cut of a series without a clean second in between."""
        self._ceiling = math.inf
        """Rate when the endpoint last refused too many calls."""
        self._holds = 0
        """Number of holds since the endpoint last accepted a call."""
        self._is_bound = False
        self._rate, self._doubling = _FIRST_RATE, _FIRST_DOUBLING
        self._since = self._judged_from = self._reviewed_at = -math.inf
        """Times when the rate was set, when judging of refusals started, and of the last review."""
        self._told_at = math.inf
        """Earliest time that the endpoint named in refusals since the rate was set."""

    def rate(self, now: float) -> float | None:
        """Return the maximum number of calls per second, or None if there is no limit."""
        return self._limit(now) if self._is_bound else None

    def wait(self, now: float) -> float:
        """Return the seconds until a call may leave; 0 means now."""
        return max(0.0, self.held_until - now, self._next_at - now)

    def note_began(self, now: float) -> None:
        """Count a call that leaves."""
        if self._since == -math.inf:
            self._set(now, _FIRST_RATE, _FIRST_DOUBLING, is_bound=False)
        if now - self._reviewed_at >= _SECOND:
            self._review(now)
        limit = self._limit(now)
        lag = _LAG if limit > 1 / _LAG else 0.0
        if not self._is_bound:
            lag = max(lag, _FIRST_CALLS / limit)
        self._next_at = max(self._next_at, now - lag) + 1 / limit
        self.in_flight += 1
        recent = self._recent
        if not recent or now - recent[-1].since >= _SECOND / 10 or recent[-1].since < self._judged_from:
            recent.append(_Departures(now))
            left = sum(departures.left for departures in recent)
            while left - recent[0].left >= _CALLS and recent[1].since <= now - _SECOND:
                left -= recent.popleft().left
        recent[-1].left += 1

    def note_ended(self) -> None:
        """Count a call in flight as ended, however it ended."""
        self.in_flight -= 1

    def note_accepted(self, now: float) -> None:
        """Record that the endpoint accepted a call, even if its response was a failure."""
        if not self._is_bound:
            # so that an endpoint that responds quickly receives more calls from the start
            self._next_at -= 2 / self._limit(now)
        self._holds = self.refused_in_a_row = 0
        self.accepted_at = now

    def note_refused(self, now: float, began: float, told: float | None) -> None:
        """Record, after `note_ended`, that a call that left at `began` was refused.

        `told` is the number of seconds until the endpoint wants the next request, if it named one.
        """
        self.refused_in_a_row += 1
        if self.accepted_at is None:
            self.accepted_at = now
        for departures in reversed(self._recent):
            if departures.since <= began:
                departures.refused += 1
                break
        if began < self._judged_from:
            return
        if told is not None:
            self._told_at = min(self._told_at, now + told)
        left, refused, _ = self._count(self._judged_from, now)
        tolerated = self._tolerated
        if refused >= _ALL_REFUSED * left and left >= 4:
            if self._rate > _PROBE_RATE and not self._holds:
                self._set(now, _PROBE_RATE, _FAST_DOUBLING)
            elif self._holds or left >= _PROBES:
                self._hold(now)
        elif refused > 1 + tolerated * left + 4 * math.sqrt(tolerated * (1 - tolerated) * left):
            # Four standard deviations: at a tolerated share, chance rarely produces that many refusals.
            self._cut(now, refused / left)

    def _limit(self, now: float) -> float:
        if self._since == -math.inf:
            return self._rate
        doublings = max(0.0, now - self._since) / self._doubling
        return min(_MOST_RATE, self._rate * float(2.0 ** min(doublings, 60.0)))

    def _set(self, now: float, rate: float, doubling: float, *, is_bound: bool = True) -> None:
        """Set a new rate, and judge only the calls that follow."""
        self._rate, self._doubling, self._is_bound = max(_LEAST_RATE, rate), doubling, is_bound
        self._since = self._judged_from = self._reviewed_at = now
        self._told_at = math.inf

    def _count(self, since: float, now: float) -> tuple[int, int, float]:
        """Return calls, refusals and seconds since a time, as far back as calls are remembered."""
        counted = [departures for departures in self._recent if departures.since >= since]
        first = counted[0].since if counted else now
        left = sum(departures.left for departures in counted)
        return left, sum(departures.refused for departures in counted), now - first

    def _taken(self, now: float) -> float:
        """Return the number of calls per second that the endpoint recently accepted."""
        left, refused, seconds = self._count(-math.inf, now)
        return (left - refused) / max(_SECOND / 2, seconds)

    def _cut(self, now: float, share: float) -> None:
        """Lower the rate to what the endpoint accepts."""
        if self._lift_if_useless(now):
            return
        limit, taken = self._limit(now), self._taken(now)
        calls, _, seconds = self._count(-math.inf, now)
        is_rough = seconds < _SECOND
        if self._taken_before is None and not is_rough and calls >= _CALLS:
            self._taken_before = taken
        self._tolerated, self._ceiling = _TOLERATED, limit
        least = min(_KEPT * limit, 2 * taken) if share < _MOST_TOLERATED else 0.0
        self._set(now, min(limit, max(taken, least)), _FAST_DOUBLING if is_rough else _DOUBLING)

    def _lift_if_useless(self, now: float) -> bool:
        """Lift the limit if it cost nearly half of the accepted calls and the endpoint still refuses some."""
        if self._taken_before is None or self._taken(now) > 0.45 * self._taken_before:
            return False
        left, refused, _ = self._count(-math.inf, now)
        self._tolerated = min(_MOST_TOLERATED, max(_TOLERATED, 1.25 * refused / left))
        self._lift(now)
        return True

    def _lift(self, now: float) -> None:
        self._taken_before = None
        self._set(now, self._limit(now), _FIRST_DOUBLING, is_bound=False)

    def _hold(self, now: float) -> None:
        """Hold all calls for as long as the endpoint asks, or for a pause that doubles."""
        pause = min(0.5 * 2.0 ** min(self._holds, 8), _LONGEST_HOLD)
        until = now + pause if self._told_at == math.inf else max(now, self._told_at)
        self._holds += 1
        self.paused_seconds += max(0.0, until - max(now, self.held_until))
        self.held_until = until
        self._recent.clear()
        self._taken_before = None
        self._set(until, _FIRST_RATE, _FIRST_DOUBLING)

    def _review(self, now: float) -> None:
        """Review the last second: without refusals, raise the rate faster, or lift a limit far above the
        need."""
        left, refused, _ = self._count(self._judged_from, now)
        if left < _CALLS / 2:
            return
        limit, share = self._limit(now), refused / left
        self._tolerated = max(_TOLERATED, min(self._tolerated, 0.8 * self._tolerated + 0.25 * share))
        if refused <= 1 + self._tolerated / 2 * left:
            self._taken_before = None
            if self._is_bound and limit > 8 * self._taken(now):
                self._lift(now)
            else:
                self._rate, self._since, self._judged_from = limit, now, now
                is_near = _KEPT**2 * self._ceiling < limit < self._ceiling
                self._doubling = _DOUBLING if is_near else max(_SHORTEST_DOUBLING, self._doubling / 2)
        elif left >= _CALLS:
            self._lift_if_useless(now)
        self._reviewed_at = now


def format_rate(rate: float) -> str:
    """Return a rate in words, such as `12 calls/s` or `3 calls/min`."""
    return f"{rate:.0f} calls/s" if rate >= 1 else f"{max(1, round(rate * 60))} calls/min"


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
        if self._acquire_now(pace):
            return monotonic()
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

    def _acquire_now(self, pace: Pace) -> bool:
        """Start a call if it may leave immediately and no other call waits; return whether it started."""
        now = monotonic()
        if self._queue.waiting or not self._has_room() or pace.wait(now) > 0:
            return False
        self._leave(pace, now)
        return True

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
        rates = [rate for pace in queue.paces.values() if (rate := pace.rate(now)) is not None]
        return LimiterStatus(
            in_flight=queue.in_flight,
            waiting=sum(map(len, queue.waiting.values())),
            rate=min(rates, default=None),
            paused_seconds=max((pace.held_until - now for pace in queue.waiting), default=0.0),
        )

    def _own(self, rollout_id: str) -> str:
        """Return the id of a rollout that is unique among all rollouts that share the queue."""
        return rollout_id

    def _has_room(self) -> bool:
        return not self._queue.bounds or self._queue.in_flight < min(self._queue.bounds)

    def _leave(self, pace: Pace, now: float) -> None:
        self._queue.in_flight += 1
        pace.note_began(now)

    def _dispatch(self) -> None:
        """Start every waiting call that may leave, oldest first, and set a timer for the next one."""
        queue = self._queue
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        now = monotonic()
        while queue.waiting and self._has_room():
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
                self._leave(pace, now)
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
