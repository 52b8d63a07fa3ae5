"""Calls in flight, and what an endpoint that refuses calls does to them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import web
from wander import LocalEnvironment, MultiTurnEnv, Rubric, SingleTurnEnv
from wander.clients.base import ModelRequest
from wander.clients.openai import OpenAIClient
from wander.clients.rate_limit import CallLimiter, Pace, format_rate
from wander.clients.retries import Attempts
from wander.errors import RateLimited
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, Progress, evaluate
from wander.evals.run.stopping import StopRequest
from wander.evals.store.folder import RunFolder
from wander.wire import EndpointUse, EnvironmentPin


@dataclass
class Bucket:
    """A token bucket: what rate-limited endpoints count with."""

    rate: float
    burst: float
    tokens: float = field(init=False)
    filled_at: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def takes(self, now: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass
class Outcome:
    """What became of a simulated endpoint's calls."""

    taken: int = 0
    refused: int = 0

    @property
    def refused_share(self) -> float:
        return self.refused / (self.taken + self.refused)


def simulated(
    pace: Pace,
    takes: Any,
    *,
    seconds: float,
    latency: float,
    most: int = 256,
    retry_after: float | None = None,
    status: int = 429,
) -> Outcome:
    """Ask an endpoint as fast as the pace allows, in simulated time."""
    now, end, outcome = 0.0, seconds, Outcome()
    spread = random.Random(1)
    events: list[tuple[float, int, str, float]] = []
    own_pauses, numbers = 0, iter(range(1 << 30))
    while now < end:
        upcoming = events[0][0] if events else end
        wait = pace.wait(now)
        if wait <= 1e-9 and pace.in_flight + own_pauses < most:
            pace.note_began(now)
            kind, after = ("taken", latency) if takes(now, pace) else ("refused", min(latency, 0.02))
            heappush(events, (now + after * spread.uniform(0.5, 1.5), next(numbers), kind, now))
        elif pace.in_flight + own_pauses < most and now + wait < upcoming:
            now += wait
        else:
            now, _, kind, began = heappop(events) if events else (end, 0, "", 0.0)
            if kind == "taken":
                pace.note_ended()
                pace.note_accepted(now)
                outcome.taken += 1
            elif kind == "refused":
                pace.note_ended()
                outcome.refused += 1
                if pause := pace.note_refused(now, began, retry_after, status=status):
                    own_pauses += 1
                    heappush(events, (now + pause, next(numbers), "again", 0.0))
            elif kind == "again":
                own_pauses -= 1
    return outcome


@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize(
    ("rate", "burst", "latency"),
    [(50, 10, 0.01), (50, 50, 1.0), (500, 50, 0.01), (500, 500, 0.5), (5, 5, 1.0)],
)
def test_the_pace_finds_the_rate_of_an_endpoint(
    rate: float, burst: float, latency: float, retry_after: float | None
) -> None:
    bucket = Bucket(rate, burst)
    outcome = simulated(
        Pace(), lambda now, pace: bucket.takes(now), seconds=120, latency=latency, retry_after=retry_after
    )
    assert outcome.taken > 0.7 * 120 * rate
    assert outcome.refused_share < 0.08


def test_the_pace_finds_how_many_calls_an_endpoint_takes_at_once() -> None:
    working: list[float] = []

    def takes(now: float, pace: Pace) -> bool:
        working[:] = [end for end in working if end > now]
        if len(working) >= 8:
            return False
        working.append(now + 5.0)
        return True

    outcome = simulated(Pace(), takes, seconds=600, latency=5.0, most=128)
    assert outcome.taken > 0.6 * 600 * 8 / 5.0
    assert outcome.refused_share < 0.2


def test_a_hiccup_now_and_then_costs_no_throughput() -> None:
    chance = random.Random(3)
    outcome = simulated(Pace(), lambda now, pace: chance.random() > 0.002, seconds=60, latency=0.5, most=64)
    assert outcome.taken > 0.8 * 60 * 64 / 0.5


