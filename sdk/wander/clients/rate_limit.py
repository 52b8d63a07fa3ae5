"""Bounds the model calls in flight, and the rate of calls to an endpoint that refuses them.

One limiter serves a client and everybody who uses it: every rollout, every worker, and the judges that ask
through the host. Calls that wait leave by the age of their rollout, so that rollouts that started are
finished first. A call that was refused waits outside the limiter (`wander.clients.retries`), so it bounds
nobody else.

`Pace` decides how fast an endpoint is asked that refuses calls (429, 503, 529). `benchmarks/rate_limits.py`
measures it against endpoints of many kinds.

- Endpoints refuse single calls for reasons of their own. As long as fewer than a tenth of the calls are
  refused, nobody else is slowed down.
- If significantly more are refused, the rate becomes what the endpoint took in the last second. The rate
  then grows again: slowly up to what was refused, otherwise faster with each second without refusals.
- If the refusals stay although the calls became so few that the endpoint takes less than before, the rate is
  not their cause. The bound is lifted, and that share of refusals is tolerated.
- If practically everything is refused, ten calls a second find out whether that lasts. If it does, nobody
  asks until the earliest time that the endpoint named, or for a pause that doubles up to five seconds.

A call in flight counts as taken until it is refused: refusals come back fast, answers may take minutes.
Nothing in `Pace` reads a clock or sleeps: the caller passes all times, in seconds of one monotonic clock.
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
"""Statuses that mean: too many calls at the moment, the same call may pass later."""

_TOLERATED, _MOST_TOLERATED = 0.1, 0.6
"""Share of refusals that bounds nobody: at first, and at most if the rate proved not to be their cause."""
_ALL_REFUSED = 0.93
_SECOND, _CALLS = 1.0, 20
"""Refusals are judged over the last second, or over the last 20 calls if those took longer."""
_FIRST_CALLS, _FIRST_RATE, _FIRST_DOUBLING = 16, 100.0, 0.1
"""Calls that may leave together at the start, and the rate that follows and doubles every 0.1 s. So a strict
endpoint refuses dozens of calls and not thousands. After half a second it bounds nothing any more."""
_DOUBLING, _FAST_DOUBLING, _SHORTEST_DOUBLING = 60.0, 1.0, 0.5
"""Seconds in which the rate doubles after it was lowered: usually, and if less than a second was measured.
They halve with each second that has next to no refusals, but not shortly below the rate that was refused."""
_PROBE_RATE, _PROBES = 10.0, 15
"""Calls a second, and how many of them, that find out whether an endpoint refuses everything."""
_LEAST_RATE, _MOST_RATE = 0.5, 1e6
_KEPT = 0.85
"""The rate falls to this share at most, unless the endpoint refused most of the calls: an endpoint that
allows no burst at all refuses every second call of a rate that is barely too high."""
_LONGEST_HOLD = 5.0
_LAG = 0.005
"""Seconds of calls that may leave together at high rates, since timers are no finer than a millisecond.
Slower calls keep their distance, for endpoints that allow no burst."""


@dataclass
class _Departures:
    """Calls that left within a tenth of a second."""

    since: float
    left: int = 0
    refused: int = 0


class Pace:
    """The rate of calls to one endpoint."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.held_until = -math.inf
        """No call leaves before."""
        self.accepted_at: float | None = None
        """When the endpoint last took a call, or first refused one."""
        self.refused_in_a_row = 0
        self.paused_seconds = 0.0
        """Seconds for which all calls were held, in total."""
        self._recent: deque[_Departures] = deque()
        self._next_at = -math.inf
        self._tolerated = _TOLERATED
        self._taken_before: float | None = None
        """Calls a second that the endpoint took before the first of the cuts that nothing clean followed."""
        self._ceiling = math.inf
        """The rate at which the endpoint refused too many calls last."""
        self._holds = 0
        """Holds since the endpoint last took a call."""
        self._is_bound = False
        self._rate, self._doubling = _FIRST_RATE, _FIRST_DOUBLING
        self._since = self._judged_from = self._reviewed_at = -math.inf
        """When the rate was set, the moment from which refusals are judged, and that of the last review."""
        self._told_at = math.inf
        """The earliest time that the endpoint named in refusals since then."""

    def rate(self, now: float) -> float | None:
        """Return how many calls a second may leave; None means any number."""
        return self._limit(now) if self._is_bound else None

    def wait(self, now: float) -> float:
        """Return in how many seconds a call may leave; 0 means now."""
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
        """Count one call less in flight, however it ended."""
        self.in_flight -= 1

    def note_accepted(self, now: float) -> None:
        """Record that the endpoint took a call, whatever it answered."""
        if not self._is_bound:
            self._next_at -= 2 / self._limit(now)  # one that answers fast is asked fast from the start
        self._holds = self.refused_in_a_row = 0
        self.accepted_at = now

    def note_refused(self, now: float, began: float, told: float | None) -> None:
        """Record, after `note_ended`, that a call which left at `began` was refused.

        `told`: seconds after which the endpoint wants to be asked again, if it named any.
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
            # Four standard deviations: at a share of refusals that is tolerated, chance reaches this rarely.
            self._cut(now, refused / left)

    def _limit(self, now: float) -> float:
        if self._since == -math.inf:
            return self._rate
        doublings = max(0.0, now - self._since) / self._doubling
        return min(_MOST_RATE, self._rate * float(2.0 ** min(doublings, 60.0)))

    def _set(self, now: float, rate: float, doubling: float, *, is_bound: bool = True) -> None:
        """Start a new rate, and judge only what follows."""
        self._rate, self._doubling, self._is_bound = max(_LEAST_RATE, rate), doubling, is_bound
        self._since = self._judged_from = self._reviewed_at = now
        self._told_at = math.inf

    def _count(self, since: float, now: float) -> tuple[int, int, float]:
        """Return calls, refusals and seconds from a moment on, as far back as calls are remembered."""
        counted = [departures for departures in self._recent if departures.since >= since]
        first = counted[0].since if counted else now
        left = sum(departures.left for departures in counted)
        return left, sum(departures.refused for departures in counted), now - first

    def _taken(self, now: float) -> float:
        """Return how many calls a second the endpoint took recently."""
        left, refused, seconds = self._count(-math.inf, now)
        return (left - refused) / max(_SECOND / 2, seconds)

    def _cut(self, now: float, share: float) -> None:
        """Lower the rate to what the endpoint takes."""
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
        """Lift the bound if it cost nearly half of what the endpoint took, and it still refuses calls."""
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
        """Let nobody ask for as long as the endpoint says, or for a while."""
        pause = min(0.5 * 2.0 ** min(self._holds, 8), _LONGEST_HOLD)
        until = now + pause if self._told_at == math.inf else max(now, self._told_at)
        self._holds += 1
        self.paused_seconds += max(0.0, until - max(now, self.held_until))
        self.held_until = until
        self._recent.clear()
        self._taken_before = None
        self._set(until, _FIRST_RATE, _FIRST_DOUBLING)

    def _review(self, now: float) -> None:
        """Look at the last second: without refusals the rate grows faster, and far above the need it goes."""
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
    """Return a rate in words: `12 calls/s`, `3 calls/min`."""
    return f"{rate:.0f} calls/s" if rate >= 1 else f"{max(1, round(rate * 60))} calls/min"


@dataclass(frozen=True)
class LimiterStatus:
    """What a limiter does at the moment."""

    in_flight: int
    waiting: int
    rate: float | None
    """Calls a second that the strictest endpoint gets; None while none refuses."""
    paused_seconds: float
    """How long no call will leave to an endpoint that is waited for."""


@dataclass
class _CallQueue:
    """The calls that are in flight, and those that wait, of everybody who shares a limiter."""

    bounds: list[int]
    paces: defaultdict[str, Pace] = field(default_factory=lambda: defaultdict(Pace))
    waiting: dict[Pace, list[tuple[int, int, asyncio.Future[None]]]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    ages: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    timer: asyncio.TimerHandle | None = None


class CallLimiter:
    """Lets calls leave; `acquire` one, make it, `release` it. Belongs to one event loop at a time."""

    def __init__(self, most: int | None = None) -> None:
        self._queue = _CallQueue([] if most is None else [most])
        self.calls = 0
        self.retries = 0
        self.refusals = 0

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Bound the calls in flight for the length of a block; the lowest of several bounds counts."""
        self._queue.bounds.append(calls)
        try:
            yield
        finally:
            self._queue.bounds.remove(calls)

    def pace(self, endpoint: str) -> Pace:
        """Return the pace of the endpoint at an address."""
        return self._queue.paces[endpoint]

    def begin(self, rollout_id: str) -> None:
        """Learn that a rollout begins: its calls leave before those of rollouts that begin later."""
        self._queue.ages[self._own(rollout_id)] = next(self._queue.numbers)

    def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        self._queue.ages.pop(self._own(rollout_id), None)

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until a call may leave; return when it did. Calls of no known rollout are the first."""
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
        """Have a call leave if it may at once and nobody waits; tell whether it does."""
        now = monotonic()
        if self._queue.waiting or not self._has_room() or pace.wait(now) > 0:
            return False
        self._leave(pace, now)
        return True

    def release(self, pace: Pace) -> None:
        """Count a call as ended and let the next ones leave."""
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
        """Return the use of endpoints through this limiter since it was made."""
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
        """Return what is in flight and what delays calls."""
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
        """Return the name of a rollout among all whose calls wait here."""
        return rollout_id

    def _has_room(self) -> bool:
        return not self._queue.bounds or self._queue.in_flight < min(self._queue.bounds)

    def _leave(self, pace: Pace, now: float) -> None:
        self._queue.in_flight += 1
        pace.note_began(now)

    def _dispatch(self) -> None:
        """Let every call leave that may, the oldest first; come back when time alone lets another leave."""
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
            pace = min(ready, key=lambda each: queue.waiting[each][0])
            _, _, left = heapq.heappop(queue.waiting[pace])
            if not queue.waiting[pace]:
                del queue.waiting[pace]
            if not left.done():
                self._leave(pace, now)
                left.set_result(None)


SHARED_LIMITER: ContextVar[CallLimiter | None] = ContextVar("wander_shared_limiter", default=None)
"""The limiter of the evaluation whose code runs. Clients without one of their own, such as judges, use it."""


class SharedLimiter(CallLimiter):
    """One evaluation's share of a limiter: bounds, paces and order are everybody's, the counts its own.

    `name` keeps the rollouts of evaluations apart that have the same ids. The bound that an evaluation itself
    asks for (`at_most`) does not count: the whole has one. Pauses hold up all: each tells them all.
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
