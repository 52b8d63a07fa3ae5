"""Background work that survives a crash: a table of jobs, taken under a lease and finished under a fence.

A worker takes a job for `LEASE_SECONDS` and renews that while it works. When it dies, the lease runs out and
another worker takes the job with the next attempt number. Everything a worker writes carries owner and
attempt, so one that was only slow, and lost its lease, can change nothing any more: `LeaseLost`. A job that
kills its worker again and again is failed after `max_attempts`.

`JobQueue` is the port. `TableQueue` keeps the jobs in the hub's own database, SQLite or PostgreSQL; a hub
that outgrows it puts another queue behind the same methods. Leases compare the clocks of the workers'
machines, which must agree to within seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from sqlalchemy import JSON, ForeignKey, Index, String, Text, and_, case, or_, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Mapped, Session, mapped_column

from wander_hub.accounts.schemas import HUB
from wander_hub.database import Base, Database, now
from wander_hub.environments import models as environments  # noqa: F401 - the users that jobs refer to need it

logger = logging.getLogger("wander_hub.jobs")

LEASE_SECONDS = 30.0
MAX_ATTEMPTS = 3
_POLL_SECONDS = 2.0
_LONGEST_ERROR = 2000

JobState = Literal["queued", "running", "done", "failed", "cancelled"]


class Job(Base):
    """One piece of work."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_waiting", "state", "kind", "priority", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(40))
    key: Mapped[str] = mapped_column(String(200), unique=True)
    """What is done once: a second job of one key is the first one."""
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[JobState] = mapped_column(String(12), default="queued")
    priority: Mapped[int] = mapped_column(default=0)
    """Higher is sooner."""
    run_after: Mapped[datetime]
    attempt: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int]
    lease_owner: Mapped[str | None] = mapped_column(String(100))
    lease_until: Mapped[datetime | None]
    progress: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    error: Mapped[str | None] = mapped_column(Text)
    created_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


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
    """Where jobs wait. Submitting and cancelling happen in the transaction of whoever asks."""

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

    def claim(self, owner: str, kinds: Iterable[str]) -> Lease | None:
        """Take the next job, after giving back those whose workers died; None when nothing waits."""
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


