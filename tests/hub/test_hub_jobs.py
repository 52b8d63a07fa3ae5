"""Jobs: done once, given back when a worker dies, fenced against one that is late.

The contract of the port, for every queue on every database that keeps the jobs.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Protocol

import pytest
from obstore.exceptions import GenericError
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from wander.wire.verification import JobState
from wander_hub import jobs
from wander_hub.accounts.service import add_user
from wander_hub.database import now
from wander_hub.jobs import (
    Handler,
    Job,
    JobCanceled,
    JobContext,
    JobPostponed,
    JobRefused,
    JobWorker,
    LeaseLost,
    TableQueue,
)

pytestmark = pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)

PATIENCE = 120


class MakeQueue(Protocol):
    def __call__(self, *, lease_seconds: float = ..., retry_seconds: float = ...) -> TableQueue: ...


@pytest.fixture
def make_queue(database) -> MakeQueue:
    def make(*, lease_seconds: float = 60, retry_seconds: float = 0) -> TableQueue:
        return TableQueue(database, lease_seconds=lease_seconds, retry_seconds=retry_seconds)

    return make


@pytest.fixture
def queue(make_queue) -> TableQueue:
    return make_queue()


class Working(Protocol):
    def __call__(self, queue: TableQueue, handler: Handler, **options: object) -> JobWorker: ...


@pytest.fixture
def working() -> Iterator[Working]:
    """Start workers, and stop them at the end."""
    started: list[JobWorker] = []

    def start(queue: TableQueue, handler: Handler, **options: object) -> JobWorker:
        started.append(JobWorker(queue, {"play": handler}, f"w{len(started)}", **options))
        started[-1].start()
        return started[-1]

    yield start
    for worker in started:
        worker.stop(60)


def waiting_done(queue: TableQueue, handler: Handler) -> int:
    """Do what waits; return how many attempts that took."""
    return JobWorker(queue, {"play": handler}, "a").run_waiting()


def submit(queue: TableQueue, key: str = "one", kind: str = "play", **options: int) -> int:
    with queue.database.write() as session:
        return queue.submit(session, kind, key, {"run": key}, **options)


def job(queue: TableQueue, job_id: int) -> Job:
    with queue.database.read() as session:
        return session.get_one(Job, job_id)


def state(queue: TableQueue, job_id: int) -> JobState:
    return job(queue, job_id).state


def expire(queue: TableQueue) -> None:
    with queue.database.write() as session:
        session.execute(update(Job).values(lease_until=now() - timedelta(seconds=1)))


def nothing(session: Session) -> None:
    pass


def until(holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    give_up = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < give_up, f"never: {what}"
        time.sleep(0.02)


def waits_to_be_stopped(begun: threading.Event) -> Handler:
    """Return a handler that says that it began, and leaves off when it is told to."""

    def handler(context: JobContext) -> Callable[[Session], None]:
        begun.set()
        assert context.stopping.wait(PATIENCE)
        context.check()
        return nothing

    return handler


def test_a_job_runs_once_and_its_result_is_stored_when_it_ends(queue):
    done: list[Mapping[str, object]] = []
    number = submit(queue)
    assert submit(queue) == number, "a second job of one key is the first"

    def handler(context: JobContext) -> Callable[[Session], None]:
        return lambda session: done.append(context.lease.payload)

    assert [waiting_done(queue, handler), waiting_done(queue, handler)] == [1, 0]
    assert submit(queue) == number, "also when it was done"
    assert waiting_done(queue, handler) == 0
    assert done == [{"run": "one"}]
    assert (state(queue, number), job(queue, number).attempt) == ("done", 1)


def test_a_rolled_back_submission_leaves_no_job(queue):
    def undone() -> None:
        with queue.database.write() as session:
            queue.submit(session, "play", "one", {})
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        undone()
    assert waiting_done(queue, lambda context: nothing) == 0


def test_higher_priorities_come_first_and_other_kinds_are_skipped(queue):
    taken: list[str] = []
    submit(queue, "late")
    submit(queue, "soon", priority=5)
    other = submit(queue, "other", kind="sweep", priority=9)
    submit(queue, "sooner", priority=6)

    def handler(context: JobContext) -> Callable[[Session], None]:
        taken.append(context.lease.payload["run"])
        return nothing

    assert waiting_done(queue, handler) == 3
    assert taken == ["sooner", "soon", "late"]
    assert state(queue, other) == "queued"


def test_hopeless_jobs_are_not_retried(queue):
    number = submit(queue)

    def handler(context: JobContext) -> Callable[[Session], None]:
        raise JobRefused("the environment is not deterministic")

    assert waiting_done(queue, handler) == 1
    assert (state(queue, number), job(queue, number).error) == (
        "failed",
        "the environment is not deterministic",
    )
    assert job(queue, number).finished_at is not None


def test_failed_jobs_are_retried_a_limited_number_of_times(queue, caplog):
    number = submit(queue)

    def handler(context: JobContext) -> Callable[[Session], None]:
        raise OSError("the disk is full")

    assert waiting_done(queue, handler) == jobs.MAX_ATTEMPTS
    assert (state(queue, number), job(queue, number).error) == ("failed", "OSError: the disk is full")


AWAY = {
    "nothing answers at the hub": JobPostponed("nothing answers at the hub"),
    "the hub's object store does not respond": GenericError("timed out"),
    "the hub's disk is full": OSError(errno.ENOSPC, "full"),
}


@pytest.mark.parametrize("told", AWAY)
def test_errors_of_the_hub_do_not_count_as_attempts(queue, caplog, told):
    number, tries = submit(queue), 12

    def handler(context: JobContext) -> Callable[[Session], None]:
        assert context.lease.tries == 1
        if context.lease.attempt < tries:
            raise AWAY[told]
        return nothing

    worker = JobWorker(queue, {"play": handler}, "a")
    for _ in range(tries - 1):
        assert worker.run_one()
        assert (state(queue, number), job(queue, number).error) == ("queued", told)
    assert worker.run_one()
    assert state(queue, number) == "done"
    assert "Traceback" not in caplog.text


def test_errors_of_the_hub_are_retried_with_growing_delays(make_queue, caplog):
    queue = make_queue(retry_seconds=10)
    number, pauses = submit(queue), []

    def handler(context: JobContext) -> Callable[[Session], None]:
        raise JobPostponed("no sandbox")

    for _ in range(14):
        with queue.database.write() as session:
            session.execute(update(Job).values(run_after=now() - timedelta(seconds=1)))
        JobWorker(queue, {"play": handler}, "a").run_one()
        pauses.append(round((job(queue, number).run_after - now()).total_seconds() / 10))
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-2:] == [2**11, 2**11]


def test_all_jobs_that_wait_for_the_hub_are_retried_together(make_queue, caplog):
    queue = make_queue(retry_seconds=3600)
    ends = {
        "waits": JobPostponed("no sandbox"),
        "failed": JobRefused("no environment"),
        "done": None,
        "tried": OSError("the disk is full"),
    }
    numbers = {key: submit(queue, key) for key in ends}

    def handler(context: JobContext) -> Callable[[Session], None]:
        end = ends[context.lease.payload["run"]]
        if end is not None:
            raise end
        return nothing

    assert waiting_done(queue, handler) == 4
    fresh, other = submit(queue, "fresh"), submit(queue, "other", kind="sweep")
    with queue.database.write() as session:
        assert queue.retry_all(session, ["play"]) == 3
    ends = dict.fromkeys(ends)
    ends["fresh"] = None
    assert waiting_done(queue, handler) == 4
    assert {state(queue, one) for one in [*numbers.values(), fresh]} == {"done"}
    assert state(queue, other) == "queued"


@pytest.fixture
def users(database) -> list[int]:
    with database.write() as session:
        return [add_user(session, name).id for name in ("ada", "bea", "cid")]


def order(queue: TableQueue) -> list[str]:
    """Return the jobs in the order in which one worker does them."""
    done: list[str] = []

    def handler(context: JobContext) -> Callable[[Session], None]:
        done.append(context.lease.payload["run"])
        return nothing

    waiting_done(queue, handler)
    return done


def test_users_take_turns(queue, users):
    ada, bea, cid = users
    for number in range(4):
        submit(queue, f"a{number}", created_by=ada)
    submit(queue, "b0", created_by=bea)
    submit(queue, "c0", created_by=cid)
    submit(queue, "b1", created_by=bea)
    assert order(queue) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_new_users_are_next_but_gain_no_credit_by_waiting(queue, users):
    ada, bea, _ = users
    for number in range(6):
        submit(queue, f"a{number}", created_by=ada)
    worker = JobWorker(queue, {"play": lambda context: nothing}, "a")
    for _ in range(3):
        assert worker.run_one()
    for number in range(3):
        submit(queue, f"b{number}", created_by=bea)
    assert order(queue) == ["a3", "b0", "a4", "b1", "a5", "b2"]


def test_a_long_job_costs_its_user_several_turns(queue, users):
    ada, bea, _ = users
    submit(queue, "long", created_by=ada, cost=4)
    submit(queue, "next", created_by=ada)
    for number in range(5):
        submit(queue, f"b{number}", created_by=bea)
    assert order(queue) == ["long", "b0", "b1", "b2", "b3", "next", "b4"]


def test_a_retried_job_waits_for_the_next_turn_of_its_user(queue, users, caplog):
    ada, bea, _ = users
    submit(queue, "broken", created_by=ada)
    for number in range(2):
        submit(queue, f"b{number}", created_by=bea)
    done: list[str] = []

    def handler(context: JobContext) -> Callable[[Session], None]:
        done.append(context.lease.payload["run"])
        if done[-1] == "broken":
            raise OSError("no luck")
        return nothing

    waiting_done(queue, handler)
    assert done[:4] == ["broken", "b0", "broken", "b1"]
    assert done[4:] == ["broken"] * (jobs.MAX_ATTEMPTS - 2)


def test_priorities_come_before_turns(queue, users):
    ada, bea, _ = users
    for number in range(3):
        submit(queue, f"a{number}", created_by=ada)
    submit(queue, "urgent", created_by=ada, priority=1)
    submit(queue, "b0", created_by=bea)
    assert order(queue) == ["urgent", "a0", "b0", "a1", "a2"]


def test_a_job_can_be_postponed_only_once(queue, users):
    number = submit(queue, created_by=users[0])
    late = queue.claim("w1", ["play"])
    with queue.database.write() as session:
        assert queue.put_off(session, number)
    with pytest.raises(LeaseLost):
        queue.finish(late, nothing)
    assert state(queue, number) == "queued"
    lease = queue.claim("w2", ["play"])
    assert (lease.attempt, lease.tries) == (2, 1), "which does not count"
    with queue.database.write() as session:
        assert not queue.put_off(session, number)
    queue.finish(lease, nothing)
    assert state(queue, number) == "done"


def test_failed_jobs_are_not_retried_immediately(make_queue, caplog):
    queue = make_queue(retry_seconds=3600)
    number = submit(queue)

    def handler(context: JobContext) -> Callable[[Session], None]:
        raise OSError("the disk is full")

    assert waiting_done(queue, handler) == 1
    assert waiting_done(queue, handler) == 0
    assert (state(queue, number), job(queue, number).attempt) == ("queued", 1)
    assert job(queue, number).run_after > now() + timedelta(minutes=30)


def test_a_job_of_a_dead_worker_waits_before_its_retry(make_queue):
    """Else a hub that is started again and again has no time for a job, and gives it up."""
    queue = make_queue(retry_seconds=3600)
    number = submit(queue)
    assert queue.claim("w1", ["play"]) is not None
    expire(queue)
    assert queue.claim("w2", ["play"]) is None
    assert (state(queue, number), job(queue, number).attempt) == ("queued", 1)
    assert job(queue, number).run_after > now() + timedelta(minutes=30)


def test_a_worker_with_an_expired_lease_stores_nothing(queue):
    number = submit(queue)
    late = queue.claim("late", ["play"])
    assert late is not None
    expire(queue)
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
    assert state(queue, number) == "done"
    assert waiting_done(queue, lambda context: nothing) == 0


def test_a_result_that_cannot_be_stored_leaves_the_job_unfinished(queue, caplog):
    number = submit(queue)
    tries: list[int] = []

    def keep(session: Session) -> None:
        tries.append(1)
        session.execute(update(Job).values(payload={"try": len(tries)}))
        if len(tries) == 1:
            raise OSError("the disk is full")

    assert waiting_done(queue, lambda context: keep) == 2
    done = job(queue, number)
    assert (done.state, done.attempt, done.payload) == ("done", 2, {"try": 2})


def test_a_job_that_kills_its_workers_fails(queue):
    number = submit(queue)
    for attempt in range(1, jobs.MAX_ATTEMPTS + 1):
        lease = queue.claim(f"w{attempt}", ["play"])
        assert lease is not None
        assert lease.attempt == attempt
        expire(queue)
    assert waiting_done(queue, lambda context: nothing) == 0
    assert state(queue, number) == "failed"
    assert job(queue, number).error == "the worker crashed on every attempt"


def test_waiting_and_running_jobs_are_canceled(make_queue, working):
    queue = make_queue(lease_seconds=0.6)
    begun = threading.Event()
    running = submit(queue, "running")
    working(queue, waits_to_be_stopped(begun))
    assert begun.wait(PATIENCE)
    waiting = submit(queue, "waiting", kind="other")
    with queue.database.write() as session:
        queue.cancel(session, waiting)
        queue.cancel(session, running)
    assert state(queue, waiting) == "canceled"
    until(lambda: state(queue, running) == "canceled", "the one that runs is called off")
    assert queue.claim("a", ["play", "other"]) is None


def test_a_stopping_worker_returns_its_job_without_counting_an_attempt(queue, working):
    number = submit(queue)
    begun = threading.Event()
    worker = working(queue, waits_to_be_stopped(begun))
    assert begun.wait(PATIENCE)
    worker.stop(PATIENCE)
    assert (state(queue, number), job(queue, number).max_attempts) == ("queued", jobs.MAX_ATTEMPTS + 1)
    assert waiting_done(queue, lambda context: nothing) == 1


def test_a_wrong_clock_does_not_steal_jobs(make_queue, monkeypatch):
    queue = make_queue(lease_seconds=60)
    if queue.database.engine.dialect.name == "sqlite":
        pytest.skip("all processes are on one machine, whose clock they share")
    number = submit(queue)
    lease = queue.claim("w1", ["play"])
    tomorrow = now() + timedelta(days=1)
    for module in ("wander_hub.jobs.table", "wander_hub.database"):
        monkeypatch.setattr(f"{module}.now", lambda: tomorrow)
    assert queue.claim("w2", ["play"]) is None
    queue.beat(lease, {})
    later = submit(queue, "two")
    monkeypatch.undo()
    assert queue.claim("w3", ["play"]).job_id == later, "it waits for no clock but the database's"
    assert (state(queue, number), job(queue, number).lease_owner) == ("running", "w1")


def test_a_worker_notices_a_lost_lease(make_queue):
    queue = make_queue(lease_seconds=0.6)
    number = submit(queue)
    heard: list[type[BaseException]] = []

    def handler(context: JobContext) -> Callable[[Session], None]:
        with queue.database.write() as session:
            until_then = now() + timedelta(hours=1)
            session.execute(update(Job).values(lease_owner="thief", lease_until=until_then))
        assert context.stopping.wait(PATIENCE)
        try:
            context.check()
        except (LeaseLost, JobCanceled) as error:
            heard.append(type(error))
            raise
        return nothing

    assert waiting_done(queue, handler) == 1
    assert heard == [LeaseLost]
    assert (state(queue, number), job(queue, number).lease_owner) == ("running", "thief")


def test_progress_is_recorded_during_the_work(make_queue):
    queue = make_queue(lease_seconds=2)
    number = submit(queue)

    def handler(context: JobContext) -> Callable[[Session], None]:
        context.progress["done"] = 7

        def stored() -> bool:
            context.check()  # on a busy machine its lease may run out, and the job begin again
            return job(queue, number).progress == {"done": 7}

        until(stored, "the progress is stored")
        return nothing

    waiting_done(queue, handler)
    assert state(queue, number) == "done"


def all_taken_once(queue: TableQueue, working: Working, count: int) -> None:
    """Have three workers of two jobs at once do many, and see that each was done once."""
    taken: list[str] = []
    with queue.database.write() as session:
        for number in range(count):
            queue.submit(session, "play", f"job {number}", {"run": f"job {number}"})

    def handler(context: JobContext) -> Callable[[Session], None]:
        taken.append(context.lease.payload["run"])
        return nothing

    for _ in range(3):
        working(queue, handler, concurrency=2)

    def left() -> int:
        with queue.database.read() as session:
            return session.scalar(select(func.count()).select_from(Job).where(Job.state != "done")) or 0

    until(lambda: left() == 0, "all are done", patience=PATIENCE + count)
    assert Counter(taken) == Counter(f"job {number}" for number in range(count))


def test_several_workers_run_each_job_once(queue, working):
    all_taken_once(queue, working, 60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_several_workers_run_each_of_a_thousand_jobs_once(queue, working):
    all_taken_once(queue, working, 1000)


def test_a_worker_is_notified_of_new_jobs(queue, working, monkeypatch):
    monkeypatch.setattr(jobs.worker, "POLL_SECONDS", 3600)
    done = threading.Event()

    def handler(context: JobContext) -> Callable[[Session], None]:
        done.set()
        return nothing

    worker = working(queue, handler)
    for number in range(PATIENCE):  # the first ones may be submitted before it listens
        submit(queue, f"job {number}")
        worker.wake()
        if done.wait(1):
            return
    raise AssertionError("it never heard of one")


def test_a_worker_does_its_own_periodic_work_first(queue, working):
    done = threading.Event()

    def handler(context: JobContext) -> Callable[[Session], None]:
        done.set()
        return nothing

    working(queue, handler, look=lambda: submit(queue, "found") and None)
    assert done.wait(PATIENCE)
    with queue.database.read() as session:
        assert session.scalars(select(Job.key)).all() == ["found"]