@pytest.mark.parametrize(("share", "most_lost"), [(0.03, 0.1), (0.1, 0.3)])
@pytest.mark.parametrize(("latency", "most"), [(0.01, 8), (0.5, 64), (10.0, 1024)])
def test_hiccups_at_random_cost_only_the_calls_they_hit(
    share: float, most_lost: float, latency: float, most: int
) -> None:
    chance = random.Random(3)
    pace = Pace()
    seconds = max(30.0, 20 * latency)
    outcome = simulated(
        pace, lambda now, _: chance.random() >= share, seconds=seconds, latency=latency, most=most, status=503
    )
    assert pace.paused_seconds == 0.0
    assert pace.rate(seconds) is None
    # The pause after a hiccup, 0.1 s, is long beside answers after 10 ms.
    ideal = seconds * most / (latency + share * 0.15)
    assert outcome.taken > (1 - most_lost) * ideal - most


@pytest.mark.parametrize("most", [8, 256, 1024])
def test_an_endpoint_that_takes_nothing_is_backed_off_from_although_it_says_nothing(most: int) -> None:
    pace = Pace()
    outcome = simulated(pace, lambda now, _: False, seconds=60, latency=0.5, most=most, status=503)
    assert pace.paused_seconds > 30
    assert outcome.refused < 100


@pytest.mark.parametrize(("rate", "latency"), [(50, 0.01), (50, 1.0), (500, 0.5)])
def test_the_pace_finds_the_rate_of_an_endpoint_that_says_only_503(rate: float, latency: float) -> None:
    bucket = Bucket(rate, rate)
    outcome = simulated(Pace(), lambda now, pace: bucket.takes(now), seconds=120, latency=latency, status=503)
    assert outcome.taken > 0.7 * 120 * rate
    assert outcome.refused_share < 0.3


def test_bounds_are_forgotten_once_the_endpoint_takes_everything_again() -> None:
    pace = Pace()
    simulated(pace, lambda now, pace: pace.in_flight < 5, seconds=20, latency=0.1)
    assert pace.rate(20.0) is not None
    for second in range(20, 400):
        while pace.wait(now := float(second)) <= 0 and pace.in_flight < 1:
            pace.note_began(now)
        if pace.in_flight:
            pace.note_ended()
            pace.note_accepted(now + 0.1)
    assert pace.rate(400.0) is None


def test_the_first_second_ramps_up() -> None:
    pace = Pace()
    left = Counter[int]()
    for step in range(11):
        now = step / 10
        while pace.in_flight < 5000 and pace.wait(now) <= 1e-9:
            pace.note_began(now)
        left[step] = pace.in_flight
    assert left[0] <= 20
    assert left[5] >= 16 * left[0]
    assert left[10] == 5000


def test_rates_are_told_in_words() -> None:
    assert [format_rate(rate) for rate in (47.6, 1.0, 0.2, 0.001)] == [
        "48 calls/s",
        "1 calls/s",
        "12 calls/min",
        "1 calls/min",
    ]


async def test_calls_wait_for_a_free_place_and_leave_by_the_age_of_their_rollout() -> None:
    limiter = CallLimiter(2)
    pace = limiter.pace("x")
    for name in ("old", "young"):
        limiter.begin(name)
    left: list[str] = []

    async def call(rollout_id: str) -> None:
        await limiter.acquire(pace, rollout_id)
        left.append(rollout_id)

    for _ in range(2):
        await limiter.acquire(pace)
    waiting = []
    for name in ("young", "old", "young/sub:1", "judge"):
        waiting.append(asyncio.create_task(call(name)))
        await asyncio.sleep(0)
    assert limiter.status().waiting == 4
    for _ in range(4):
        limiter.release(pace)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert left == ["judge", "old", "young", "young/sub:1"]
    assert limiter.status().in_flight == 2
    await asyncio.gather(*waiting)


