"""Work on jobs: one attempt with its heartbeat, and the worker that looks for the next job by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from sqlalchemy.exc import OperationalError

from wander_hub.jobs.port import (
    Handler,
    JobCancelled,
    JobContext,
    JobQueue,
    JobRefused,
    Lease,
    LeaseLost,
)

logger = logging.getLogger("wander_hub.jobs")

POLL_SECONDS = 2.0


class Attempts:
    """The attempts that a worker makes: each with a heartbeat beside it, all to be left off at its end."""

    def __init__(self, queue: JobQueue, handlers: Mapping[str, Handler]) -> None:
        self._queue = queue
        self._handlers = dict(handlers)
        self._lock = threading.Lock()
        self._contexts: list[JobContext] = []
        self.ending = threading.Event()
        self.made = 0
        """How many there were."""

    @property
    def kinds(self) -> list[str]:
        """What can be done here."""
        return list(self._handlers)

    def end(self) -> None:
        """Have all that run leave off soon, and those that begin."""
        self.ending.set()
        with self._lock:
            for context in self._contexts:
                context.stopping.set()

    def make(self, lease: Lease) -> None:
        """Do a job; what comes of it is in its row."""
        context = JobContext(lease)
        with self._lock:
            self.made += 1
            self._contexts.append(context)
            if self.ending.is_set():
                context.stopping.set()
        beating = threading.Thread(target=self._beat, args=(context,), name="lease", daemon=True)
        beating.start()
        try:
            self._do(context)
        finally:
            with self._lock:
                self._contexts.remove(context)
            context.stopping.set()
            beating.join()

    def _do(self, context: JobContext) -> None:
        lease = context.lease
        try:
            keep = self._handlers[lease.kind](context)
            context.check()
            self._queue.finish(lease, keep)
        except LeaseLost as error:
            logger.warning("%s", error)
        except JobRefused as error:
            self._record_failure(lease, str(error), retry=False)
        except JobCancelled:
            if context.called_off:
                self._record_failure(lease, "called off", retry=False)
            else:
                with suppress(LeaseLost):
                    self._queue.give_back(lease)
        except Exception as error:
            logger.exception("job %s (%s) failed", lease.job_id, lease.kind)
            self._record_failure(lease, f"{type(error).__name__}: {error}", retry=True)

    def _record_failure(self, lease: Lease, error: str, *, retry: bool) -> None:
        with suppress(LeaseLost):
            state = self._queue.fail(lease, error, retry=retry)
            logger.info("job %s (%s) is %s: %s", lease.job_id, lease.kind, state, error)

    def _beat(self, context: JobContext) -> None:
        """Renew the lease until the work has ended, from a thread of its own."""
        while not context.stopping.wait(self._queue.lease_seconds / 3):
            try:
                if self._queue.beat(context.lease, context.progress):
                    context.called_off = True
                    context.stopping.set()
            except LeaseLost:
                context.lost = True
                context.stopping.set()
            except OperationalError:
                # The database is away for a moment: two more beats fit into the lease.
                logger.warning("the lease of job %s could not be renewed", context.lease.job_id)


class JobWorker:
    """Threads that take jobs one after another; `look` is called before one does, and may submit some."""

    def __init__(
        self,
        queue: JobQueue,
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
        self._woken = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(number == 0,), name=f"jobs {name}", daemon=True)
            for number in range(concurrency)
        ]

    def start(self) -> None:
        """Begin to take jobs."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for a job now: one was just submitted."""
        self._woken.set()

    def stop(self, timeout: float = 20.0) -> None:
        """End: jobs that run are given back, for this worker's next start or another one."""
        self._attempts.end()
        self._woken.set()
        give_up = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, give_up - time.monotonic()))

    def run_one(self) -> bool:
        """Take and do one job; False when nothing waits."""
        lease = self._queue.claim(self.name, self._attempts.kinds)
        if lease is None:
            return False
        self._attempts.make(lease)
        return True

    def run_waiting(self) -> int:
        """Do what waits now, one after another; returns how many attempts that took."""
        before = self._attempts.made
        while not self._attempts.ending.is_set():
            if self._look is not None:
                self._look()
            if not self.run_one():
                break
        return self._attempts.made - before

    def _loop(self, looks: bool) -> None:
        while not self._attempts.ending.is_set():
            self._woken.clear()
            try:
                if looks and self._look is not None:
                    self._look()
                if self.run_one():
                    continue
            except OperationalError:
                logger.exception("no job could be taken")
            self._woken.wait(POLL_SECONDS)
