"""Jobs: done once, given back when a worker dies, fenced against one that is late.

The contract of the port, on every database that keeps the jobs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from wander_hub import jobs
from wander_hub.database import now
from wander_hub.jobs import Job, JobCancelled, JobContext, JobRefused, JobWorker, Lease, LeaseLost, TableQueue

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)

WORKER = """
import sys, time
from wander_hub.database import Database
from wander_hub.jobs import JobWorker, TableQueue

def work(context):
    print("working", flush=True)
    time.sleep(600)

JobWorker(TableQueue(Database(sys.argv[1]), lease_seconds=1.5), {"play": work}, "doomed").run_one()
"""


@pytest.fixture
def queue(hub) -> TableQueue:
    return TableQueue(hub.database, lease_seconds=60, retry_seconds=0)


def submit(hub, queue: TableQueue, key: str = "one", kind: str = "play", **options) -> int:
    with hub.database.write() as session:
        return queue.submit(session, kind, key, {"run": key}, **options)


def job(hub, job_id: int) -> Job:
    with hub.database.read() as session:
        return session.get_one(Job, job_id)


def expire(hub) -> None:
    with hub.database.write() as session:
        session.execute(update(Job).values(lease_until=now() - timedelta(seconds=1)))


def nothing(session: Session) -> None:
    pass


async def test_a_job_is_done_once_and_its_result_kept_with_its_end(hub, queue):
    done: list[dict] = []
    number = submit(hub, queue)
    assert submit(hub, queue) == number, "a second job of one key is the first"

    def work(context: JobContext) -> Callable[[Session], None]:
        context.progress["done"] = 3
        return lambda session: done.append(context.lease.payload)

    worker = JobWorker(queue, {"play": work}, "a")
    assert worker.run_one()
    assert not worker.run_one()
    assert done == [{"run": "one"}]
    assert (job(hub, number).state, job(hub, number).attempt) == ("done", 1)


async def test_higher_priorities_come_first_and_other_kinds_are_left(hub, queue):
    submit(hub, queue, "late")
    submit(hub, queue, "soon", priority=5)
    submit(hub, queue, "other", kind="sweep")
    taken = [queue.claim("a", ["play"]) for _ in range(3)]
    assert [one and one.payload["run"] for one in taken] == ["soon", "late", None]


async def test_what_cannot_succeed_is_not_tried_again(hub, queue):
    number = submit(hub, queue)

    def work(context: JobContext):
        raise JobRefused("the environment is not deterministic")

    worker = JobWorker(queue, {"play": work}, "a")
    assert [worker.run_one(), worker.run_one()] == [True, False]
    assert (job(hub, number).state, job(hub, number).error) == (
        "failed",
        "the environment is not deterministic",
    )
    assert job(hub, number).finished_at is not None


async def test_a_failure_is_tried_again_and_at_last_given_up(hub, queue, caplog):
    number = submit(hub, queue)

    def work(context: JobContext):
        raise OSError("the disk is full")

    worker = JobWorker(queue, {"play": work}, "a")
    states = []
    while worker.run_one():
        states.append(job(hub, number).state)
    assert states == ["queued", "queued", "failed"]
    assert job(hub, number).error == "OSError: the disk is full"


async def test_a_late_worker_can_keep_nothing(hub, queue):
    number = submit(hub, queue)
    late = queue.claim("late", ["play"])
    expire(hub)
    second = queue.claim("second", ["play"])
    assert second is not None
    assert second.attempt == 2
    kept: list[str] = []
    for act in (
        lambda: queue.finish(late, lambda session: kept.append("late")),
        lambda: queue.beat(late, {}),
        lambda: queue.fail(late, "no", retry=True),
        lambda: queue.give_back(late),
    ):
        with pytest.raises(LeaseLost):
            act()
    queue.finish(second, lambda session: kept.append("second"))
    assert kept == ["second"]
    assert job(hub, number).state == "done"


async def test_a_result_that_cannot_be_kept_leaves_the_job_undone(hub, queue):
    number = submit(hub, queue)

    def work(context: JobContext):
        def keep(session: Session) -> None:
            raise OSError("the disk is full")

        return keep

    JobWorker(queue, {"play": work}, "a").run_one()
    assert job(hub, number).state == "queued"


async def test_a_job_that_kills_its_workers_is_given_up(hub, queue):
    number = submit(hub, queue)
    for attempt in range(1, jobs.MAX_ATTEMPTS + 1):
        lease = queue.claim(f"w{attempt}", ["play"])
        assert lease is not None
        assert lease.attempt == attempt
        expire(hub)
    assert queue.claim("last", ["play"]) is None
    assert job(hub, number).state == "failed"
    assert job(hub, number).error == "the worker that had the job died, on every attempt"


async def test_a_killed_worker_process_loses_its_job_to_another(hub):
    queue = TableQueue(hub.database, lease_seconds=1.5)
    number = submit(hub, queue)
    kill_a_worker_at_work(hub.database.url, queue)
    lease = next_lease(queue)
    assert lease.attempt == 2
    queue.finish(lease, nothing)
    assert job(hub, number).state == "done"


def kill_a_worker_at_work(url: str, queue: TableQueue) -> None:
    doomed = subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE, text=True)
    try:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "working\n"
        time.sleep(2)  # longer than the lease: its heartbeat renews it
        assert queue.claim("other", ["play"]) is None
    finally:
        doomed.send_signal(signal.SIGKILL)
        doomed.communicate()


def next_lease(queue: TableQueue) -> Lease:
    give_up = time.monotonic() + 120
    while (lease := queue.claim("other", ["play"])) is None:
        assert time.monotonic() < give_up
        time.sleep(0.1)
    return lease


async def test_a_job_that_waits_is_called_off_at_once_and_one_that_runs_soon(hub):
    queue = TableQueue(hub.database, lease_seconds=0.3)
    waiting, running = submit(hub, queue, "waiting"), submit(hub, queue, "running", priority=1)
    begun = threading.Event()

    def work(context: JobContext):
        begun.set()
        assert context.stopping.wait(60)
        context.check()

    worker = threading.Thread(target=JobWorker(queue, {"play": work}, "a").run_one)
    worker.start()
    assert begun.wait(60)
    with hub.database.write() as session:
        queue.cancel(session, waiting)
        queue.cancel(session, running)
    worker.join(60)
    assert [job(hub, one).state for one in (waiting, running)] == ["cancelled", "cancelled"]
    assert queue.claim("a", ["play"]) is None


async def test_a_hub_that_ends_gives_its_job_back_uncounted(hub, queue):
    number = submit(hub, queue)
    begun = threading.Event()

    def work(context: JobContext):
        begun.set()
        assert context.stopping.wait(60)
        context.check()

    worker = JobWorker(queue, {"play": work}, "a")
    worker.start()
    assert begun.wait(60)
    worker.stop(60)
    assert (job(hub, number).state, job(hub, number).max_attempts) == ("queued", jobs.MAX_ATTEMPTS + 1)


async def test_a_worker_that_lost_its_lease_hears_of_it(hub):
    queue = TableQueue(hub.database, lease_seconds=0.3)
    number = submit(hub, queue)
    heard: list[type[BaseException]] = []

    def work(context: JobContext):
        with hub.database.write() as session:
            session.execute(update(Job).values(lease_owner="thief"))
        assert context.stopping.wait(60)
        try:
            context.check()
        except (LeaseLost, JobCancelled) as error:
            heard.append(type(error))
            raise

    JobWorker(queue, {"play": work}, "a").run_one()
    assert heard == [LeaseLost]
    assert (job(hub, number).state, job(hub, number).lease_owner) == ("running", "thief")


async def test_progress_is_told_while_the_work_goes_on(hub):
    queue = TableQueue(hub.database, lease_seconds=0.3)
    number = submit(hub, queue)

    def work(context: JobContext):
        context.progress["done"] = 7
        give_up = time.monotonic() + 120
        while job(hub, number).progress != {"done": 7}:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        return nothing

    JobWorker(queue, {"play": work}, "a").run_one()
    assert job(hub, number).state == "done"


async def test_many_workers_take_each_job_once(hub, queue):
    for number in range(40):
        submit(hub, queue, f"job {number}")
    taken: list[str] = []

    def work(context: JobContext):
        taken.append(context.lease.payload["run"])
        return nothing

    def all_of_them(name: str) -> None:
        worker = JobWorker(queue, {"play": work}, name)
        while worker.run_one():
            pass

    threads = [threading.Thread(target=all_of_them, args=(f"w{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert Counter(taken) == Counter(f"job {number}" for number in range(40))
    with hub.database.read() as session:
        assert set(session.scalars(select(Job.state))) == {"done"}


async def test_a_woken_worker_looks_at_once(hub, queue, monkeypatch):
    monkeypatch.setattr(jobs.worker, "POLL_SECONDS", 3600)
    done = threading.Event()

    def work(context: JobContext):
        done.set()
        return nothing

    worker = JobWorker(queue, {"play": work}, "a")
    worker.start()
    submit(hub, queue)
    worker.wake()
    assert done.wait(60)
    worker.stop()


async def test_a_worker_looks_for_work_of_its_own_before_it_takes_any(hub, queue):
    done = threading.Event()

    def look() -> None:
        submit(hub, queue, "found")

    def work(context: JobContext):
        done.set()
        return nothing

    worker = JobWorker(queue, {"play": work}, "a", look=look)
    worker.start()
    assert done.wait(60)
    worker.stop()
    with hub.database.read() as session:
        assert session.scalars(select(Job.key)).all() == ["found"]