async def test_a_cancelled_call_gives_its_place_back() -> None:
    limiter = CallLimiter(1)
    pace = limiter.pace("x")
    await limiter.acquire(pace)
    given = asyncio.create_task(limiter.acquire(pace))
    waits = asyncio.create_task(limiter.acquire(pace))
    await asyncio.sleep(0)
    limiter.release(pace)  # the place is now that of `given`, which has not run yet
    given.cancel()
    await asyncio.wait_for(waits, 60)
    assert limiter.status().in_flight == 1
    late = asyncio.create_task(limiter.acquire(pace))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    limiter.release(pace)
    assert limiter.status().in_flight == 0


def test_of_several_bounds_the_lowest_counts() -> None:
    async def most_at_once(limiter: CallLimiter) -> int:
        pace = limiter.pace("x")
        tasks = [asyncio.create_task(limiter.acquire(pace)) for _ in range(9)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        count = limiter.status().in_flight
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(limiter.status().in_flight):
            limiter.release(pace)
        return count

    limiter = CallLimiter(7)
    with limiter.at_most(5), limiter.at_most(3):
        assert asyncio.run(most_at_once(limiter)) == 3
    with limiter.at_most(5):
        assert asyncio.run(most_at_once(limiter)) == 5
    assert asyncio.run(most_at_once(limiter)) == 7


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"{i}?", "answer": str(i)} for i in range(count)]


def right(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def single_turn(count: int) -> LocalEnvironment:
    return LocalEnvironment(SingleTurnEnv(eval_dataset=rows(count), rubric=Rubric([right]), name="echo"))


def echo(body: dict[str, Any], number: int) -> str:
    return str(body["messages"][-1]["content"]).rstrip("?")


async def evaluated(
    client: OpenAIClient, environment: LocalEnvironment, folder: Any = None, **options: Any
) -> EvaluationResult:
    told = options.pop("on_progress", None)
    resume = options.pop("resume", False)
    pin = EnvironmentPin(name="echo", info=environment.info)
    plan = EvaluationPlan(**options)
    return await evaluate(environment, client, plan, folder, pin, on_progress=told, resume=resume)


@pytest.fixture
def limited(chat_server: Any) -> Iterator[Any]:
    """Let the server answer 429 when a token bucket is empty; return a function that sets it up."""

    def set_up(rate: float, burst: float, **headers: str) -> Counter[str]:
        bucket, counts = Bucket(rate, burst), Counter[str]()
        bucket.filled_at = time.monotonic()

        def script(body: dict[str, Any], number: int) -> Any:
            if bucket.takes(time.monotonic()):
                counts["taken"] += 1
                return echo(body, number)
            counts["refused"] += 1
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers=headers)

        chat_server.script = script
        return counts

    return set_up


@pytest.mark.full
async def test_a_rate_limited_evaluation_fails_nothing_and_counts_what_was_refused(
    chat_server: Any, limited: Any, tmp_path: Any
) -> None:
    counts = limited(rate=60.0, burst=60.0, **{"Retry-After": "1"})
    client = OpenAIClient("m", chat_server.url)
    told: list[Progress] = []
    result = await evaluated(
        client, single_turn(450), tmp_path / "run", concurrency=64, max_retries=0, on_progress=told.append
    )
    await client.close()
    assert (result.summary.failed, result.summary.rollouts, result.retried) == (0, 450, 0)
    assert counts["taken"] == 450
    assert counts["refused"] > 0  # how many and how much of the rate is used is held above, in simulated time
    use = RunFolder.open(tmp_path / "run").manifest.endpoints
    assert use == result.endpoints
    assert (use.calls, use.refusals, use.retries) == (450, counts["refused"], 0)
    assert use.paused_seconds > 0
    assert any(each.rate for each in told)
    assert any(each.paused_seconds for each in told)