class TableQueue:
    """Jobs in the hub's database."""

    def __init__(
        self, database: Database, *, lease_seconds: float = LEASE_SECONDS, retry_seconds: float = 10.0
    ) -> None:
        self._database = database
        self.lease_seconds = lease_seconds
        self._retry_seconds = retry_seconds

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
        known = session.scalar(select(Job.id).where(Job.key == key))
        if known is not None:
            return known
        job = Job(
            kind=kind,
            key=key,
            payload=payload,
            priority=priority,
            run_after=now(),
            max_attempts=MAX_ATTEMPTS,
            created_by_id=created_by,
            created_at=now(),
        )
        session.add(job)
        session.flush()
        return job.id

    def cancel(self, session: Session, job_id: int) -> None:
        """Call a job off: at once where it waits, soon where it runs."""
        waiting = and_(Job.id == job_id, Job.state == "queued")
        ended = {"state": "cancelled", "finished_at": now()}
        if not _changed(session, waiting, **ended):
            _changed(session, and_(Job.id == job_id, Job.state == "running"), cancel_requested=True)

    def claim(self, owner: str, kinds: Iterable[str]) -> Lease | None:
        """Take the next job, after giving back those whose workers died; None when nothing waits."""
        wanted = list(kinds)
        if not self._anything(wanted):
            return None
        with self._database.write() as session:
            self._requeue_dead(session)
            job = session.scalar(
                select(Job)
                .where(Job.state == "queued", Job.kind.in_(wanted), Job.run_after <= now())
                .order_by(Job.priority.desc(), Job.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            if job is None:
                return None
            job.state, job.attempt = "running", job.attempt + 1
            job.lease_owner, job.lease_until = owner, self._until()
            job.progress, job.error = {}, None
            return Lease(job.id, job.kind, dict(job.payload), owner, job.attempt)

    def beat(self, lease: Lease, progress: Mapping[str, Any]) -> bool:
        """Renew a lease, tell how far the work is; True when the job was called off. Raises `LeaseLost`."""
        with self._database.write() as session:
            _write(session, lease, lease_until=self._until(), progress=dict(progress))
            return bool(session.scalar(select(Job.cancel_requested).where(Job.id == lease.job_id)))

    def finish(self, lease: Lease, keep: Callable[[Session], None]) -> None:
        """End a job and keep its result, in one transaction; raises `LeaseLost` and keeps nothing."""
        # As the hub itself, who may see what is private.
        with self._database.write(HUB) as session:
            _write(session, lease, state="done", lease_until=None, finished_at=now())
            keep(session)

    def fail(self, lease: Lease, error: str, *, retry: bool) -> JobState:
        """Say that an attempt failed; returns what the job is now. Raises `LeaseLost`."""
        with self._database.write() as session:
            job = session.get(Job, lease.job_id)
            again = retry and job is not None and lease.attempt < job.max_attempts
            called_off = job is not None and job.cancel_requested
            state: JobState = "cancelled" if called_off else "queued" if again else "failed"
            _write(
                session,
                lease,
                state=state,
                error=error[:_LONGEST_ERROR],
                lease_until=None,
                run_after=now() + timedelta(seconds=self._retry_seconds * 2 ** (lease.attempt - 1)),
                finished_at=None if state == "queued" else now(),
            )
        return state

    def give_back(self, lease: Lease) -> None:
        """Put a job back that its worker cannot end for reasons of its own; the attempt does not count."""
        with self._database.write() as session:
            _write(session, lease, state="queued", lease_until=None, max_attempts=Job.max_attempts + 1)

    def _anything(self, kinds: list[str]) -> bool:
        """Look without taking the write lock, which uploads want too."""
        waiting = and_(Job.state == "queued", Job.kind.in_(kinds), Job.run_after <= now())
        dead = and_(Job.state == "running", Job.lease_until < now())
        with self._database.read() as session:
            return session.scalar(select(Job.id).where(or_(waiting, dead)).limit(1)) is not None

    def _requeue_dead(self, session: Session) -> None:
        """Requeue jobs whose lease ran out, fail those that were tried often enough."""
        tried = Job.attempt >= Job.max_attempts
        _changed(
            session,
            and_(Job.state == "running", Job.lease_until < now()),
            state=case((Job.cancel_requested, "cancelled"), (tried, "failed"), else_="queued"),
            error=case((tried, "the worker that had the job died, on every attempt"), else_=Job.error),
            finished_at=case((tried | Job.cancel_requested, now()), else_=None),
            lease_until=None,
        )

    def _until(self) -> datetime:
        return now() + timedelta(seconds=self.lease_seconds)


def _write(session: Session, lease: Lease, **values: Any) -> None:
    held = and_(
        Job.id == lease.job_id,
        Job.state == "running",
        Job.lease_owner == lease.owner,
        Job.attempt == lease.attempt,
    )
    if not _changed(session, held, **values):
        raise LeaseLost(f"job {lease.job_id} is no longer that of `{lease.owner}`")


def _changed(session: Session, where: Any, **values: Any) -> int:
    statement = update(Job).where(where).values(**values).execution_options(synchronize_session=False)
    return int(session.connection().execute(statement).rowcount)


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


class JobWorker:
    """A thread that takes jobs one after another; `look` is called before it does, and may submit some."""

    def __init__(
        self,
        queue: TableQueue,
        handlers: Mapping[str, Handler],
        name: str,
        *,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._queue = queue
        self._handlers = dict(handlers)
        self.name = name
        self._look = look
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._running: JobContext | None = None
        self._thread = threading.Thread(target=self._loop, name=f"jobs {name}", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Look for a job now: one was just submitted."""
        self._woken.set()

    def stop(self, timeout: float = 20.0) -> None:
        """End: a job that runs is given back, for this worker's next start or another one."""
        self._ending.set()
        self._woken.set()
        if self._running is not None:
            self._running.stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def run_one(self) -> bool:
        """Take and do one job; False when nothing waits."""
        lease = self._queue.claim(self.name, self._handlers)
        if lease is None:
            return False
        context = self._running = JobContext(lease)
        if self._ending.is_set():
            context.stopping.set()
        beating = threading.Thread(target=self._beat, args=(context,), name="lease", daemon=True)
        beating.start()
        try:
            self._do(context)
        finally:
            self._running = None
            context.stopping.set()
            beating.join()
        return True

    def _do(self, context: JobContext) -> None:
        lease = context.lease
        try:
            keep = self._handlers[lease.kind](context)
            context.check()
            self._queue.finish(lease, keep)
        except LeaseLost as error:
            logger.warning("%s", error)
        except JobRefused as error:
            self._failed(lease, str(error), retry=False)
        except JobCancelled:
            if context.called_off:
                self._failed(lease, "called off", retry=False)
            else:
                with suppress(LeaseLost):
                    self._queue.give_back(lease)
        except Exception as error:
            logger.exception("job %s (%s) failed", lease.job_id, lease.kind)
            self._failed(lease, f"{type(error).__name__}: {error}", retry=True)

    def _failed(self, lease: Lease, error: str, *, retry: bool) -> None:
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

    def _loop(self) -> None:
        while not self._ending.is_set():
            self._woken.clear()
            try:
                if self._look is not None:
                    self._look()
                if self.run_one():
                    continue
            except OperationalError:
                logger.exception("no job could be taken")
            self._woken.wait(_POLL_SECONDS)
