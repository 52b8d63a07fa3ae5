"""The rate of calls to endpoints of every kind, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import pytest
from gpu_scripts import gpu_script
from hypothesis import given
from hypothesis import strategies as st
from wander.clients.rate_limit import Pace, format_rate

limits = gpu_script("benchmarks/endpoint_limits.py")
REFUSED_AFTER = 0.005
"""Seconds until a refusal arrives."""


@dataclass
class Outcome:
    """What became of the calls to a simulated endpoint."""

    pace: Pace
    seconds: float
    taken: int = 0
    refused: int = 0

    @property
    def refused_share(self) -> float:
        return self.refused / max(1, self.taken + self.refused)


def simulate(
    limit: Any,
    *,
    seconds: float,
    latency: float,
    calls: int = 64,
    pace: Pace | None = None,
    started_at: float = 0.0,
) -> Outcome:
    """Ask an endpoint as an evaluation with `-c CALLS` does: eight times as many rollouts ask.

    A refused call waits as long as it is told, or for a pause that doubles from 0.1 s.
    """
    outcome = Outcome(pace or Pace(), seconds)
    pace, chance, now = outcome.pace, random.Random(1), started_at
    waiting = [(age, 0) for age in range(8 * calls)]
    heapify(waiting)
    events: list[tuple[float, int, str, int, int, float, Any]] = []
    numbers, ages = iter(range(1 << 40)), iter(range(8 * calls, 1 << 40))
    while now < started_at + seconds:
        while waiting and pace.in_flight < calls and pace.wait(now) <= 1e-9:
            age, refusals = heappop(waiting)
            pace.note_began(now)
            took = latency * chance.uniform(0.5, 1.5)
            refusal = limit.ask(now, took)
            kind, after = ("taken", took) if refusal is None else ("refused", min(took, REFUSED_AFTER))
            heappush(events, (now + after, next(numbers), kind, age, refusals, now, refusal))
        upcoming = events[0][0] if events else float("inf")
        if waiting and pace.in_flight < calls:
            upcoming = min(upcoming, now + max(1e-6, pace.wait(now)))
        now = upcoming
        while events and events[0][0] <= now:
            _, _, kind, age, refusals, began, refusal = heappop(events)
            if kind == "again":
                heappush(waiting, (age, refusals))
                continue
            pace.note_ended()
            if kind == "taken":
                pace.note_accepted(now)
                outcome.taken += 1
                heappush(waiting, (next(ages), 0))
            else:
                outcome.refused += 1
                told = float(refusal["Retry-After"]) if refusal else None
                pace.note_refused(now, began, told)
                pause = min(60.0, 0.1 * 2.0**refusals) * chance.uniform(0.75, 1.25) if told is None else told
                heappush(events, (now + pause, next(numbers), "again", age, refusals + 1, 0.0, None))
    return outcome


TOLD = pytest.mark.parametrize("retry_after", [None, 1.0])


@TOLD
@pytest.mark.parametrize(
    "share", [0.01, 0.08, *(pytest.param(share, marks=pytest.mark.full) for share in (0.001, 0.02, 0.05))]
)
@pytest.mark.parametrize(("latency", "calls"), [(0.05, 16), (0.5, 64), (20.0, 512)])
def test_random_refusals_do_not_limit_the_rate(
    share: float, retry_after: float | None, latency: float, calls: int
) -> None:
    seconds = max(30.0, 20 * latency)
    limit = limits.AtRandom(share, retry_after)
    outcome = simulate(limit, seconds=seconds, latency=latency, calls=calls)
    assert outcome.taken > 0.9 * (seconds * calls / latency - calls)
    assert outcome.pace.paused_seconds == 0.0


@TOLD
@pytest.mark.parametrize("share", [0.15, 0.3])
def test_many_random_refusals_do_not_reduce_calls_to_a_trickle(
    share: float, retry_after: float | None
) -> None:
    outcome = simulate(limits.AtRandom(share, retry_after), seconds=60, latency=0.5)
    assert outcome.taken > 0.7 * 60 * 64 / 0.5 * (1 - share)


@TOLD
@pytest.mark.parametrize(
    ("rate", "burst", "latency"),
    [
        *((5, 1, 0.1), (50, 10, 0.01), (50, 600, 0.5)),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in ((50, 1, 0.01), (50, 50, 1.0), (500, 50, 0.01), (500, 500, 0.1), (5, 5, 1.0))
        ),
    ],
)
def test_the_rate_of_an_endpoint_is_found(
    rate: float, burst: float, latency: float, retry_after: float | None
) -> None:
    limit = limits.TokenBucket(rate, burst, retry_after)
    outcome = simulate(limit, seconds=120, latency=latency)
    assert outcome.taken > 0.8 * limit.most(120)
    assert outcome.refused_share < 0.45


@dataclass
class Late:
    """A limit that calls reach up to `most` seconds late, in order."""

    limit: Any
    most: float
    chance: random.Random
    arrived_at: float = 0.0

    def ask(self, now: float, seconds: float) -> dict[str, str] | None:
        self.arrived_at = max(self.arrived_at, now + self.chance.uniform(0.0, self.most))
        refusal: dict[str, str] | None = self.limit.ask(self.arrived_at, seconds)
        return refusal


@pytest.mark.parametrize("rate", [20, *(pytest.param(rate, marks=pytest.mark.full) for rate in (5, 50))])
def test_uneven_arrivals_cost_little_without_bursts(rate: float) -> None:
    limit = limits.TokenBucket(rate, 1)
    outcome = simulate(Late(limit, 0.003, random.Random(2)), seconds=60, latency=0.1)
    assert outcome.taken > 0.8 * limit.most(60)


@pytest.mark.parametrize("latency", [5.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_the_rate_of_a_slow_endpoint_is_found(latency: float) -> None:
    limit = limits.TokenBucket(20, 20, 1.0)
    outcome = simulate(limit, seconds=20 * latency, latency=latency, calls=2048)
    assert outcome.taken > 0.8 * limit.most(19 * latency)


@pytest.mark.parametrize("names_end", [True, False])
@pytest.mark.parametrize(
    ("calls", "length"),
    [
        *((60, 60.0), (10, 1.0)),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((1000, 60.0), (100, 10.0))),
    ],
)
@pytest.mark.parametrize("latency", [0.01, 1.0])
def test_fixed_rate_windows_are_used_completely(
    calls: int, length: float, latency: float, *, names_end: bool
) -> None:
    limit = limits.Window(calls, length, names_end)
    outcome = simulate(limit, seconds=max(30.0, 5 * length), latency=latency)
    assert outcome.taken > 0.9 * limit.most(outcome.seconds)


@pytest.mark.parametrize(("calls", "length"), [(50, 1.0), (60, 60.0)])
def test_sliding_rate_windows_are_used_completely(calls: int, length: float) -> None:
    limit = limits.SlidingWindow(calls, length)
    outcome = simulate(limit, seconds=5 * length + 30, latency=0.5)
    assert outcome.taken > 0.8 * calls * outcome.seconds / length


@TOLD
@pytest.mark.parametrize("at_once", [8, pytest.param(32, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "latency", [1.0, *(pytest.param(one, marks=pytest.mark.full) for one in (0.1, 10.0))]
)
def test_all_slots_of_an_endpoint_are_used(at_once: int, latency: float, retry_after: float | None) -> None:
    seconds = max(60.0, 20 * latency)
    outcome = simulate(limits.InFlight(at_once, retry_after), seconds=seconds, latency=latency, calls=256)
    assert outcome.taken > 0.8 * seconds * at_once / latency - at_once


@dataclass
class Outage:
    """Refuses everything for a time."""

    start: float
    end: float

    def ask(self, now: float, seconds: float) -> dict[str, str] | None:
        return {} if self.start <= now < self.end else None


@pytest.mark.parametrize("calls", [8, 1024, pytest.param(256, marks=pytest.mark.full)])
def test_an_endpoint_that_accepts_nothing_gets_few_requests(calls: int) -> None:
    outcome = simulate(Outage(0.0, 1e9), seconds=60, latency=0.5, calls=calls)
    assert outcome.pace.paused_seconds > 40
    assert outcome.refused < 150


@pytest.mark.parametrize("latency", [0.05, 1.0])
def test_an_outage_is_over_within_seconds(latency: float) -> None:
    pace, limit = Pace(), Outage(10.0, 40.0)
    simulate(limit, seconds=45, latency=latency, pace=pace)
    again = Pace()
    again.__dict__.update(pace.__dict__, in_flight=0)
    outcome = simulate(limit, seconds=20, latency=latency, pace=again, started_at=45.0)
    assert outcome.taken > 0.8 * (20 - 2 * latency) * 64 / latency


def test_thousands_of_rollouts_do_not_hit_a_strict_endpoint_together() -> None:
    outcome = simulate(limits.TokenBucket(10, 10, 1.0), seconds=1.0, latency=0.5, calls=4096)
    assert outcome.refused < 200


def test_the_rate_limit_ends_once_all_calls_are_accepted() -> None:
    limit = limits.TokenBucket(50, 50)
    pace = simulate(limit, seconds=20, latency=0.1).pace
    assert pace.rate(20.0) is not None
    limit.rate = limit.burst = 1e9
    pace.in_flight = 0
    simulate(limit, seconds=30, latency=0.1, pace=pace, started_at=20.0)
    assert pace.rate(50.0) is None


@dataclass
class Fickle:
    """Answers as drawn."""

    answers: Callable[[], tuple[bool, float | None]]

    def ask(self, now: float, seconds: float) -> dict[str, str] | None:
        is_taken, told = self.answers()
        return None if is_taken else limits.told(told)


@given(
    st.lists(st.tuples(st.booleans(), st.one_of(st.none(), st.floats(0.001, 40.0))), min_size=1, max_size=60)
)
def test_missing_responses_do_not_stop_calls_forever(answers: list[tuple[bool, float | None]]) -> None:
    """Whatever the first answers were, an endpoint that takes everything then is asked at full speed."""
    drawn = iter(answers)
    outcome = simulate(Fickle(lambda: next(drawn, (True, None))), seconds=600.0, latency=2.0, calls=4)
    assert outcome.refused <= len(answers)
    assert outcome.taken > 0.7 * 600 * 4 / 2.0
    assert outcome.pace.rate(600.0) is None or outcome.pace.rate(600.0) > 4 / 2.0


def test_rates_are_described() -> None:
    assert [format_rate(rate) for rate in (47.6, 1.0, 0.2, 0.001)] == [
        "48 calls/s",
        "1 calls/s",
        "12 calls/min",
        "1 calls/min",
    ]
