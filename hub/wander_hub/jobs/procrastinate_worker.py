"""A worker that procrastinate tells which jobs to take."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
from procrastinate import App, RetryStrategy
from procrastinate.exceptions import ConnectorException
from sqlalchemy.exc import OperationalError

from wander_hub.jobs.port import Handler
from wander_hub.jobs.procrastinate_queue import TASK, ProcrastinateQueue
from wander_hub.jobs.worker import POLL_SECONDS, Attempts

logger = logging.getLogger("wander_hub.jobs")

_BESIDE_JOBS = 3
"""Connections, and threads, for what is not a job: listening, heartbeats, recovery."""


class ProcrastinateWorker:
    """Runs procrastinate's worker in a thread, with `concurrency` jobs at once in threads of their own.

    `look` is called every few seconds, and may submit jobs.
    """

    def __init__(
        self,
        queue: ProcrastinateQueue,
        handlers: Mapping[str, Handler],
        name: str,
        *,
        look: Callable[[], None] | None = None,
        concurrency: int = 1,
    ) -> None:
        self._queue = queue
        self._attempts = Attempts(queue, handlers)
        self.name = name
        self._look = look
        self._concurrency = concurrency
        self._thread = threading.Thread(target=self._loop, name=f"jobs {name}", daemon=True)
        self._lock = threading.Lock()
        self._halt: Callable[[], object] | None = None

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Do nothing: the database notifies every worker."""

    def stop(self, timeout: float = 20.0) -> None:
        """End: jobs that run are given back, for this worker's next start or another one."""
        self._attempts.end()
        with self._lock:
            if self._halt is not None:
                self._halt()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def run_waiting(self) -> int:
        """Do what waits now; returns how many attempts that took."""
        begun = self._attempts.made
        while not self._attempts.ending.is_set():
            before = self._attempts.made
            if self._look is not None:
                self._look()
            asyncio.run(self._work(wait=False))
            if self._attempts.made == before:
                break
        return self._attempts.made - begun

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
            with suppress(asyncio.CancelledError):
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
            if self._look is not None:
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
