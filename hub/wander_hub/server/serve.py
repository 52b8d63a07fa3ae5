"""Run the hub under uvicorn: open the port, migrate the database, serve requests, and shut down
gracefully."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from wander.system.descriptors import raise_file_limit
from wander.types import start_lower

from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.http.problems import log_failure
from wander_hub.jobs import JobWorker, TableQueue
from wander_hub.operation.metrics import FOLDER_VARIABLE
from wander_hub.sealed import worker as sealed
from wander_hub.sealed.memory import forbid_core_dumps
from wander_hub.server import data_folder, first_token
from wander_hub.server.connections import HubProtocol
from wander_hub.server.log import log_to_stderr
from wander_hub.server.processes import Processes
from wander_hub.settings import Settings
from wander_hub.storage import Storage, make_data_folder
from wander_hub.verification.worker import confine, job_worker
from wander_hub.webhooks import delivery

logger = logging.getLogger("wander_hub")

_GRACE_SECONDS = 10
_END_SECONDS = 20
"""Seconds that each of several processes has for its shutdown, in addition to `drain_seconds`."""
_BACKLOG = 2048
_KEPT_OPEN_SECONDS = 75
"""Seconds that a connection may be idle. This is longer than the 60 s of common proxies, which could
otherwise send a request just as the hub closes the connection."""
INTERRUPTED = 130
"""Exit status after Ctrl-C; SIGTERM exits with 0."""


def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    token_file: Path | None = None,
    new_token: bool = False,
    exit_with_parent: bool = False,
    access_log: bool = True,
    workers: int = 1,
) -> None:
    """Serve with `workers` processes until interrupted. Exits with status 2 if the port cannot be used.

    Raises `DataFolderInUse` if another hub uses the data folder.
    """
    parent = os.getppid()
    raise_file_limit()
    listener = open_socket(host, port)
    address = address_of(host, listener.getsockname()[1])
    make_data_folder(settings)
    data_folder.hold_data_folder(settings, address)
    database = Database(settings.resolved_database_url, settings.database_connections)
    database.migrate()
    data_folder.warn_if_open(settings)
    first_token.hand_out_token(database, token_file, new=new_token, data=settings.data)
    log_to_stderr(settings.log_format)
    forbid_core_dumps(settings)
    if settings.serve_jobs:  # otherwise another process decides what it can replay
        settings = confine(settings)
    if workers == 1:
        followed = parent if exit_with_parent else None
        _run(settings, database, listener, address, access_log=access_log, followed=followed)
        return
    database.close()  # a connection must not be shared between processes
    os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="wander-hub-metrics-")
    supervisor = os.getpid()

    def work(number: int) -> None:
        own = Database(settings.resolved_database_url, settings.database_connections)
        first = number == 0
        mine = settings if first else settings.model_copy(update={"bundled_packages": False})
        _run(mine, own, listener, address, access_log=access_log, followed=supervisor, first=first)

    processes = Processes(workers, work, seconds_to_end=_END_SECONDS + settings.drain_seconds)
    try:
        asked = processes.run(exit_with_parent=exit_with_parent)
    finally:
        shutil.rmtree(os.environ.pop(FOLDER_VARIABLE), ignore_errors=True)
    if asked == signal.SIGINT:
        raise SystemExit(INTERRUPTED)


def workers_of(
    settings: Settings, database: Database, storage: Storage, queue: TableQueue, address: str
) -> list[JobWorker]:
    """Return the workers for a hub's jobs, not started; the first one verifies runs and checks versions."""
    workers = [
        job_worker(settings, database, storage, queue, address),
        delivery.worker(settings, database, queue),
        sealed.worker(settings, database, storage, queue, address),
    ]
    return [worker for worker in workers if worker is not None]


def _run(
    settings: Settings,
    database: Database,
    listener: socket.socket,
    address: str,
    *,
    access_log: bool,
    followed: int | None,
    first: bool = True,
) -> None:
    """Serve requests until a signal or until the process `followed` exits; the `first` process also runs the
    jobs."""
    app = create_app(settings, database=database, address=address)
    workers: list[JobWorker] = []
    if first and settings.serve_jobs:
        workers = workers_of(settings, database, app.state.storage, app.state.jobs, address)
        app.state.job_worker = workers[0]
    config = uvicorn.Config(
        app,
        http=HubProtocol,
        log_level="info" if access_log else "warning",
        access_log=access_log,
        log_config=None,  # uvicorn logs through the hub's own handler
        proxy_headers=True,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=_KEPT_OPEN_SECONDS,
    )
    server = _Server(config, app, address if first else None, workers)
    if followed is not None:

        def follow() -> None:
            while os.getppid() == followed:
                time.sleep(0.5)
            server.should_exit = True

        threading.Thread(target=follow, daemon=True).start()
    # After its graceful shutdown, uvicorn raises the signal again for the previous handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


class _Server(uvicorn.Server):
    """A server that reports its address once it accepts requests, and shuts down without losing any."""

    def __init__(
        self, config: uvicorn.Config, app: FastAPI, address: str | None, workers: Sequence[JobWorker]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._address = address
        self._workers = workers
        self._ending = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, report its address and start the workers."""
        await super().startup(sockets)
        if self.started and self._address is not None:
            sys.stderr.write(f"the hub listens on {self._address}\n")
            sys.stderr.flush()
            for worker in self._workers:
                worker.start()
            # After the start, because reading the rollouts of all runs may take hours.
            threading.Thread(target=self._recompute, daemon=True).start()

    def _recompute(self) -> None:
        from wander_hub.fsck.derivation import recompute_stale_runs  # the start does not wait for the import

        database, storage = self._app.state.database, self._app.state.storage
        try:
            for done, total in recompute_stale_runs(database, storage):
                if done == total:
                    logger.info("recomputed the numbers of %d runs, which an older release computed", total)
                if self._ending.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - the error is logged, and the next start tries again
            log_failure("cannot recompute the numbers of all runs; the next start tries again", error)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Return running jobs to the queue, let clients reconnect elsewhere while this server still serves
        requests, and shut down."""
        settings: Settings = self._app.state.settings
        self._app.state.draining = True
        self._ending.set()
        asked_by = self._captured_signals[-1] if self._captured_signals else None
        waits = [asyncio.sleep(settings.drain_seconds if asked_by == signal.SIGTERM else 0)]
        waits += [asyncio.to_thread(worker.stop) for worker in self._workers]
        await asyncio.gather(*waits)
        await super().shutdown(sockets)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Exits with status 2 if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "choose another address with `--host`, or another port with `--port`"
        if error.errno == errno.EADDRINUSE:
            hint = "stop the program that listens there, or choose another port with `--port`"
        reason = "in use" if error.errno == errno.EADDRINUSE else start_lower(error.strerror or str(error))
        sys.stderr.write(f"error: cannot listen on port {port} of `{host}`: {reason}\n\nhint: {hint}\n")
        raise SystemExit(2) from error
    return listener


def address_of(host: str, port: int) -> str:
    """Return the URL of a host and a port."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
