"""The port of jobs: what a queue and a worker promise, and what a handler gets and may raise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy.orm import Session

from wander_hub.jobs.models import JobState


@dataclass(frozen=True)
class Lease:
    """The right to work on one job for a while."""

    job_id: int
    kind: str
    payload: dict[str, Any]
    owner: str
    attempt: int


class LeaseLost(Exception):
    """Somebody else has the job now: nothing of this attempt may be kept."""


class JobCancelled(Exception):
    """A user called the job off."""


class JobRefused(Exception):
    """The job cannot succeed, however often it is tried."""


class JobQueue(Protocol):
    """Holds jobs until they are worked on. Submitting and cancelling happen in the caller's transaction."""

    lease_seconds: float

    def submit(
        self,
        session: Session,
        kind: str,
        key: str,
        payload: dict[str, Any],
        *,
        priority: int = 0,
        created_by: int | None = None,
    ) -> int:
        """Add a job, or return the one that has this key."""
        ...

    def cancel(self, session: Session, job_id: int) -> None:
        """Call a job off: at once where it waits, soon where it runs."""
        ...

    def claim(self, owner: str, kinds: Iterable[str], job_id: int | None = None) -> Lease | None:
        """Take the next job, or that one, once those of dead workers are given back; None when none waits."""
        ...

    def beat(self, lease: Lease, progress: Mapping[str, Any]) -> bool:
        """Renew a lease, tell how far the work is; True when the job was called off. Raises `LeaseLost`."""
        ...

    def finish(self, lease: Lease, keep: Callable[[Session], None]) -> None:
        """End a job and keep its result, in one transaction; raises `LeaseLost` and keeps nothing."""
        ...

    def fail(self, lease: Lease, error: str, *, retry: bool) -> JobState:
        """Say that an attempt failed; returns what the job is now. Raises `LeaseLost`."""
        ...

    def give_back(self, lease: Lease) -> None:
        """Put a job back that its worker cannot end for reasons of its own; the attempt does not count."""
        ...


@dataclass
class JobContext:
    """What a handler gets: the job, and how to tell and hear of it while it works."""

    lease: Lease
    progress: dict[str, Any] = field(default_factory=dict)
    """Put here how far the work is; the next heartbeat stores it."""
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


class Worker(Protocol):
    """Works on jobs beside whatever else its process does."""

    def start(self) -> None:
        """Begin to take jobs."""
        ...

    def wake(self) -> None:
        """Look for a job now: one was just submitted."""
        ...

    def stop(self, timeout: float = 20.0) -> None:
        """End: jobs that run are given back, for this worker's next start or another one."""
        ...

    def run_waiting(self) -> int:
        """Do, in the calling thread's time, what waits now; returns how many attempts that took."""
        ...
