"""Several workers for one environment: the load is shared, and the loss of one is that one's alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from talking_environment import BODY
from wander import Rollout, ScriptedClient
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import EnvironmentFault, LoadError
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment, automatic_workers

pytestmark = pytest.mark.usefixtures("warm_workers")

TIMES = {"started_at", "seconds", "scoring_seconds"}
TURN_TIMES = {"model_seconds", "environment_seconds"}


@asynccontextmanager
async def pool(
    folder: Path, workers: int, body: str = BODY, **options: Any
) -> AsyncIterator[WorkerEnvironment]:
    module = folder / "shared_environment.py"
    module.write_text(body)
    environment = await WorkerEnvironment.start(
        None, None, path=module, log_path=folder / "worker.log", workers=workers, **options
    )
    try:
        yield environment
    finally:
        await environment.close()


def plain(rollout: Rollout) -> dict[str, Any]:
    """What of a rollout does not measure time."""
    found = rollout.model_dump(mode="json", exclude=TIMES)
    for turn in found["turns"]:
        for name in TURN_TIMES:
            turn.pop(name)
    return found


async def pids(environment: WorkerEnvironment) -> list[int]:
    """Play one rollout in every worker at the same time, and return their processes."""
    (example,) = await environment.examples("eval", 0, 1)
    count = len(environment._pool.slots)
    together = asyncio.Barrier(count)

    class Together(ScriptedClient):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            if request.turn == 0:
                await together.wait()
            return await super().complete(request)

    client = Together(lambda request: "pid" if request.turn == 0 else "end")
    rollouts = await asyncio.gather(
        *(environment.rollout(client, example, index=index) for index in range(count))
    )
    return [int(rollout.completion[1]["content"].split()[-1]) for rollout in rollouts]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to that")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_rollouts_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    def model(request: ModelRequest) -> str:
        return "roll" if request.turn == 0 else f"end {request.seed % 97}"

    played = []
    for workers in (1, 3):
        async with pool(tmp_path, workers, arguments={"rows": 8}) as environment:
            pin = EnvironmentPin(name="talking", info=environment.info)
            plan = EvaluationPlan(rollouts_per_example=3, concurrency=7, seed=5)
            result = await evaluate(environment, ScriptedClient(model), plan, None, pin)
        assert result.summary.failed == 0
        played.append({rollout.key: plain(rollout) for rollout in result.rollouts})
        assert result.manifest.environment == pin
    assert len(played[0]) == 24
    assert played[0] == played[1]


@pytest.mark.full
async def test_rollouts_go_to_the_least_busy_worker(tmp_path: Path) -> None:
    async with pool(tmp_path, 3) as environment:
        (example,) = await environment.examples("eval", 0, 1)
        arrived = asyncio.Semaphore(0)
        go_on = asyncio.Event()

        class Waiting(ScriptedClient):
            async def complete(self, request: ModelRequest) -> ModelResponse:
                if request.turn == 0:
                    arrived.release()
                    await go_on.wait()
                return await super().complete(request)

        client = Waiting(lambda request: "pid" if request.turn == 0 else "end")
        plays = [asyncio.create_task(environment.rollout(client, example, index=i)) for i in range(12)]
        for _ in plays:
            await arrived.acquire()
        assert [slot.under_way for slot in environment._pool.slots] == [4, 4, 4]
        go_on.set()
        where = Counter(each.completion[1]["content"] for each in await asyncio.gather(*plays))
    assert sorted(where.values()) == [4, 4, 4]


async def test_a_group_stays_together_and_counts_as_its_rollouts(tmp_path: Path) -> None:
    async with pool(tmp_path, 2) as environment:
        (example,) = await environment.examples("eval", 0, 1)
        client = ScriptedClient(lambda request: "pid" if request.turn == 0 else "end")
        group = await environment.rollout_group(client, example, indices=[0, 1, 2, 3])
    assert len({each.completion[1]["content"] for each in group}) == 1


class Waiting(Client):
    """Never answers."""

    model = "waiting"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        await asyncio.sleep(3600)
        raise AssertionError


@pytest.mark.full
async def test_a_dead_worker_does_not_affect_others(tmp_path: Path) -> None:
    async with pool(tmp_path, 3) as environment:
        before = await pids(environment)
        (example,) = await environment.examples("eval", 0, 1)
        waiting = [Waiting() for _ in range(3)]
        plays = [asyncio.create_task(environment.rollout(each, example)) for each in waiting]
        await asyncio.gather(*(each.asked.wait() for each in waiting))
        os.kill(before[1], signal.SIGKILL)
        done, others = await asyncio.wait(plays, return_when=asyncio.FIRST_COMPLETED)
        failure = done.pop().result().failure
        assert failure is not None
        assert (failure.type, failure.retryable) == ("WorkerLost", True)
        assert len(others) == 2
        # It comes back by itself, with nobody asking for a rollout.
        await until(lambda: all(slot.session is not None for slot in environment._pool.slots))
        assert not any(play.done() for play in others)
        for play in others:
            play.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        after = await pids(environment)
    assert len({*before, *after}) == 4
    assert not any(alive(pid) for pid in {*before, *after})


@pytest.mark.full
async def test_an_evaluation_survives_workers_that_die(tmp_path: Path) -> None:
    died: set[str] = set()

    def model(request: ModelRequest) -> str:
        if request.rollout_id in ("5/0", "9/0", "14/0") and request.rollout_id not in died:
            died.add(request.rollout_id)
            return "kill"
        return "fine"

    async with pool(tmp_path, 2, arguments={"rows": 20}) as environment:
        pin = EnvironmentPin(name="talking", info=environment.info)
        plan = EvaluationPlan(concurrency=4, max_retries=6)
        result = await evaluate(environment, ScriptedClient(model), plan, None, pin)
    assert (result.summary.rollouts, result.summary.failed) == (20, 0)
    assert len(died) == 3


async def test_without_workers_an_evaluation_stops(tmp_path: Path) -> None:
    client = ScriptedClient(lambda request: "kill")
    async with pool(tmp_path, 2, restarts=0, arguments={"rows": 30}) as environment:
        pin = EnvironmentPin(name="talking", info=environment.info)
        plan = EvaluationPlan(concurrency=2, max_retries=0)
        with pytest.raises(EnvironmentFault, match=r"was killed by SIGKILL; log: .*worker\.log"):
            await evaluate(environment, client, plan, None, pin)


async def test_synchronous_code_blocks_only_its_own_worker(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with pool(tmp_path, 2) as environment:
        (example,) = await environment.examples("eval", 0, 1)
        blocked = asyncio.create_task(
            environment.rollout(ScriptedClient([f"block {gate}", "end"]), example, index=0)
        )
        await until((tmp_path / "gate.blocked").exists)
        for index in range(1, 9):
            rollout = await environment.rollout(ScriptedClient(["fine", "end"]), example, index=index)
            assert rollout.failure is None
        assert not blocked.done()
        gate.touch()
        assert (await blocked).failure is None


async def test_a_start_that_fails_leaves_no_worker(tmp_path: Path) -> None:
    body = (
        BODY
        + f"""
