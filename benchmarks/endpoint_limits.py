"""How endpoints refuse calls: at random, for their rate, for a window that is used up, for calls in flight.

A limit is asked once for each call with the time and how long the answer will take. It returns None if the
endpoint takes the call, and the headers of the refusal if not. It reads no clock, so tests use it in
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
    """Refuses a share of the calls, whatever is asked."""

    share: float
    retry_after: float | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(5))

    def ask(self, now: float, seconds: float) -> Refusal | None:
        return None if self.chance.random() >= self.share else told(self.retry_after)

    def most(self, seconds: float) -> float:
        """Return how many calls it takes at most in that time."""
        return math.inf


@dataclass
class TokenBucket:
    """Takes `rate` calls a second, and `burst` at a time."""

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
    """Takes `calls` in each window of `length` seconds; a refusal names the end of the window."""

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
    """Takes `calls` in any `length` seconds."""

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
    """Takes `calls` at a time."""

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


Limit = AtRandom | TokenBucket | Window | SlidingWindow | InFlight


def told(retry_after: float | None) -> Refusal:
    return {} if retry_after is None else {"Retry-After": f"{retry_after:.3f}"}
