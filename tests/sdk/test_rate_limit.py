"""The rate of calls to endpoints of every kind, in simulated time."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import pytest
from gpu_scripts import gpu_script
from hypothesis import given
from hypothesis import strategies as st
from wander.clients.rate_limit import Pace

limits = gpu_script("benchmarks/endpoint_limits.py")


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
    refused_after: float = 0.005,
) -> Outcome:
    """Ask an endpoint as an evaluation with `-c CALLS` does: eight times as many rollouts ask.

    A refused call waits for the time that the endpoint names, or for a pause that doubles from 0.1 s. A
    refusal arrives after `refused_after` seconds.
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
            kind, after = ("taken", took) if refusal is None else ("refused", min(took, refused_after))
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


def in_full(*cases: Any) -> list[Any]:
    """Mark cases that only the full run plays."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
        for case in cases
    ]


TOLD = pytest.mark.parametrize("retry_after", [None, 1.0])


@TOLD
@pytest.mark.parametrize("share", [0.0, 0.08, 0.2, *in_full(0.01, 0.05, 0.12, 0.3)])
@pytest.mark.parametrize(("latency", "calls"), [(0.05, 16), (0.5, 64), (20.0, 512)])
def test_random_refusals_do_not_slow_other_calls(
    share: float, retry_after: float | None, latency: float, calls: int
) -> None:
    seconds = max(60.0, 20 * latency)
    outcome = simulate(limits.AtRandom(share, retry_after), seconds=seconds, latency=latency, calls=calls)
    assert outcome.taken > 0.8 * (seconds * calls / latency - calls)
    assert outcome.pace.paused_seconds == 0.0


@TOLD
@pytest.mark.parametrize(
    ("rate", "burst", "latency"),
    [(50, 10, 0.01), (50, 600, 0.5), (5, 5, 1.0), *in_full((50, 50, 1.0), (500, 50, 0.01), (500, 500, 0.1))],
)
def test_the_rate_of_an_endpoint_is_found(
    rate: float, burst: float, latency: float, retry_after: float | None
) -> None:
    limit = limits.TokenBucket(rate, burst, retry_after)
    outcome = simulate(limit, seconds=120, latency=latency)
    assert outcome.taken > 0.9 * limit.most(120)
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


@pytest.mark.parametrize("rate", [20, *in_full(5, 50)])
@pytest.mark.parametrize("most_late", [0.0, 0.003])
def test_without_bursts_more_than_half_of_the_rate_is_used(rate: float, most_late: float) -> None:
    """If calls leave only slightly too fast, such an endpoint refuses every second one."""
    limit = limits.TokenBucket(rate, 1)
    outcome = simulate(Late(limit, most_late, random.Random(2)), seconds=120, latency=0.1)
    assert outcome.taken > 0.55 * limit.most(120)


@pytest.mark.parametrize("latency", [5.0, *in_full(60.0)])
def test_the_rate_of_a_slow_endpoint_is_found(latency: float) -> None:
    limit = limits.TokenBucket(20, 20, 1.0)
    outcome = simulate(limit, seconds=20 * latency, latency=latency, calls=2048)
    assert outcome.taken > 0.8 * limit.most(19 * latency)


@pytest.mark.parametrize("refused_after", [3.0, *in_full(0.5, 10.0)])
def test_the_rate_is_found_if_refusals_arrive_late(refused_after: float) -> None:
    limit = limits.TokenBucket(20, 20)
    outcome = simulate(limit, seconds=400, latency=20.0, calls=2048, refused_after=refused_after)
    assert outcome.taken > 0.7 * limit.most(380)
    assert outcome.refused_share < 0.7


@pytest.mark.parametrize("names_end", [True, False])
@pytest.mark.parametrize(
    ("calls", "length"), [(60, 60.0), (10, 1.0), (300, 6.0), *in_full((1000, 60.0), (100, 10.0))]
)
@pytest.mark.parametrize("latency", [0.01, 1.0])
def test_fixed_rate_windows_are_used(calls: int, length: float, latency: float, *, names_end: bool) -> None:
    limit = limits.Window(calls, length, names_end)
    outcome = simulate(limit, seconds=max(30.0, 5 * length), latency=latency)
    assert outcome.taken > 0.7 * limit.most(outcome.seconds)


@pytest.mark.parametrize(("calls", "length"), [(50, 1.0), (60, 60.0)])
def test_sliding_rate_windows_are_used(calls: int, length: float) -> None:
    limit = limits.SlidingWindow(calls, length)
    outcome = simulate(limit, seconds=5 * length + 30, latency=0.5)
    assert outcome.taken > 0.8 * calls * outcome.seconds / length


@TOLD
@pytest.mark.parametrize("at_once", [4, *in_full(8, 32)])
@pytest.mark.parametrize("latency", [1.0, *in_full(0.1, 10.0)])
def test_most_slots_of_an_endpoint_are_used(at_once: int, latency: float, retry_after: float | None) -> None:
    seconds = max(60.0, 20 * latency)
    outcome = simulate(limits.InFlight(at_once, retry_after), seconds=seconds, latency=latency, calls=256)
    assert outcome.taken > 0.7 * (seconds * at_once / latency - at_once)


@pytest.mark.parametrize("calls", [8, 1024, *in_full(256)])
def test_an_endpoint_that_accepts_nothing_gets_few_requests(calls: int) -> None:
    """All calls leave before the first refusal arrives. After that, only a few test the endpoint."""
    outcome = simulate(limits.Outage(0.0, 1e9), seconds=60, latency=0.5, calls=calls)
    assert outcome.pace.paused_seconds > 40
    assert outcome.refused < calls + 250


@pytest.mark.parametrize("latency", [0.05, 1.0])
def test_calls_are_as_fast_as_before_soon_after_an_outage(latency: float) -> None:
    limit = limits.Outage(10.0, 40.0)
    pace = simulate(limit, seconds=55, latency=latency).pace
    pace.in_flight = 0
    outcome = simulate(limit, seconds=20, latency=latency, pace=pace, started_at=55.0)
    assert outcome.taken > 0.8 * (20 - 2 * latency) * 64 / latency


def test_the_rate_limit_ends_once_all_calls_are_accepted() -> None:
    limit = limits.TokenBucket(50, 50)
    pace = simulate(limit, seconds=20, latency=0.1).pace
    assert pace.rate is not None
    limit.rate = limit.burst = 1e9
    pace.in_flight = 0
    simulate(limit, seconds=30, latency=0.1, pace=pace, started_at=20.0)
    assert pace.rate is None


def interval(pace: Pace, start: float, *, left: int, refused: int) -> None:
    """Let calls leave within a second, and end the interval. The last calls are refused."""
    for number in range(left):
        began = start + number / left
        pace.note_began(began)
        pace.note_ended()
        if number >= left - refused:
            pace.note_refused(began, began, None)
    pace.note_began(start + 1.0)
    pace.note_ended()


RATES = st.integers(40, 2000)


@given(RATES, st.floats(0.3, 0.75))
def test_the_rate_becomes_what_the_endpoint_accepted(calls: int, share: float) -> None:
    pace, refused = Pace(), int(share * calls)
    interval(pace, 0.0, left=calls, refused=refused)
    assert pace.rate == calls - refused


@given(RATES, st.floats(0.0, 0.1))
def test_up_to_a_tenth_of_refusals_limits_nothing(calls: int, share: float) -> None:
    pace = Pace()
    interval(pace, 0.0, left=calls, refused=int(share * calls))
    assert pace.rate is None
    assert pace.wait(1.0) == 0.0


@given(RATES)
def test_a_lowered_rate_grows_faster_with_each_interval(calls: int) -> None:
    pace, rates = Pace(), []
    interval(pace, 0.0, left=2 * calls, refused=calls)
    for second in range(1, 8):
        assert pace.rate is not None
        rates.append(pace.rate)
        # The call that ended the last interval counts in this one.
        interval(pace, float(second), left=round(pace.rate) - 1, refused=0)
    growth = [later / earlier for earlier, later in itertools.pairwise(rates)]
    assert growth == pytest.approx([1.1, 1.2, 1.4, 1.8, 2.0, 2.0])


@given(RATES, st.floats(0.3, 0.6))
def test_the_rate_grows_if_lowering_it_did_not_help(calls: int, share: float) -> None:
    pace, rates = Pace(), []
    interval(pace, 0.0, left=2 * calls, refused=int(share * 2 * calls))
    for second in range(1, 4):
        assert pace.rate is not None
        rates.append(pace.rate)
        left = round(pace.rate) - 1
        interval(pace, float(second), left=left, refused=math.ceil(share * left))
    assert pace.rate == pytest.approx(4 * rates[0])
    assert rates == pytest.approx([rates[0], rates[0], 2 * rates[0]])


@given(RATES)
def test_refusals_of_calls_that_left_before_the_rate_was_lowered_do_not_count(calls: int) -> None:
    pace = Pace()
    interval(pace, 0.0, left=2 * calls, refused=calls)
    for _ in range(calls):
        pace.note_refused(1.1, 0.9, 1.0)
    assert pace.rate == calls
    assert pace.held_until < 0


@given(st.integers(10, 500), st.one_of(st.none(), st.floats(0.001, 200.0)))
def test_all_calls_wait_if_the_endpoint_refuses_nearly_all(calls: int, told: float | None) -> None:
    pace = Pace()
    for _ in range(calls):
        pace.note_began(0.0)
    for _ in range(calls):
        pace.note_ended()
        pace.note_refused(0.1, 0.0, told)
    assert pace.wait(0.1) == pytest.approx(told or 0.5)
    assert pace.paused_seconds == pytest.approx(told or 0.5)
    assert pace.rate == 20


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
    assert outcome.pace.rate is None or outcome.pace.rate > 4 / 2.0
