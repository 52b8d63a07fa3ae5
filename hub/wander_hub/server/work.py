"""Run a worker in its own process: wait for the database, run jobs, and shut down gracefully."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from wander.system.descriptors import wait_readable

from wander_hub import __version__
from wander_hub.database import Database
from wander_hub.http import health
from wander_hub.http.problems import HubProblem
from wander_hub.jobs import TableQueue
from wander_hub.operation.job_queue import settle_failures
from wander_hub.sealed.memory import forbid_core_dumps
from wander_hub.server.log import log_to_stderr
from wander_hub.server.serve import INTERRUPTED, address_of, open_socket, workers_of
from wander_hub.settings import NoHub, Settings
from wander_hub.storage import Storage, make_data_folder
from wander_hub.verification.worker import confine

_LOOK_SECONDS = 1.0


def work(settings: Settings, *, hub_url: str | None, listen: str | None, once: bool = False) -> None:
    """Run jobs until interrupted, or with `once` until the queue is empty.

    Raises `HubProblem` if jobs need the hub's address and it is unknown.
    """
    log_to_stderr(settings.log_format)
    if settings.database_url is None and not settings.data.is_dir():
        raise NoHub(settings)
    make_data_folder(settings)
    settings = confine(settings)
    forbid_core_dumps(settings)
    if hub_url is None and settings.verification != "off":
        raise HubProblem(
            422,
            "no_hub_address",
            "jobs need the address of the hub, from which they download runs and packages",
            hint="run `wander-hub work --hub http://HOST:8600`",
        )
    if hub_url is not None and urlsplit(hub_url).scheme not in ("http", "https"):
        raise HubProblem(
            422,
            "no_hub_address",
            f"`{hub_url}` is not the URL of a hub",
            hint="write it with its scheme, as in `http://HOST:8600`",
        )
    end = _End()
    database = Database(settings.resolved_database_url, settings.database_connections)
    try:
        with _answer_health(listen, settings, database) as storage:
            ready = database.is_current()
            if not ready:
                hint = "start this release of the hub, or run `wander-hub migrate`"
                _say(f"waiting for the newest database schema: {hint}")
            while not ready and not end.wait(_LOOK_SECONDS):
                ready = database.is_current()
            if ready:
                queue = settle_failures(TableQueue.of(settings, database))
                workers = workers_of(settings, database, storage, queue, hub_url or "")

                def stop() -> None:
                    end.wait()
                    for worker in workers:
                        worker.stop()

                if once:
                    threading.Thread(target=stop, daemon=True).start()
                    attempts = sum(worker.run_waiting() for worker in workers)
                    _say(f"ran {attempts} {'job' if attempts == 1 else 'jobs'}")
                else:
                    for worker in workers:
                        worker.start()
                    _say("waiting for jobs")
                    stop()
    finally:
        database.close()
    if end.signal == signal.SIGINT:
        raise SystemExit(INTERRUPTED)


class _End:
    """The signal that asks the process to stop.

    The wait uses a pipe to which every signal writes. Python's own wait only ends for a signal that the main
    thread receives during the wait, so an earlier signal, or one in another thread, would be missed.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._asked, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, self._ask)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` for a signal; return whether one arrived."""
        return wait_readable(self._asked, seconds)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number


@contextmanager
def _answer_health(listen: str | None, settings: Settings, database: Database) -> Iterator[Storage]:
    """Yield the storage, and meanwhile serve `GET /health` as the hub does."""
    storage = Storage.of(settings)
    if listen is None:
        yield storage
        return
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise HubProblem(
            422, "bad_address", f"`{listen}` is not HOST:PORT", hint="try `--listen 127.0.0.1:8601`"
        )
    host = host.strip("[]") or "127.0.0.1"
    listener = open_socket(host, int(port))
    app = FastAPI(title="Wander hub worker", version=__version__, docs_url=None, redoc_url=None)
    app.state.settings, app.state.database, app.state.storage = settings, database, storage
    app.include_router(health.router)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="health", daemon=True)
    thread.start()
    _say(f"health: {address_of(host, listener.getsockname()[1])}/health")
    try:
        yield storage
    finally:
        server.should_exit = True
        thread.join()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