@pytest.mark.full
@pytest.mark.parametrize("share", [0.03, 0.1])
async def test_refusals_at_random_slow_only_the_calls_they_hit(chat_server: Any, share: float) -> None:
    chance, refused = random.Random(5), web.Response(status=503, text="{}")

    def hiccups(body: dict[str, Any], number: int) -> Any:
        return refused if chance.random() < share else echo(body, number)

    chat_server.script = hiccups
    client = OpenAIClient("m", chat_server.url)
    result = await evaluated(client, single_turn(600), concurrency=32, max_retries=0)
    await client.close()
    assert (result.summary.failed, result.summary.rollouts) == (0, 600)
    assert result.endpoints.refusals > 0.3 * share * 600
    assert client.limiter.status().rate is None, "no bound was set"
    assert result.endpoints.paused_seconds == 0.0, "nobody else waited"


async def test_a_call_that_ends_before_it_leaves_is_not_counted() -> None:
    transport, limiter = Mock(), CallLimiter()

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    transport.post = AsyncMock(side_effect=never)
    attempts = Attempts(transport)
    with limiter.at_most(1):
        calls = [asyncio.create_task(attempts.answer(limiter, "/", {})) for _ in range(3)]
        await asyncio.sleep(0.01)
        for call in reversed(calls):
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert (limiter.use().calls, transport.post.await_count) == (1, 1)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_part_that_resumes_a_run_adds_to_what_was_asked(
    *, killed: bool, chat_server: Any, tmp_path: Any
) -> None:
    chat_server.script = lambda body, number: "wrong" if number < 4 else web.Response(status=418)
    client = OpenAIClient("m", chat_server.url, max_retries=0)
    first = await evaluated(client, single_turn(6), tmp_path, concurrency=1)
    assert (first.summary.failed, first.endpoints.calls) == (3, 6)
    if killed:  # it could not say what it asked
        manifest = json.loads((tmp_path / "run.json").read_text())
        (tmp_path / "run.json").write_text(json.dumps({**manifest, "endpoints": None, "ended_at": None}))
    chat_server.script = echo
    second = await evaluated(client, single_turn(6), tmp_path, concurrency=1, resume=True)
    await client.close()
    assert (second.resumed, second.endpoints.calls) == (3, 3)
    use = RunFolder.open(tmp_path).manifest.endpoints
    assert use == EndpointUse(calls=6 if killed else 9, at_least=killed)
    assert use.told() == ("at least 6" if killed else "9")


async def test_nothing_waits_for_ever_for_an_endpoint_that_takes_nothing_any_more(chat_server: Any) -> None:
    refused = web.Response(status=429, text="{}", headers={"Retry-After": "0"})
    chat_server.script = lambda body, number: refused if number > 10 else echo(body, number)
    client = OpenAIClient("m", chat_server.url)
    client.attempts.patience = 0.3
    with pytest.raises(RateLimited) as caught:
        await evaluated(client, single_turn(500), concurrency=4, max_retries=0)
    await client.close()
    assert "has refused every call" in str(caught.value)


async def test_a_quota_that_is_used_up_ends_the_run(chat_server: Any, faults: dict[str, Any]) -> None:
    chat_server.script = lambda body, number: faults["quota"]
    client = OpenAIClient("m", chat_server.url)
    with pytest.raises(RateLimited, match="insufficient_quota"):
        await evaluated(client, single_turn(500), concurrency=4)
    await client.close()
    assert len(chat_server.requests) < 20


class ToolUse(MultiTurnEnv):
    """Its environment works until `free` is set, so all its rollouts gather there."""

    def __init__(self, free: asyncio.Event, **options: Any) -> None:
        super().__init__(max_turns=2, **options)
        self.free = free
        self.at_work = 0
        self.most_at_work = 0

    async def env_response(self, messages: Any, state: Any) -> Any:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        if self.at_work == 12:
            self.free.set()
        await self.free.wait()
        self.at_work -= 1
        return [{"role": "user", "content": "and now?"}]


