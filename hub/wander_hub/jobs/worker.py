"""Work on jobs: one attempt with its heartbeat, and the worker that looks for the next job by itself."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from wander_hub.http.problems import log_failure, problem_of
from wander_hub.jobs.table import Lease, LeaseLost, TableQueue

logger = logging.getLogger("wander_hub.jobs")

POLL_SECONDS = 2.0
PROGRESS_SECONDS = 1.0
"""How often at most a job's row is told how far the work is: somebody may be looking."""


class JobCancelled(Exception):
    """A user called the job off."""


class JobRefused(Exception):
    """The job cannot succeed, however often it is tried."""


class JobUnfinished(Exception):
    """The attempt did not get to its end, for a reason that may not hold the next time."""


class JobPostponed(Exception):
    """A fault of the hub is in the way: the job waits until the hub can do it."""


@dataclass
class JobContext:
    """What a handler gets: the job, and how to tell and hear of it while it works."""

    lease: Lease
    progress: dict[str, Any] = field(default_factory=dict)
    """Put here how far the work is; a heartbeat within about a second stores it."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the job was called off, its lease lost or the hub is ending: leave off soon."""
    called_off: bool = False
    lost: bool = False

    def check(self) -> None:
        """Raise `JobCancelled` or `LeaseLost` when there is no use in going on."""
        if self.lost:
            raise LeaseLost(f"job {self.lease.job_id} was given to another worker")
        if self.stopping.is_set():
            raise JobCancelled(f"job {self.lease.job_id} was called off")


Handler = Callable[[JobContext], Callable[[Session], None]]
"""Does the work and returns what keeps its result, which runs in the transaction that ends the job.

Raises `JobRefused` for what no repetition helps; anything else is tried again.
"""


class Attempts:
    """The attempts that a worker makes: each with a heartbeat beside it, all to be left off at its end."""

    def __init__(self, queue: TableQueue, handlers: Mapping[str, Handler]) -> None:
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
        except JobUnfinished as error:
            self._record_failure(lease, str(error), retry=True)
        except JobPostponed as error:
            self._record_failure(lease, str(error), retry=True, postponed=True)
        except JobCancelled:
            if context.called_off:
                self._record_failure(lease, "called off", retry=False)
            else:
                with suppress(LeaseLost):  # then another worker has it already
                    self._queue.give_back(lease)
        except Exception as error:  # noqa: BLE001 - `problem_of` logs it
            problem = problem_of(error)
            if problem.status in (503, 507):
                self._record_failure(lease, problem.detail, retry=True, postponed=True)
            else:
                self._record_failure(lease, f"{type(error).__name__}: {error}", retry=True)

    def _record_failure(self, lease: Lease, error: str, *, retry: bool, postponed: bool = False) -> None:
        with suppress(LeaseLost):  # whoever has it now tells how it ends
            state = self._queue.fail(lease, error, retry=retry, postponed=postponed)
            logger.info("job %s (%s) is %s: %s", lease.job_id, lease.kind, state, error)

    def _beat(self, context: JobContext) -> None:
        """Renew the lease until the work has ended, and tell how far it is, from a thread of its own."""
        rest = self._queue.lease_seconds / 3
        told, due = dict(context.progress), time.monotonic() + rest
        while not context.stopping.wait(min(rest, PROGRESS_SECONDS)):
            progress = dict(context.progress)
            if progress == told and time.monotonic() < due:
                continue
            told, due = progress, time.monotonic() + rest
            try:
                if self._queue.beat(context.lease, progress):
                    context.called_off = True
                    context.stopping.set()
            except LeaseLost:
                context.lost = True
                context.stopping.set()
            except SQLAlchemyError:
                # The database is away for a moment: two more beats fit into the lease.
                logger.warning("the lease of job %s could not be renewed", context.lease.job_id)


def worker_name(purpose: str = "") -> str:
    """Return a name for a worker of this process, which says its machine."""
    return f"{socket.gethostname()} {os.getpid()} {purpose}".rstrip()


class JobWorker:
    """Threads that take jobs one after another, next to whatever else their process does."""

    def __init__(
        self,
        queue: TableQueue,
        handlers: Mapping[str, Handler],
        name: str,
        *,
        look: Callable[[], None] | None = None,
        concurrency: int = 1,
    ) -> None:
        """Prepare a worker; `look` is called before a job is taken, and may submit some."""
        self._queue = queue
        self._attempts = Attempts(queue, handlers)
        self.name = name
        self._look = look or (lambda: None)
        self._woken = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(number == 0,), name=f"jobs {self.name}", daemon=True)
            for number in range(concurrency)
        ]

    def start(self) -> None:
        """Start taking jobs."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for a job now: one was just submitted."""
        self._woken.set()

    def stop(self, timeout: float = 20.0) -> None:
        """Stop; running jobs are given back for this worker's next start, or for another worker."""
        self._attempts.end()
        self._woken.set()
        give_up = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, give_up - time.monotonic()))

    def run_waiting(self) -> int:
        """Do all jobs that are due, in the calling thread; return the number of attempts."""
        begun = self._attempts.made
        while not self._attempts.ending.is_set():
            self._look()
            if not self.run_one():
                break
        return self._attempts.made - begun

    def run_one(self) -> bool:
        """Take and do one job; False when nothing waits."""
        lease = self._queue.claim(self.name, self._attempts.kinds)
        if lease is None:
            return False
        self._attempts.make(lease)
        return True

    def _loop(self, looks: bool) -> None:
        while not self._attempts.ending.is_set():
            self._woken.clear()
            try:
                if looks:
                    self._look()
                if self.run_one():
                    continue
            except Exception as error:  # noqa: BLE001 - it is logged
                # Nobody else would notice that this thread ended, and nothing was verified any more.
                log_failure("no job could be taken", error)
            self._woken.wait(POLL_SECONDS)
