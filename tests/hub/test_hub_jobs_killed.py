"""Workers that are killed with -9 or stopped past their lease: every job is done, its result kept once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from job_workers import KIND, start_worker
from sqlalchemy import func, select, text, update
from wander_hub.database import Database, now
from wander_hub.jobs import Job, TableQueue

pytestmark = [
    pytest.mark.full,
    pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True),
]

LEASE_SECONDS = 2.0
PATIENCE = 240


class Site:
    """A database with jobs, and processes that work on them."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.queue = TableQueue(database, lease_seconds=LEASE_SECONDS, retry_seconds=0)
        self.workers: list[BaseProcess] = []
        with database.write() as session:
            session.execute(text("CREATE TABLE results (job integer, process integer)"))

    def submit(self, count: int, **payload: float) -> list[int]:
        with self.database.write() as session:
            known = session.scalar(select(func.count()).select_from(Job)) or 0
            return [self.queue.submit(session, KIND, f"job {known + n}", payload) for n in range(count)]

    def start(self, lease_seconds: float = LEASE_SECONDS) -> int:
        self.workers.append(start_worker(self.database.url, lease_seconds, self.folder))
        return self.workers[-1].pid or 0

    def kill(self, worker: BaseProcess) -> None:
        worker.kill()
        worker.join()
        self.workers.remove(worker)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def begun(self, job: int) -> set[int]:
        """Return the processes that began a job."""
        return {int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"begun-{job}-*")}

    def states(self) -> Counter[str]:
        with self.database.read() as session:
            return Counter(session.scalars(select(Job.state)))

    def results(self) -> list[tuple[int, int]]:
        with self.database.read() as session:
            return [(job, process) for job, process in session.execute(text("SELECT * FROM results"))]


def until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up, f"never: {what}"
        time.sleep(0.05)


def stop_until(process: int, holds: Callable[[], bool]) -> None:
    """Stop a process until that holds; now and then it goes on, lest it has locked the database."""
    give_up = time.monotonic() + PATIENCE
    while True:
        os.kill(process, signal.SIGSTOP)
        again = time.monotonic() + 10 * LEASE_SECONDS
        while time.monotonic() < again:
            if holds():
                return
            time.sleep(0.05)
        os.kill(process, signal.SIGCONT)
        assert time.monotonic() < give_up, "nobody takes its job"
        time.sleep(LEASE_SECONDS / 20)


@pytest.fixture
def site(database, tmp_path) -> Iterator[Site]:
    one = Site(database, tmp_path)
    try:
        yield one
    finally:
        for worker in list(one.workers):
            one.kill(worker)


def test_a_worker_paused_past_its_lease_stores_nothing(site):
    (number,) = site.submit(1)
    first = site.start()
    until(lambda: site.begun(number) == {first}, "the first one works")
    second = site.start()
    stop_until(first, lambda: site.begun(number) == {first, second})
    site.open_gate()
    until(lambda: site.results() == [(number, second)], "the second one ends it")
    site.kill(site.workers[1])
    os.kill(first, signal.SIGCONT)
    (another,) = site.submit(1)
    until(lambda: (another, first) in site.results(), "the first one goes on with another")
    assert sorted(site.results()) == [(number, second), (another, first)]
    assert site.states() == {"done": 2}


def test_jobs_of_killed_workers_finish_once_elsewhere(site):
    chance = random.Random(20)
    numbers: list[int] = []
    site.open_gate()
    for _ in range(3):
        site.start()
    for kills in range(1, 6):
        enough = site.states()["done"] + 2
        numbers += site.submit(6, seconds=0.15)
        with site.database.write() as session:
            session.execute(update(Job).values(max_attempts=100))  # however unlucky one is
        until(lambda enough=enough: site.states()["done"] >= enough, f"two more are done before kill {kills}")
        time.sleep(chance.uniform(0, 0.3))
        site.kill(chance.choice(site.workers))
        site.start()
    until(lambda: site.states() == {"done": len(numbers)}, "all are done")
    assert sorted(job for job, _ in site.results()) == sorted(numbers)


def test_a_job_that_kills_every_worker_process_fails(site):
    (number,) = site.submit(1)
    with site.database.write() as session:
        session.execute(update(Job).values(max_attempts=2))
    killed: set[int] = set()
    for _ in range(2):
        process = site.start(lease_seconds=600)  # so that only death can end one
        until(lambda before=killed | {process}: site.begun(number) == before, "it works on the job")
        killed.add(process)
        site.kill(site.workers[0])
        with site.database.write() as session:
            session.execute(update(Job).values(lease_until=now()))
    site.start()
    until(lambda: site.states() == {"failed": 1}, "it is given up")
    with site.database.read() as session:
        assert session.get_one(Job, number).error == "the worker crashed on every attempt"
    assert site.begun(number) == killed
    assert site.results() == []
