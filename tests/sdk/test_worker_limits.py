"""What one worker, or one rollout, may ask of its host: beyond that it fails, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import Rollout, ScriptedClient
from wander.clients.base import ModelRequest
from wander.errors import DatasetError
from wander.worker.channel import QUEUE_LIMIT, Channel
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.protocol import PAGE_BYTES

pytestmark = pytest.mark.usefixtures("warm_workers")

BODY = """
import asyncio, os
from wander import MultiTurnEnv, Rubric
from wander.clients.base import ModelRequest
from wander.worker.child.service import Service

def length(completion):
    return float(len(completion[-1]["content"]))

class Env(MultiTurnEnv):
    async def env_response(self, messages, state):
        said = messages[-1]["content"]
        if said == "pid":
            said = str(os.getpid())
        if said == "long":
            said = "é" * 200_000
        if said == "public":
            state["public"]["kept"] = "x" * 400_000
        if said == "dishonest":
            Service._too_long = lambda self, text: False
            said = "x" * 4_000_000
        return [{"role": "user", "content": said}]

    async def play(self, state, model):
        if state["info"].get("flood"):
            one = ModelRequest(rollout_id=model.rollout_id, turn=0, messages=state.prompt)
            await asyncio.gather(*(model.client.complete(one) for _ in range(2500)))
        await super().play(state, model)

def load_environment(rows=3, size=1, flood=-1):
    rows = [{"question": "q" * size, "info": {"flood": i == flood}} for i in range(rows)]
    return Env(eval_dataset=rows, rubric=Rubric([length]), max_turns=2, name="bounded")
"""


@asynccontextmanager
async def worker(folder: Path, **options: Any) -> AsyncIterator[WorkerEnvironment]:
    module = folder / "bounded_environment.py"
    module.write_text(BODY)
    environment = await WorkerEnvironment.start(
        None, None, path=module, log_path=folder / "worker.log", **options
    )
    try:
        yield environment
    finally:
        await environment.close()


async def play(environment: WorkerEnvironment, *texts: str) -> Rollout:
    (example,) = await environment.examples("eval", 0, 1)
    return await environment.rollout(ScriptedClient([*texts, "end"]), example)


@pytest.mark.parametrize("said", ["long", "public"])
async def test_a_too_long_message_fails_only_its_rollout(tmp_path: Path, said: str) -> None:
    async with worker(tmp_path, message_limit=300_000) as environment:
        before = await play(environment, "pid")
        rollout = await play(environment, said)
        after = await play(environment, "pid")
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.type) == ("environment", "EnvironmentFault")
    assert "the record of this rollout has 40" in rollout.failure.message
    assert "more than the 300,000 allowed in a message" in rollout.failure.message
    assert not rollout.failure.retryable
    assert before.completion[1] == after.completion[1]


async def test_a_worker_that_ignores_limits_is_stopped(tmp_path: Path) -> None:
    async with worker(tmp_path, message_limit=300_000) as environment:
        rollout = await play(environment, "dishonest")
        assert rollout.failure is not None
        assert (rollout.failure.type, rollout.failure.retryable) == ("WorkerLost", True)
        assert "sent a message of more than 300,000 bytes and was stopped" in rollout.failure.message
        assert (await play(environment, "fine")).failure is None


async def test_a_too_long_example_is_reported(tmp_path: Path) -> None:
    async with worker(tmp_path, message_limit=300_000, arguments={"size": 400_000}) as environment:
        with pytest.raises(DatasetError, match="example `0` has 40"):
            await environment.examples("eval")


async def test_long_examples_come_in_pages_and_in_order(tmp_path: Path) -> None:
    size = PAGE_BYTES // 8
    async with worker(tmp_path, arguments={"rows": 20, "size": size}) as environment:
        found = await environment.examples("eval", 1)
    assert [example.index for example in found] == list(range(1, 20))
    assert {len(example.prompt[0]["content"]) for example in found} == {size}


async def test_a_flood_of_model_calls_fails_only_its_rollout(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def model(request: ModelRequest) -> str:
        await go_on.wait()
        return "fine"

    async with worker(tmp_path, arguments={"flood": 1}) as environment:
        examples = await environment.examples("eval")
        client = ScriptedClient(model)
        first, flood, last = [asyncio.create_task(environment.rollout(client, each)) for each in examples]
        async with asyncio.timeout(60):
            failure = (await flood).failure
        assert failure is not None
        assert (failure.type, failure.boundary, failure.retryable) == ("TooManyCalls", "environment", False)
        assert "more than 1000 requests at the same time" in failure.message
        assert not first.done()
        go_on.set()
        assert (await first).failure is (await last).failure is None


class Slow:
    """A connection whose other side reads when it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reads = asyncio.Semaphore(0)

    async def send(self, frame: Any) -> None:
        await self.reads.acquire()
        self.sent.append(frame if isinstance(frame, bytes) else b"".join(frame))


async def test_a_fast_sender_waits_for_a_slow_reader() -> None:
    connection = Slow()
    channel = Channel(connection)  # type: ignore[arg-type]
    running = asyncio.create_task(channel.run())
    lines = [f"{number:07}" + "x" * (1 << 20) for number in range(QUEUE_LIMIT // (1 << 20) + 1)]
    async with asyncio.timeout(60):
        await channel.room()
    for line in lines:
        channel.send(line)
    waiting = asyncio.create_task(channel.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    for _ in lines:
        connection.reads.release()
    async with asyncio.timeout(60):
        await waiting
    for _ in range(100):
        await asyncio.sleep(0)
    assert connection.sent == [line.encode() for line in lines]
    channel.stop()
    async with asyncio.timeout(60):
        await running