async def test_rollouts_whose_tools_are_at_work_hold_no_call(chat_server: Any) -> None:
    environment = ToolUse(asyncio.Event(), eval_dataset=rows(30), rubric=Rubric([right]), name="echo")
    client = OpenAIClient("m", chat_server.url)
    result = await asyncio.wait_for(
        evaluated(client, LocalEnvironment(environment), concurrency=3, max_rollouts=12), 60
    )
    await client.close()
    assert result.summary.rollouts == 30
    assert chat_server.most_in_flight <= 3
    assert environment.most_at_work == 12


async def test_several_evaluations_of_one_client_share_its_bound(chat_server: Any) -> None:
    chat_server.delay = 0.01
    client = OpenAIClient("m", chat_server.url)
    results = await asyncio.gather(*(evaluated(client, single_turn(20), concurrency=5) for _ in range(3)))
    await client.close()
    assert [each.summary.rollouts for each in results] == [20, 20, 20]
    assert chat_server.most_in_flight == 5


@pytest.mark.full
async def test_a_group_larger_than_the_bound_is_played(chat_server: Any) -> None:
    def first(completions: list[Any]) -> list[float]:
        return [float(index == 0) for index in range(len(completions))]

    chat_server.delay = 0.005
    rubric = Rubric([first])
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows(4), rubric=rubric, name="echo"))
    client = OpenAIClient("m", chat_server.url)
    result = await asyncio.wait_for(evaluated(client, environment, concurrency=3, rollouts_per_example=8), 60)
    await client.close()
    assert (result.summary.rollouts, result.summary.reward_mean) == (32, 0.125)
    assert chat_server.most_in_flight == 3


async def test_an_evaluation_that_waits_for_its_endpoint_stops_when_asked(
    chat_server: Any, tmp_path: Any
) -> None:
    refused = web.Response(status=429, text="{}", headers={"Retry-After": "100"})
    chat_server.script = lambda body, number: refused if number > 5 else echo(body, number)
    client = OpenAIClient("m", chat_server.url)
    stop = StopRequest()

    def told(progress: Progress) -> None:
        if progress.paused_seconds > 10:
            stop.request()

    environment = single_turn(40)
    pin = EnvironmentPin(name="echo", info=environment.info)
    plan = EvaluationPlan(concurrency=4)
    result = await asyncio.wait_for(
        evaluate(environment, client, plan, tmp_path, pin, on_progress=told, stop=stop), 60
    )
    assert result.interrupted
    assert (result.summary.rollouts, result.summary.failed) == (5, 0)
    assert client.limiter.status().in_flight == 0
    await client.close()
    chat_server.script = echo
    fresh = OpenAIClient("m", chat_server.url)
    again = await evaluated(fresh, environment, tmp_path, concurrency=4, resume=True)
    await fresh.close()
    assert (again.resumed, again.summary.rollouts, again.summary.failed) == (5, 40, 0)
    assert again.manifest.endpoints is not None
    assert 0 < again.manifest.endpoints.paused_seconds < 60


async def test_a_call_that_waits_out_a_refusal_is_answered(chat_server: Any) -> None:
    refused = web.Response(status=503, text="{}")
    chat_server.script = lambda body, number: refused if number == 1 else "ok"
    client = OpenAIClient("m", chat_server.url)
    request = ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": "x"}])
    assert (await client.complete(request)).message["content"] == "ok"
    await client.close()
    assert client.limiter.use().refusals == 1


def test_use_is_told_in_words() -> None:
    assert EndpointUse(calls=1200, retries=3).told() == "1,200, 3 retried"
    told = EndpointUse(calls=5, refusals=41, paused_seconds=12.3).told()
    assert told == "5; refused 41 times for their rate, 12 s of pauses"
