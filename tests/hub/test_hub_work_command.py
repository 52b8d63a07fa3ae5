"""`wander-hub work`: what it refuses, what it waits for, what it does, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live_hub import BIN, clean_environment, run_program
from wander_hub.database import Database
from wander_hub.jobs import Job, TableQueue
from wander_hub.server.work import _End
from wander_hub.settings import Settings
from wander_hub.verification import evidence

COMMAND = [sys.executable, "-m", "wander_hub.cli.main", "work"]
SECONDS = 240
"""A busy machine takes its time."""


def variables(**settings: str) -> dict[str, str]:
    return clean_environment() | {"WANDER_HUB_VERIFICATION": "off", **settings}


def run(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run_program([str(BIN / "wander-hub"), "work", *words], variables(**settings), timeout=SECONDS)


class Worker:
    """A process that works, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def says(self, words: str) -> str:
        """Return the next line that has these words."""
        assert self.process.stderr
        for line in self.process.stderr:
            if words in line:
                return line
        raise AssertionError(f"it ended and never said: {words}")

    def ended(self, number: int) -> int:
        """Send a signal; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextmanager
def working(*words: str, **settings: str) -> Iterator[Worker]:
    process = subprocess.Popen(
        [*COMMAND, *words], env=variables(**settings), stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        yield Worker(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def submitted(database: Database, key: str) -> int:
    """Have a run examined that is not there: a job that ends at once, refused."""
    with database.write() as session:
        return TableQueue(database).submit(session, evidence.KIND, key, {"run_id": "gone"})


def ending_of(database: Database, job_id: int) -> tuple[str, int]:
    with database.read() as session:
        job = session.get_one(Job, job_id)
        return job.state, job.attempt


def test_unusable_worker_settings_are_rejected_with_a_hint(tmp_path, monkeypatch, typed):
    monkeypatch.setenv("WANDER_HUB_VERIFICATION", "unconfined")
    monkeypatch.setenv("WANDER_HUB", "http://another-hub-that-somebody-logged-in-to")
    for folder, words in (
        (tmp_path / "nowhere", "there is no hub"),
        (tmp_path, "wander-hub work --hub http://HOST:8600"),
    ):
        status, _, err = typed("work", "--data", str(folder))
        assert words in err
        assert err.count("error: ") == 1, err
        assert status in (1, 2)


@pytest.mark.full
def test_an_address_for_its_health_that_is_none_is_refused(tmp_path):
    done = run("--data", str(tmp_path), "--listen", "nowhere")
    assert "`--listen 127.0.0.1:8601`" in done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_a_worker_waits_for_the_schema_and_reports_its_health(postgres, tmp_path):
    with postgres.database(migrated=False) as url:
        given = {"WANDER_HUB_DATABASE_URL": url}
        settings = Settings(data=tmp_path, database_url=url)
        with working("--listen", "127.0.0.1:0", "--data", str(tmp_path), **given) as worker:
            health = worker.says("health: ").split()[-1]
            worker.says("waiting for the newest database schema")
            database = Database(url)
            database.migrate()
            worker.says("waiting for jobs")
            answer = httpx.get(health, timeout=SECONDS)
            assert (answer.status_code, answer.json()["database"]) == (200, True)
            with database.write() as session:
                queue = TableQueue.of(settings, database)
                number = queue.submit(session, evidence.KIND, "one", {"run_id": "gone"})
            worker.says(f"job {number} ({evidence.KIND}) is failed")
            assert worker.ended(signal.SIGTERM) == 0
        assert ending_of(database, number) == ("failed", 1)
        database.close()


@pytest.mark.full
def test_a_waiting_worker_stops_and_ctrl_c_has_its_own_status(postgres, tmp_path):
    with (
        postgres.database(migrated=False) as url,
        working("--data", str(tmp_path), WANDER_HUB_DATABASE_URL=url) as worker,
    ):
        worker.says("waiting for the newest database schema")
        assert worker.ended(signal.SIGINT) == 130


@contextmanager
def serving(data: Path, *words: str, **settings: str) -> Iterator[Worker]:
    process = subprocess.Popen(
        [*COMMAND[:-1], "serve", "--port", "0", *words],
        env=variables(WANDER_HUB_BUNDLED_PACKAGES="false", WANDER_HUB_DATA=str(data), **settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    hub = Worker(process)
    try:
        hub.says("the hub listens on")
        yield hub
        status = hub.ended(signal.SIGTERM)
        assert process.stderr
        assert status == 0, process.stderr.read()
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.mark.full
def test_a_signal_that_another_thread_gets_ends_it_too():
    before = [(one, signal.getsignal(one)) for one in (signal.SIGTERM, signal.SIGINT)]
    main = threading.get_ident()

    def tell() -> None:
        while sys._current_frames()[main].f_code.co_name != "wait":
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    end = _End()
    try:
        assert not end.wait(0)
        teller = threading.Thread(target=tell)
        teller.start()
        assert end.wait(SECONDS)
        assert (end.wait(), end.signal) == (True, signal.SIGTERM)
        teller.join()
    finally:
        signal.set_wakeup_fd(-1)
        for one, handler in before:
            signal.signal(one, handler)


def test_a_hub_leaves_jobs_to_others_and_once_does_what_waits(database, settings):
    numbers = [submitted(database, f"job {number}") for number in range(3)]
    with serving(settings.data, "--no-jobs"):
        done = run("--once", "--data", str(settings.data))
        assert done.returncode == 0, done.stderr
        assert "ran 3 jobs" in done.stderr
    assert [ending_of(database, number) for number in numbers] == [("failed", 1)] * 3
    assert "ran 0 jobs" in run("--once", "--data", str(settings.data)).stderr


@pytest.mark.full
def test_a_hub_on_postgresql_works_on_jobs_next_to_the_requests(postgres, tmp_path):
    with postgres.database() as url:
        given = {"WANDER_HUB_DATABASE_URL": url}
        settings = Settings(data=tmp_path, database_url=url)
        database = Database(url)
        before = submitted(database, "before it was chosen")
        with serving(tmp_path, **given) as hub:
            hub.says(f"job {before} ({evidence.KIND}) is failed")
            with database.write() as session:
                queue = TableQueue.of(settings, database)
                number = queue.submit(session, evidence.KIND, "one", {"run_id": "gone"})
            hub.says(f"job {number} ({evidence.KIND}) is failed")
        assert ending_of(database, number) == ("failed", 1)
        database.close()
