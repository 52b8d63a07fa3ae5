"""Jobs that procrastinate hands out: PostgreSQL tells workers, wherever they are, the moment one waits.

The row of a job stays what it is in `TableQueue`: state, lease, progress and result, under the same fence. In
the transaction that makes a job wait, a message with its number is deferred; procrastinate gives it to one
worker, by priority and not before its time, and that worker claims the row. A message may come twice or too
late: then the row is not to be had, and nothing happens. One that was lost is sent again by `recover`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector, RetryStrategy, SyncPsycopgConnector
from procrastinate.exceptions import ConnectorException
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from wander_hub.database import SOON_GIVEN_UP, now
from wander_hub.identity import HUB
from wander_hub.jobs.models import Job
from wander_hub.jobs.table import TableQueue
from wander_hub.jobs.worker import POLL_SECONDS, Worker

logger = logging.getLogger("wander_hub.jobs")

TASK = "wander_hub.job"
"""The name of every message; its one argument is `job`, the number."""
_UNTOLD = text(
    "SELECT id FROM jobs WHERE state = 'queued' AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs AS message"
    " WHERE message.task_name = :task AND message.status IN ('todo', 'doing')"
    " AND message.args ->> 'job' = jobs.id::text)"
)
_BESIDE_JOBS = 3
"""Connections, and threads, for what is not a job: listening, heartbeats, recovery."""


class ProcrastinateQueue(TableQueue):
    """Jobs in the hub's PostgreSQL, handed out by procrastinate, whose tables must be there already."""

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        # Never opened: messages go through the connection of the transaction that they belong to.
        self._sender = App(connector=SyncPsycopgConnector())

    def connector(self, connections: int) -> PsycopgConnector:
        """Return a pool of connections to the same database, not yet open."""
        url = make_url(self.database.url).set(drivername="postgresql")
        address = url.render_as_string(hide_password=False)
        conninfo = make_conninfo(address, client_encoding="utf8", **SOON_GIVEN_UP)  # as the hub's own
        return PsycopgConnector(conninfo=conninfo, min_size=1, max_size=connections)

    def recover(self) -> None:
        """Requeue the jobs of workers that died, and send a message for each that waits without one.

        Those are jobs of before procrastinate was chosen, and of messages that were lost.
        """
        with self.database.write(HUB) as session:
            self._requeue_dead(session)
            for job_id in session.scalars(_UNTOLD, {"task": TASK}).all():
                self._announce(session, job_id)

    def _announce(self, session: Session, job_id: int) -> None:
        job = session.get_one(Job, job_id, populate_existing=True)
        later = job.run_after if job.run_after > now() else None
        message = self._sender.configure_task(
            TASK,
            queue=job.kind,
            priority=job.priority,
            schedule_at=later,
            connection=session.connection().connection.driver_connection,
        )
        message.defer(job=job_id)


class ProcrastinateWorker(Worker):
    """Runs procrastinate's worker in a thread, with `concurrency` jobs at once in threads of their own.

    `look` is called every few seconds.
    """

    _queue: ProcrastinateQueue

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        self._thread = threading.Thread(target=self._loop, name=f"jobs {self.name}", daemon=True)
        self._lock = threading.Lock()
        self._halt: Callable[[], object] | None = None

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Do nothing: the database notifies every worker."""

    def stop(self, timeout: float = 20.0) -> None:
        """End; jobs that run are given back."""
        self._attempts.end()
        with self._lock:
            if self._halt is not None:
                self._halt()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _do_waiting(self) -> None:
        asyncio.run(self._work(wait=False))

    def _loop(self) -> None:
        while not self._attempts.ending.is_set():
            try:
                asyncio.run(self._work(wait=True))
            except* (ConnectorException, OperationalError, psycopg.Error):
                logger.exception("no job could be taken")
            self._attempts.ending.wait(POLL_SECONDS)  # it ends unasked when the database went away

    async def _work(self, *, wait: bool) -> None:
        """Take and do jobs until the end, or until none waits."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self._concurrency + _BESIDE_JOBS))
        app = App(connector=self._queue.connector(self._concurrency + _BESIDE_JOBS))
        # Only a database that is away can make taking a job fail; the message is kept until it is back.
        app.task(name=TASK, retry=RetryStrategy(wait=int(POLL_SECONDS)))(self._take)
        async with app.open_async(), asyncio.TaskGroup() as group:
            await self._recover(app)
            working = group.create_task(
                app.run_worker_async(
                    queues=self._attempts.kinds,
                    name=self.name,
                    wait=wait,
                    concurrency=self._concurrency,
                    fetch_job_polling_interval=POLL_SECONDS,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    update_heartbeat_interval=self._queue.lease_seconds / 3,
                    stalled_worker_timeout=self._queue.lease_seconds,
                )
            )
            tending = group.create_task(self._tend(app))
            working.add_done_callback(lambda _: tending.cancel())
            with self._lock:
                self._halt = lambda: loop.call_soon_threadsafe(working.cancel)
            if self._attempts.ending.is_set():
                working.cancel()
            with suppress(asyncio.CancelledError):  # by `stop`
                await working
            with self._lock:
                self._halt = None

    def _take(self, job: int) -> None:
        """Do a job, unless somebody else has it or has done it."""
        lease = self._queue.claim(self.name, self._attempts.kinds, job)
        if lease is not None:
            self._attempts.make(lease)

    async def _tend(self, app: App) -> None:
        """Look for work, and recover what others left, again and again."""
        loop = asyncio.get_running_loop()
        recover_at = loop.time() + self._queue.lease_seconds / 3
        while True:
            await asyncio.to_thread(self._look)
            if loop.time() >= recover_at:
                await self._recover(app)
                recover_at = loop.time() + self._queue.lease_seconds / 3
            await asyncio.sleep(min(POLL_SECONDS, self._queue.lease_seconds / 3))

    async def _recover(self, app: App) -> None:
        """Have others take what workers that died were given."""
        await asyncio.to_thread(self._queue.recover)
        stalled = await app.job_manager.get_stalled_jobs(
            task_name=TASK, seconds_since_heartbeat=self._queue.lease_seconds
        )
        for message in stalled:
            with suppress(ConnectorException):  # another worker was quicker
                await app.job_manager.retry_job(message)
