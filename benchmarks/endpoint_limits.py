"""Rate limits of endpoints: at random, by rate, by a used-up window, by calls in flight, during an outage.

A limit is called once per call, with the time and the duration of the answer. It returns None if the endpoint
accepts the call, and otherwise the headers of the refusal. It does not read the clock, so tests can use
simulated time.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field

Refusal = dict[str, str]


@dataclass
class AtRandom:
    """Refuses a random share of the calls."""

    share: float
    retry_after: float | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(5))

    def ask(self, now: float, seconds: float) -> Refusal | None:
        return None if self.chance.random() >= self.share else told(self.retry_after)

    def most(self, seconds: float) -> float:
        """Return the maximum number of calls that it accepts in that time."""
        return math.inf


@dataclass
class TokenBucket:
    """Accepts `rate` calls per second, and up to `burst` at a time."""

    rate: float
    burst: float
    retry_after: float | None = None
    tokens: float = field(init=False)
    filled_at: float | None = None

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def ask(self, now: float, seconds: float) -> Refusal | None:
        if self.filled_at is not None:
            self.tokens = min(self.burst, self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.tokens < 1:
            return told(self.retry_after)
        self.tokens -= 1
        return None

    def most(self, seconds: float) -> float:
        return self.burst + self.rate * seconds


@dataclass
class Window:
    """Accepts `calls` in each window of `length` seconds. A refusal names the end of the window."""

    calls: int
    length: float
    names_end: bool = True
    taken: int = 0
    number: int = -1

    def ask(self, now: float, seconds: float) -> Refusal | None:
        number = int(now // self.length)
        if number != self.number:
            self.number, self.taken = number, 0
        if self.taken >= self.calls:
            return told((number + 1) * self.length - now if self.names_end else None)
        self.taken += 1
        return None

    def most(self, seconds: float) -> float:
        return self.calls * math.ceil(seconds / self.length)


@dataclass
class SlidingWindow:
    """Accepts `calls` in any `length` seconds."""

    calls: int
    length: float
    retry_after: float | None = None
    taken: deque[float] = field(default_factory=deque)

    def ask(self, now: float, seconds: float) -> Refusal | None:
        while self.taken and self.taken[0] <= now - self.length:
            self.taken.popleft()
        if len(self.taken) >= self.calls:
            return told(self.retry_after)
        self.taken.append(now)
        return None

    def most(self, seconds: float) -> float:
        return self.calls * (1 + seconds / self.length)


@dataclass
class InFlight:
    """Accepts `calls` at a time."""

    calls: int
    retry_after: float | None = None
    ends: list[float] = field(default_factory=list)

    def ask(self, now: float, seconds: float) -> Refusal | None:
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
        if len(self.ends) >= self.calls:
            return told(self.retry_after)
        heapq.heappush(self.ends, now + seconds)
        return None

    def most(self, seconds: float) -> float:
        return math.inf


@dataclass
class Outage:
    """Refuses everything from `start` until `end`."""

    start: float
    end: float

    def ask(self, now: float, seconds: float) -> Refusal | None:
        return {} if self.start <= now < self.end else None

    def most(self, seconds: float) -> float:
        return math.inf


Limit = AtRandom | TokenBucket | Window | SlidingWindow | InFlight | Outage


def told(retry_after: float | None) -> Refusal:
    return {} if retry_after is None else {"Retry-After": f"{retry_after:.3f}"}