import fcntl
with open({str(tmp_path / "pids")!r}, "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(f"{{os.getpid()}}\\n")
    file.flush()
    count = len(open({str(tmp_path / "pids")!r}).readlines())
if count == 3:
    raise RuntimeError("the third has no place")
"""
    )
    with pytest.raises(LoadError, match="the third has no place"):
        async with pool(tmp_path, 3, body):
            pass
    started = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert 1 <= len(started) <= 3
    assert not any(alive(pid) for pid in started)


async def test_workers_with_different_environments_are_rejected(tmp_path: Path) -> None:
    body = BODY.replace('name="talking"', 'name="talking", summary=str(os.getpid())')
    with pytest.raises(LoadError, match="different environments"):
        async with pool(tmp_path, 2, body):
            pass


@pytest.mark.full
async def test_closing_stops_a_starting_worker(tmp_path: Path) -> None:
    gate = tmp_path / "again"
    body = (
        BODY
        + f"""
if os.path.exists({str(gate)!r}):
    open({str(gate)!r}, "w").write(str(os.getpid()))
    time.sleep(600)
"""
    )
    async with pool(tmp_path, 1, body) as environment:
        gate.touch()
        (pid,) = await pids(environment)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bool(gate.read_text()))
        starting = int(gate.read_text())
    assert not alive(starting)


@pytest.mark.parametrize(
    ("concurrency", "cores", "workers"), [(1, 8, 1), (256, 8, 1), (257, 8, 2), (9999, 4, 4)]
)
def test_the_automatic_number_of_workers_follows_the_cores(
    monkeypatch: pytest.MonkeyPatch, concurrency: int, cores: int, workers: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert automatic_workers(concurrency) == workers


async def test_loaded_objects_are_excluded_from_garbage_collection(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as environment:
        (example,) = await environment.examples("eval", 0, 1)
        rollout = await environment.rollout(ScriptedClient(["frozen", "end"]), example)
    assert int(rollout.completion[1]["content"].split()[-1]) > 10_000
