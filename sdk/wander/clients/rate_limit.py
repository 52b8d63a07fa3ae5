"""Bounds the model calls in flight: of everybody who shares the limiter, and of each endpoint as it allows.

One limiter serves a client and all who use it: every rollout, every worker, and the judges that ask through
the host. Calls that wait leave by the age of their rollout, so that what was begun is finished first.

`Pace` says how fast an endpoint that refuses calls for their number (429, 503, 529) is asked.

Nothing is bounded here until the first refusal, but for a ramp in the first second, so that a strict endpoint
refuses a dozen calls and not a thousand. Then two things adapt together: calls a second, which is what most
endpoints count (with answers after 10 ms even one call at a time is 100 a second), and calls in flight.

- 503 or 529 without `Retry-After` may be a hiccup of some gateway, which has nothing to do with how much is
  asked: only its own call waits, for a short pause that doubles. Such a refusal means too many calls once
  there are more than one to every four calls taken, as in the retry throttling of gRPC (proposal A6): a call
  taken gives a quarter of a token back, and calls in flight count as taken until they are answered.
- `Retry-After`, a second 429 within some 15 calls, or too many 503 hold every caller of the endpoint: as long
  as it says, else for a pause that doubles while nothing is taken.
- The first time, both bounds start at half of what the endpoint had taken and double every second until the
  next refusal, which brackets the limit.
- From then on they follow CUBIC (RFC 9438; AWS's adaptive retries use it for rates): a refusal cuts to 0.7
  of where it happened; the way back is flat around that point and steeper the longer nothing is refused. The
  period is so long that refusals stay at a few in a hundred calls and pauses at a tenth of the time.
- A refusal of a call that left before the last cut is of the same burst, and cuts nothing more.

When the bounds have grown far beyond what is asked for, they are forgotten. Nothing here reads a clock or
sleeps: all times are the caller's, in seconds of one monotonic clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from wander.clients.sub_calls import main_rollout_id
from wander.wire import EndpointUse

REFUSALS = frozenset({429, 503, 529})
"""Statuses that mean: too many calls at the moment, the same call may pass later."""

_CUT = 0.7
_SEARCH_SECONDS = 1.0
_SHORTEST_PERIOD, _LONGEST_PERIOD = 5.0, 30.0
_CALLS_A_PERIOD = 50
_LEAST_RATE = 0.1
_MEMORY = 0.95
_TOLERATED = 0.075
"""Share of 429s, weighted by `_MEMORY` to the power of how many calls ago, that cuts nothing."""
_HICCUPS = 10.0
"""So many hiccups beyond a quarter of the calls taken cut nothing."""
_GIVEN_BACK = 0.25
_HICCUP_PAUSE = 0.1
"""First pause of a call after a hiccup: short, since the endpoint takes the others."""
_FREE, _FREE_SECONDS = 8.0, 5.0
"""The bounds are forgotten so far above the last refusal, when they kept nobody back for so long."""
_RAMP_CALLS = 16
_RAMP_SECONDS = 0.1
"""The ramp: so many calls in flight at first, twice as many after each of these spans."""
_RAMP_END = 1.0
_LAG = 0.005
"""Seconds of calls that may leave together, since timers are no finer than a millisecond."""


class Pace:
    """The bounds of one endpoint, and what they follow from."""

    def __init__(self, *, first_pause: float = 0.5, longest_pause: float = 60.0) -> None:
        self.first_pause = first_pause
        """Pause after a refusal without `Retry-After`; doubles while nothing is taken."""
        self.longest_pause = longest_pause
        self.in_flight = 0
        self.held_until = -math.inf
        """No call leaves before."""
        self.accepted_at: float | None = None
        """When the endpoint last took a call, or first refused one."""
        self._first_at: float | None = None
        self._next_at = -math.inf
        self._bound_at = -math.inf
        """When the bounds last kept a call back."""
        self._cut_at: float | None = None
        """When the bounds were last cut; None while there are none."""
        self._searching = False
        self._rate = 0.0
        self._flight = 0
        """Calls a second and calls in flight at the last refusal: the bounds are these, times `_growth`."""
        self._period = 1.0
        self._streak = 0
        """Cuts since the endpoint last took a call."""
        self._share = 0.0
        self._hiccups = 0.0
        """Refusals that do not say why, beyond a quarter of the calls taken; at least 0."""
        self.paused_seconds = 0.0
        """How long everybody was kept waiting, in all."""
        self._taken = 0
        """Calls that left and were not refused."""
        self._mark = (-math.inf, 0)
        """A moment one to two seconds ago, or of the last cut, and `_taken` then."""
        self._next_mark = (-math.inf, 0)
        self._jitter = random.Random()  # noqa: S311 - spreads retries, decides no result

    def rate(self, now: float) -> float | None:
        """Return how many calls a second may leave; None means any number."""
        return None if self._cut_at is None else self._rate * self._growth(now)

    def is_free(self, now: float) -> bool:
        """Tell whether calls may leave as they come: nothing bounds or holds them, and the ramp is over."""
        ramped = self._first_at is not None and now - self._first_at >= _RAMP_END
        return ramped and self._cut_at is None and now >= self.held_until

    def wait(self, now: float) -> float:
        """Return in how many seconds to ask again whether a call may leave, which now wants to; 0: it may.

        The end of a call in flight may allow it sooner.
        """
        if self._cut_at is None:
            held = max(0.0, self.held_until - now)
            return held if self._first_at is None else max(held, self._ramp(now - self._first_at))
        seconds = max(0.0, self.held_until - now, self._next_at - now)
        if self.in_flight >= 1 + math.ceil(self._flight * self._growth(now)):
            seconds = max(seconds, self._period / 10)
        if seconds > 0:
            self._bound_at = now
        return seconds

    def note_began(self, now: float) -> None:
        """Count a call that leaves."""
        self.in_flight += 1
        self._taken += 1
        if self._cut_at is not None:
            self._next_at = max(self._next_at, now - _LAG) + 1 / (self._rate * self._growth(now))
            return
        if self._first_at is None:
            self._first_at = now
        if now - self._next_mark[0] >= 1.0:
            self._mark, self._next_mark = self._next_mark, (now, self._taken - 1)

    def note_ended(self) -> None:
        """Count a call in flight less, however it ended."""
        self.in_flight -= 1

    def note_accepted(self, now: float) -> None:
        """Learn that the endpoint took a call, whatever it made of it."""
        self._streak = 0
        self._share *= _MEMORY
        self._hiccups = max(0.0, self._hiccups - _GIVEN_BACK)
        self.accepted_at = now
        if self._cut_at is not None and self._growth(now) > _FREE and now - self._bound_at > _FREE_SECONDS:
            self._cut_at = None

    def note_refused(
        self, now: float, began: float, retry_after: float | None, *, status: int = 429, earlier: int = 0
    ) -> float:
        """Learn, after `note_ended`, that a call which left at `began` was refused.

        `earlier`: how many refusals it has waited for alone.

        Returns how many seconds this call has to wait, beside what holds everybody.
        """
        self._taken -= 1
        if self.accepted_at is None:
            self.accepted_at = now
        same_burst = self._cut_at is not None and (began <= self._cut_at or began < self.held_until)
        if same_burst:
            self._flight = max(0, self._flight - 1)
            if self._searching:
                self._rate = max(1.0, self._rate - 0.5)
            return self._hold(now, retry_after or 0.0)
        if retry_after is None and self._is_tolerated(status):
            pause = self.first_pause if status == 429 else _HICCUP_PAUSE
            return self._spread(pause * 2.0 ** min(earlier, 32))
        self._streak += 1
        held = self._spread(self.first_pause * 2.0 ** min(self._streak - 1, 32))
        held = held if retry_after is None else retry_after
        self._cut(now, held)
        return self._hold(now, held)

    def _is_tolerated(self, status: int) -> bool:
        """Count a refusal without `Retry-After`, and return whether it says nothing about what is asked."""
        if status == 429:
            self._share = self._share * _MEMORY + (1 - _MEMORY)
            return self._share <= _TOLERATED
        self._hiccups += 1
        if self._streak:  # nothing was taken since the last cut
            return False
        return self._hiccups - _GIVEN_BACK * self.in_flight <= _HICCUPS

    def _ramp(self, elapsed: float) -> float:
        """Return how long the ramp keeps the next call back."""
        if elapsed >= _RAMP_END:
            return 0.0
        spans = self.in_flight / (_RAMP_CALLS + self._taken - self.in_flight)
        return max(0.0, math.log2(spans) * _RAMP_SECONDS - elapsed) if spans > 1 else 0.0

    def _growth(self, now: float) -> float:
        """Return the bounds' height over the last refusal's."""
        assert self._cut_at is not None
        elapsed = max(0.0, now - max(self._cut_at, self.held_until)) / self._period
        if self._searching:
            return float(2.0 ** min(elapsed, 60.0))
        return float(1 + (1 - _CUT) * (elapsed - 1) ** 3)

    def _hold(self, now: float, seconds: float) -> float:
        before, self.held_until = max(self.held_until, now), max(self.held_until, now + seconds)
        self.paused_seconds += self.held_until - before
        return 0.0

    def _spread(self, pause: float) -> float:
        return min(pause, self.longest_pause) * self._jitter.uniform(0.75, 1.25)

    def _cut(self, now: float, pause: float) -> None:
        before = self.rate(now)
        since, taken = self._next_mark if self._mark[0] == -math.inf else self._mark
        # The calls a second that the endpoint took, lately or since the last cut.
        measured = (self._taken - taken) / max(1.0, now - since)
        if before is None:
            self._searching = True
            self._rate = max(1.0, measured / 2)
            self._period = _SEARCH_SECONDS
        else:
            # A rate far above what is taken has missed the limit by far: go down faster.
            reached = min(before, max(2 * measured, before / 2))
            # RFC 9438, fast convergence: a limit that sinks is given way to.
            sinks = not self._searching and reached < self._rate
            self._rate = max(_LEAST_RATE, reached * (1 + _CUT) / 2 if sinks else reached)
            self._searching = False
            wanted = max(_SHORTEST_PERIOD, _CALLS_A_PERIOD / self._rate)
            self._period = max(min(wanted, _LONGEST_PERIOD), 10 * pause)
        self._share = self._hiccups = 0.0
        self._flight = self.in_flight
        self._cut_at = now
        self._mark = self._next_mark = (now, self._taken)


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
class _Line:
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
        self._line = _Line([] if most is None else [most])
        self.calls = 0
        self.retries = 0
        self.refusals = 0

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Bound the calls in flight for the length of a block; the lowest of several bounds counts."""
        self._line.bounds.append(calls)
        try:
            yield
        finally:
            self._line.bounds.remove(calls)

    def pace(self, endpoint: str) -> Pace:
        """Return the pace of the endpoint at an address."""
        return self._line.paces[endpoint]

    def begin(self, rollout_id: str) -> None:
        """Learn that a rollout begins: its calls leave before those of rollouts that begin later."""
        self._line.ages[self._own(rollout_id)] = next(self._line.numbers)

    def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        self._line.ages.pop(self._own(rollout_id), None)

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until a call may leave; return when it did. Calls of no known rollout are the first."""
        if self.acquire_now(pace):
            return monotonic()
        line = self._line
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        age = line.ages.get(main_rollout_id(self._own(rollout_id)), -1)
        heapq.heappush(line.waiting.setdefault(pace, []), (age, next(line.numbers), left))
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

    def acquire_now(self, pace: Pace) -> bool:
        """Have a call leave if it may at once and nobody waits; tell whether it does."""
        now = monotonic()
        if self._line.waiting or not self._has_room() or pace.wait(now) > 0:
            return False
        self._leave(pace, now)
        return True

    def release(self, pace: Pace) -> None:
        """Count a call as ended and let the next ones leave."""
        self._line.in_flight -= 1
        pace.note_ended()
        if self._line.waiting:
            self._dispatch()

    def give_up(self, pace: Pace, error: Exception) -> None:
        """Raise an error in every call that waits for an endpoint."""
        for _, _, left in self._line.waiting.pop(pace, []):
            if not left.done():
                left.set_exception(error)

    def use(self) -> EndpointUse:
        """Return the use of endpoints through this limiter since it was made."""
        line = self._line
        now = monotonic()
        paused = sum(each.paused_seconds - max(0.0, each.held_until - now) for each in line.paces.values())
        return EndpointUse(
            calls=self.calls,
            retries=self.retries,
            refusals=self.refusals,
            paused_seconds=round(paused, 3),
        )

    def status(self) -> LimiterStatus:
        """Return what is in flight and what delays calls."""
        line = self._line
        now = monotonic()
        rates = [rate for pace in line.paces.values() if (rate := pace.rate(now)) is not None]
        return LimiterStatus(
            in_flight=line.in_flight,
            waiting=sum(map(len, line.waiting.values())),
            rate=min(rates, default=None),
            paused_seconds=max((pace.held_until - now for pace in line.waiting), default=0.0),
        )

    def _own(self, rollout_id: str) -> str:
        """Return the name of a rollout among all whose calls wait here."""
        return rollout_id

    def _has_room(self) -> bool:
        return not self._line.bounds or self._line.in_flight < min(self._line.bounds)

    def _leave(self, pace: Pace, now: float) -> None:
        self._line.in_flight += 1
        pace.note_began(now)

    def _dispatch(self) -> None:
        """Let every call leave that may, the oldest first; come back when time alone lets another leave."""
        line = self._line
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        now = monotonic()
        while line.waiting and self._has_room():
            pauses = {pace: pace.wait(now) for pace in line.waiting}
            ready = [pace for pace, pause in pauses.items() if pause <= 0]
            if not ready:
                soonest = min(pauses.values())
                line.timer = asyncio.get_running_loop().call_later(soonest, self._dispatch)
                return
            pace = min(ready, key=lambda each: line.waiting[each][0])
            _, _, left = heapq.heappop(line.waiting[pace])
            if not line.waiting[pace]:
                del line.waiting[pace]
            if not left.done():
                self._leave(pace, now)
                left.set_result(None)


class SharedLimiter(CallLimiter):
    """One evaluation's share of a limiter: bounds, paces and order are everybody's, the counts its own.

    `name` keeps the rollouts of evaluations apart that have the same ids. The bound that an evaluation itself
    asks for (`at_most`) does not count: the whole has one. Pauses hold up all: each tells them all.
    """

    def __init__(self, whole: CallLimiter, name: str) -> None:
        super().__init__()
        self._line = whole._line
        self._name = name

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Change nothing."""
        yield

    def _own(self, rollout_id: str) -> str:
        return f"{self._name}/{rollout_id}"
