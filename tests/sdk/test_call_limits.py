"""Calls in flight, and what an endpoint that refuses calls does to them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import web
from gpu_scripts import gpu_script
from wander import LocalEnvironment, MultiTurnEnv, Rubric, SingleTurnEnv
from wander.clients.base import ModelRequest
from wander.clients.openai import OpenAIClient
from wander.clients.rate_limit import CallLimiter
from wander.clients.retries import Attempts
from wander.errors import RateLimited
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, Progress, evaluate
from wander.evals.run.stopping import StopRequest
from wander.evals.store.folder import RunFolder
from wander.rubrics.judge import JudgeRubric, judge_score
from wander.wire import EndpointUse, EnvironmentPin


async def test_calls_wait_for_a_slot_and_older_rollouts_go_first() -> None:
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


async def test_a_canceled_call_releases_its_slot() -> None:
    limiter = CallLimiter(1)
    pace = limiter.pace("x")
    await limiter.acquire(pace)
    given = asyncio.create_task(limiter.acquire(pace))
    waits = asyncio.create_task(limiter.acquire(pace))
    await asyncio.sleep(0)
    limiter.release(pace)  # the place is now that of `given`, which has not run yet
    given.cancel()
    async with asyncio.timeout(60):
        await waits
    assert limiter.status().in_flight == 1
    late = asyncio.create_task(limiter.acquire(pace))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    limiter.release(pace)
    assert limiter.status().in_flight == 0


def test_the_lowest_of_several_limits_applies() -> None:
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
        limits = gpu_script("benchmarks/endpoint_limits.py")
        bucket, counts = limits.TokenBucket(rate, burst), Counter[str]()

        def script(body: dict[str, Any], number: int) -> Any:
            if bucket.ask(time.monotonic(), 0.0) is None:
                counts["taken"] += 1
                return echo(body, number)
            counts["refused"] += 1
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers=headers)

        chat_server.script = script
        return counts

    return set_up


@pytest.mark.full
async def test_a_rate_limited_evaluation_fails_no_rollout_and_counts_refusals(
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
    assert any(each.rate for each in told)


@pytest.mark.full
@pytest.mark.parametrize("share", [0.03, 0.08])
async def test_random_refusals_slow_only_the_calls_they_hit(chat_server: Any, share: float) -> None:
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


@pytest.mark.parametrize("max_rollouts", [None, 2])
async def test_calls_that_wait_out_a_refusal_leave_their_slots_to_other_rollouts(
    chat_server: Any, max_rollouts: int | None
) -> None:
    """Unless the number of rollouts is bounded, which may be all that fits into the memory."""
    refused = web.Response(status=429, text="{}", headers={"Retry-After": "200"})
    chat_server.script = lambda body, number: refused if number <= 2 else echo(body, number)
    client = OpenAIClient("m", chat_server.url)
    stop, expected = StopRequest(), 6 if max_rollouts is None else 0

    def on_progress(progress: Progress) -> None:
        if progress.done == expected and client.limiter.refusals == 2:
            stop.request()

    environment = single_turn(8)
    plan = EvaluationPlan(concurrency=1, max_rollouts=max_rollouts)
    pin = EnvironmentPin(name="echo", info=environment.info)
    async with asyncio.timeout(60):
        result = await evaluate(environment, client, plan, None, pin, on_progress=on_progress, stop=stop)
    await client.close()
    assert (result.summary.rollouts, result.summary.failed) == (expected, 0)
    assert client.limiter.status().rate is None


async def test_measured_times_exclude_our_own_waiting(chat_server: Any) -> None:
    refused = web.Response(status=429, text="{}", headers={"Retry-After": "0.5"})
    chat_server.script = lambda body, number: refused if number == 1 else echo(body, number)
    client = OpenAIClient("m", chat_server.url)
    began = time.monotonic()
    result = await evaluated(client, single_turn(1))
    elapsed = time.monotonic() - began
    await client.close()
    (rollout,) = result.rollouts
    assert 0 < rollout.turns[0].model_seconds <= rollout.seconds <= elapsed - 0.5


async def test_a_judge_in_this_process_shares_the_limits(chat_server: Any) -> None:
    chat_server.delay = 0.01
    chat_server.script = lambda body, number: "yes" if body["model"] == "judge" else echo(body, number)
    rubric = JudgeRubric([judge_score], model="judge", base_url=chat_server.url)
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows(12), rubric=rubric, name="echo"))
    client = OpenAIClient("m", chat_server.url)
    result = await evaluated(client, environment, concurrency=2)
    await client.close()
    await environment.close()
    assert result.summary.reward_mean == 1.0
    assert chat_server.most_in_flight <= 2
    assert result.endpoints.calls == 24


async def test_a_call_canceled_before_it_is_sent_is_not_counted() -> None:
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
async def test_a_resumed_run_adds_to_the_number_of_calls(
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


async def test_an_endpoint_that_stops_accepting_calls_fails_the_run(chat_server: Any) -> None:
    refused = web.Response(status=429, text="{}", headers={"Retry-After": "0"})
    chat_server.script = lambda body, number: refused if number > 10 else echo(body, number)
    client = OpenAIClient("m", chat_server.url)
    client.attempts.patience = 0.3
    with pytest.raises(RateLimited) as caught:
        await evaluated(client, single_turn(500), concurrency=4, max_retries=0)
    await client.close()
    assert "has rejected every call" in str(caught.value)


async def test_an_exhausted_quota_stops_the_run(chat_server: Any, faults: dict[str, Any]) -> None:
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


async def test_rollouts_waiting_for_tools_use_no_call_slot(chat_server: Any) -> None:
    environment = ToolUse(asyncio.Event(), eval_dataset=rows(30), rubric=Rubric([right]), name="echo")
    client = OpenAIClient("m", chat_server.url)
    async with asyncio.timeout(60):
        result = await evaluated(client, LocalEnvironment(environment), concurrency=3, max_rollouts=12)
    await client.close()
    assert result.summary.rollouts == 30
    assert chat_server.most_in_flight <= 3
    assert environment.most_at_work == 12


async def test_several_evaluations_of_one_client_share_its_limit(chat_server: Any) -> None:
    chat_server.delay = 0.01
    client = OpenAIClient("m", chat_server.url)
    results = await asyncio.gather(*(evaluated(client, single_turn(20), concurrency=5) for _ in range(3)))
    await client.close()
    assert [each.summary.rollouts for each in results] == [20, 20, 20]
    assert chat_server.most_in_flight == 5


@pytest.mark.full
async def test_a_group_larger_than_the_limit_is_played(chat_server: Any) -> None:
    def first(completions: list[Any]) -> list[float]:
        return [float(index == 0) for index in range(len(completions))]

    chat_server.delay = 0.005
    rubric = Rubric([first])
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows(4), rubric=rubric, name="echo"))
    client = OpenAIClient("m", chat_server.url)
    async with asyncio.timeout(60):
        result = await evaluated(client, environment, concurrency=3, rollouts_per_example=8)
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
    async with asyncio.timeout(60):
        result = await evaluate(environment, client, plan, tmp_path, pin, on_progress=told, stop=stop)
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


async def test_a_refused_call_is_repeated_and_answered(chat_server: Any) -> None:
    refused = web.Response(status=503, text="{}")
    chat_server.script = lambda body, number: refused if number == 1 else "ok"
    client = OpenAIClient("m", chat_server.url)
    request = ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": "x"}])
    assert (await client.complete(request)).message["content"] == "ok"
    await client.close()
    assert client.limiter.use().refusals == 1


def test_the_use_of_calls_is_described() -> None:
    assert EndpointUse(calls=1200, retries=3).told() == "1,200, 3 retried"
    told = EndpointUse(calls=5, refusals=41, paused_seconds=12.3).told()
    assert told == "5; rate-limited 41 times, 12 s of pauses"
