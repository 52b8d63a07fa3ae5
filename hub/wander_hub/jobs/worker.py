"""Running jobs: attempts with a heartbeat, and the worker that polls for jobs."""

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
"""Minimum seconds between two updates of a job's stored progress."""


class JobCanceled(Exception):
    """A user canceled the job."""


class JobRefused(Exception):
    """The job cannot succeed, no matter how often it is tried."""


class JobUnfinished(Exception):
    """The attempt did not finish, for a reason that may not occur again."""


class JobPostponed(Exception):
    """A fault of the hub prevents the job, which waits until the hub works again."""


@dataclass
class JobContext:
    """The interface of a handler to its job."""

    lease: Lease
    progress: dict[str, Any] = field(default_factory=dict)
    """Progress of the work, which a heartbeat stores within about a second."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the job was canceled, its lease was lost, or the hub shuts down. The handler must then stop
    soon."""
    cancel_requested: bool = False
    lost: bool = False

    def check(self) -> None:
        """Raise `JobCanceled` or `LeaseLost` if the handler should stop."""
        if self.lost:
            raise LeaseLost(f"another worker took job {self.lease.job_id}")
        if self.stopping.is_set():
            raise JobCanceled(f"job {self.lease.job_id} was canceled")


Handler = Callable[[JobContext], Callable[[Session], None]]
"""Function that does the work and returns a function that stores its result in the transaction that ends the
job.

Raises `JobRefused` if trying again would not help. The job is tried again after any other exception.
"""


class JobAttempts:
    """The attempts of a worker, each with a heartbeat thread. All stop when the worker stops."""

    def __init__(self, queue: TableQueue, handlers: Mapping[str, Handler]) -> None:
        self._queue = queue
        self._handlers = dict(handlers)
        self._lock = threading.Lock()
        self._contexts: list[JobContext] = []
        self.ending = threading.Event()
        self.made = 0
        """Number of attempts so far."""

    @property
    def kinds(self) -> list[str]:
        """Kinds of jobs that this worker can run."""
        return list(self._handlers)

    def end(self) -> None:
        """Ask all running and future attempts to stop soon."""
        self.ending.set()
        with self._lock:
            for context in self._contexts:
                context.stopping.set()

    def make(self, lease: Lease) -> None:
        """Attempt a job; the outcome is stored in its row."""
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
        except JobCanceled:
            if context.cancel_requested:
                self._record_failure(lease, "canceled", retry=False)
            else:
                with suppress(LeaseLost):  # another worker already has it
                    self._queue.give_back(lease)
        except Exception as error:  # noqa: BLE001 - `problem_of` logs it
            problem = problem_of(error)
            if problem.status in (503, 507):
                self._record_failure(lease, problem.detail, retry=True, postponed=True)
            else:
                self._record_failure(lease, f"{type(error).__name__}: {error}", retry=True)

    def _record_failure(self, lease: Lease, error: str, *, retry: bool, postponed: bool = False) -> None:
        with suppress(LeaseLost):  # another worker has the job and will record its outcome
            state = self._queue.fail(lease, error, retry=retry, postponed=postponed)
            logger.info("job %s (%s) is %s: %s", lease.job_id, lease.kind, state, error)

    def _beat(self, context: JobContext) -> None:
        """Renew the lease and store the progress until the work ends; runs in its own thread."""
        rest = self._queue.lease_seconds / 3
        stored, due = dict(context.progress), time.monotonic() + rest
        while not context.stopping.wait(min(rest, PROGRESS_SECONDS)):
            progress = dict(context.progress)
            if progress == stored and time.monotonic() < due:
                continue
            stored, due = progress, time.monotonic() + rest
            try:
                if self._queue.beat(context.lease, progress):
                    context.cancel_requested = True
                    context.stopping.set()
            except LeaseLost:
                context.lost = True
                context.stopping.set()
            except SQLAlchemyError:
                # The database may be unavailable for a moment; the lease leaves time for two more attempts.
                logger.warning("cannot renew the lease of job %s", context.lease.job_id)


def worker_name(purpose: str = "") -> str:
    """Return a name for a worker of this process that includes the machine's name."""
    return f"{socket.gethostname()} {os.getpid()} {purpose}".rstrip()


class JobWorker:
    """Threads that run jobs one after another, next to the other work of their process."""

    def __init__(
        self,
        queue: TableQueue,
        handlers: Mapping[str, Handler],
        name: str,
        *,
        look: Callable[[], None] | None = None,
        concurrency: int = 1,
    ) -> None:
        """Prepare a worker; `look` is called before a job is claimed and may submit jobs."""
        self._queue = queue
        self._attempts = JobAttempts(queue, handlers)
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
        """Look for a job immediately, because one was just submitted."""
        self._woken.set()

    def stop(self, timeout: float = 20.0) -> None:
        """Stop, and return running jobs to the queue."""
        self._attempts.end()
        self._woken.set()
        give_up = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, give_up - time.monotonic()))

    def run_waiting(self) -> int:
        """Run all jobs that are due in the calling thread; return the number of attempts."""
        begun = self._attempts.made
        while not self._attempts.ending.is_set():
            self._look()
            if not self.run_one():
                break
        return self._attempts.made - begun

    def run_one(self) -> bool:
        """Claim and run one job; return False if no job is due."""
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
            except Exception as error:  # noqa: BLE001 - the error is logged
                # If this thread ended, nobody would notice, and no run would be verified anymore.
                log_failure("cannot take a job", error)
            self._woken.wait(POLL_SECONDS)
