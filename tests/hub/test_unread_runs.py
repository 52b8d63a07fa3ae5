"""Jobs that read a run and end without a result: withdrawn runs, dead workers, odd texts."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from wander_hub.database import now
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.jobs import Job, JobRefused, JobWorker, TableQueue, storable
from wander_hub.operation.job_queue import settle_failures
from wander_hub.runs.models import RunExamination
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.verification import evidence, program, service
from wander_hub.verification.evidence import Examiner

RUN = "01JRUN0000000000000000000A"


@pytest.fixture
def storage(hub: Any) -> Storage:
    return hub.client._transport.app.state.storage


@pytest.fixture
async def queue(hub: Any, run_of: Any, storage: Storage) -> TableQueue:
    """The queue of a hub with one run, whose worker plays nothing again."""
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).json()["level"] == "complete"
    return settle_failures(TableQueue(hub.database, retry_seconds=0))


def die(queue: TableQueue, kind: str) -> None:
    """Have the worker of a job of this kind die on every attempt."""
    with queue.database.write() as session:
        session.execute(update(Job).where(Job.kind == kind).values(max_attempts=1))
    assert queue.claim("a worker that dies", [kind])
    with queue.database.write() as session:
        session.execute(update(Job).where(Job.kind == kind).values(lease_until=now() - timedelta(seconds=1)))


async def level(hub: Any) -> tuple[str, str]:
    run = (await hub.get(f"/api/v1/runs/{RUN}")).json()
    return run["level"], run["level_reason"]


def faults(hub: Any, storage: Storage, **options: Any) -> list[tuple[str, str, bool]]:
    found = fsck.find_mismatches(hub.database, storage, settings=Settings(verification="off"), **options)
    return [(one.code, one.subject, one.repaired) for one in found]


async def test_a_run_that_is_withdrawn_while_it_is_read_ends_its_job(
    hub: Any, queue: TableQueue, run_of: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = (await hub.get(f"/api/v1/runs/{RUN}")).json()["manifest"]
    manifest, rollouts = run_of(
        original["environment"]["wheel_sha256"], run_id=f"{RUN[:-1]}B", rerun_of=RUN, model="again"
    )
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    loop, read = asyncio.get_running_loop(), Storage.read

    def withdraw_first(*arguments: Any) -> bytes:
        path = f"/api/v1/runs/{manifest['run_id']}?reason=wrong"
        request = hub.client.delete(path, headers=hub.auth())
        assert asyncio.run_coroutine_threadsafe(request, loop).result().status_code == 200
        return read(*arguments)

    reader = JobWorker(queue, {evidence.KIND: Examiner(hub.database, storage)}, "reader")
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "read", withdraw_first)
        for _ in range(2):
            assert await asyncio.to_thread(reader.run_one)
    with hub.database.read(HUB) as session:
        assert session.scalars(select(Job.state).where(Job.kind == evidence.KIND)).all() == ["done"] * 2
    assert faults(hub, storage) == []


async def test_a_run_that_nobody_could_read_keeps_its_level(
    hub: Any, queue: TableQueue, storage: Storage
) -> None:
    """No level depends on reading a run, so a fault of the hub costs nobody a rank."""
    die(queue, evidence.KIND)
    assert queue.claim("another", ["nothing that it can do"]) is None
    assert queue.claim("another", [evidence.KIND]) is None
    assert (await level(hub))[0] == "complete"
    board = (await hub.get("/api/v1/environments/alice/reverse-text/leaderboard")).json()
    assert [row["run_id"] for row in board["rows"]] == [RUN]
    assert faults(hub, storage) == []


async def test_a_job_with_unusual_output_does_not_stop_its_worker(hub: Any, queue: TableQueue) -> None:
    """Half a character, which SQLite cannot keep, and a zero one, which PostgreSQL cannot."""

    def refuse(context: Any) -> Any:
        raise JobRefused("it said \ud800 and \0")

    worker = JobWorker(queue, {service.KIND: refuse}, "player")
    assert worker.run_one()
    (told,) = (await hub.get(f"/api/v1/runs/{RUN}/verifications")).json()["data"]
    assert (told["state"], told["error"]) == ("failed", "it said ? and \ufffd")


async def test_a_worker_continues_after_an_unexpected_error(
    hub: Any, queue: TableQueue, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = JobWorker(queue, {evidence.KIND: Examiner(hub.database, storage)}, "reader")
    claim, failures = queue.claim, iter([ValueError("odd")])

    def once(*words: Any) -> Any:
        for error in failures:
            worker.wake()
            raise error
        lease = claim(*words)
        if lease is None:
            worker._attempts.ending.set()
        return lease

    monkeypatch.setattr(queue, "claim", once)
    worker._loop(looks=False)
    with hub.database.read(HUB) as session:
        assert session.get(RunExamination, RUN) is not None


def test_text_from_environments_is_made_storable() -> None:
    said = {"data": {"refused": "a\0b \ud800 \U0001f600 é", "n": 1}}
    kept = program._parse(json.dumps(said).encode())
    assert kept == {"data": {"refused": "a\ufffdb ? \U0001f600 é", "n": 1}}
    assert storable(kept["data"]["refused"]) == kept["data"]["refused"]
