"""Jobs in the hub's database: the rows are the queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session
from wander.wire.verification import JobState

from wander_hub.database import QUIET, Database, now
from wander_hub.identity import HUB
from wander_hub.jobs.models import Job
from wander_hub.settings import Settings

LEASE_SECONDS = 30.0
MAX_ATTEMPTS = 5
_LONGEST_PAUSE, _LONGEST_WAIT = 4, 11
"""Doublings of the pause after an attempt that failed, and after one that met a fault of the hub: from 10 s
to 160 s, and to 6 hours."""
_LONGEST_ERROR = 2000
_PATHS = (
    (re.compile(r"""(["'`])(?:file://)?~?/[^"'`\n]*?([^"'`/\n]+)/?\1"""), r"\1\2\1"),
    (re.compile(r"""(?<![\w/.~])(?:file://)?~?(?:/[^\s/'"`,;:()]+)*/([^\s/'"`,;:()]+)/?"""), r"\1"),
)
"""Paths between quotes, which may hold spaces, and others."""


@dataclass(frozen=True)
class Lease:
    """The right to work on one job for a while."""

    job_id: int
    kind: str
    payload: dict[str, Any]
    owner: str
    attempt: int
    tries: int
    """How many attempts counted, this one included: those that met a fault of the hub do not."""


class LeaseLost(Exception):
    """Somebody else has the job now: nothing of this attempt may be kept."""


class TableQueue:
    """The jobs of a hub. Submitting and cancelling happen in the caller's transaction."""

    def __init__(
        self, database: Database, *, lease_seconds: float = LEASE_SECONDS, retry_seconds: float = 10.0
    ) -> None:
        self.database = database
        self.lease_seconds = lease_seconds
        self._retry_seconds = retry_seconds
        self.on_failure: dict[str, Callable[[Session, Sequence[int]], None]] = {}
        """What is done about jobs of a kind that end without a result, in the transaction that ends them."""

    @classmethod
    def of(cls, settings: Settings, database: Database) -> TableQueue:
        """Return the queue of a hub with these settings."""
        return cls(database, lease_seconds=settings.job_lease_seconds)

    def submit(
        self,
        session: Session,
        kind: str,
        key: str,
        payload: dict[str, Any],
        *,
        priority: int = 0,
        created_by: int | None = None,
        cost: float = 1.0,
        pause: timedelta = timedelta(),
    ) -> int:
        """Add a job that is done after a pause, or return the one that has this key.

        Of one priority, the jobs of all users (`created_by`) are done in turns, as start-time fair queueing
        has it: a user's next job starts behind what their jobs before it cost, and never before the one that
        is done now. So whoever submits a thousand jobs delays the single job of another user by one of them.
        """
        known = session.scalar(select(Job.id).where(Job.key == key))
        if known is not None:
            return known
        job = Job(
            kind=kind,
            key=key,
            payload=payload,
            priority=priority,
            run_after=self.database.moment(pause),
            max_attempts=MAX_ATTEMPTS,
            created_by_id=created_by,
            created_at=now(),
            turn=self._next_turn(session, created_by),
            cost=cost,
        )
        session.add(job)
        session.flush()
        return job.id

    def renew(
        self,
        session: Session,
        key: str,
        payload: dict[str, Any],
        *,
        error: str | None = None,
        failed: bool = False,
        priority: int = 0,
        pause: timedelta = timedelta(),
    ) -> bool:
        """Have the job of this key done once more after a pause, or give it up; False if there is none."""
        state: JobState = "failed" if failed else "queued"
        ended: dict[str, Any] = {"finished_at": now() if failed else None, "lease_until": None}
        ended |= {"cancel_requested": False, "error": storable(error)[:_LONGEST_ERROR] if error else None}
        again = {"max_attempts": Job.attempt + MAX_ATTEMPTS, "run_after": self.database.moment(pause)}
        values = {"state": state, "payload": payload, "priority": priority, **ended, **again}
        return bool(_update(session, Job.key == key, **values))

    def _next_turn(self, session: Session, user_id: int | None) -> float:
        """Return the turn of a user's next job: after their own last one, and after what is done now."""
        waiting = session.scalar(select(func.min(Job.turn)).where(Job.state == "queued"))
        if waiting is None:
            waiting = session.scalar(select(func.max(Job.turn))) or 0.0
        last = select(Job.turn + Job.cost).where(Job.created_by_id == user_id).order_by(Job.turn.desc())
        own = session.scalar(last.limit(1)) if user_id is not None else None
        return max(waiting, own or 0.0)

    def cancel(self, session: Session, job_id: int) -> None:
        """Call a job off: at once where it waits, soon where it runs."""
        waiting = and_(Job.id == job_id, Job.state == "queued")
        ended = {"state": "cancelled", "finished_at": now()}
        if _update(session, waiting, **ended):
            self._settle(session, [job_id])
        else:
            _update(session, and_(Job.id == job_id, Job.state == "running"), cancel_requested=True)

    def put_off(self, session: Session, job_id: int) -> bool:
        """End the attempt at a job that runs, and have it wait for its next turn; False the second time.

        Its worker loses the lease, and can keep nothing.
        """
        job = session.get_one(Job, job_id, with_for_update=True)
        if job.state != "running" or job.payload.get("put_off"):
            return False
        job.payload = {**job.payload, "put_off": True}
        job.state, job.lease_until, job.max_attempts = "queued", None, job.max_attempts + 1
        job.turn += job.cost
        session.flush()
        return True

    def retry(self, session: Session, job_id: int) -> bool:
        """Have a job that failed, or was called off, tried as often as a new one; False for any other."""
        ended = and_(Job.id == job_id, Job.state.in_(("failed", "cancelled")))
        again = {"max_attempts": Job.attempt + MAX_ATTEMPTS, "run_after": self.database.moment()}
        return bool(
            _update(session, ended, state="queued", finished_at=None, cancel_requested=False, **again)
        )

    def retry_all(self, session: Session, kinds: Iterable[str]) -> int:
        """Have all jobs of these kinds tried now that wait after an attempt, or failed; return how many."""
        again = {"max_attempts": Job.attempt + MAX_ATTEMPTS, "run_after": self.database.moment()}
        waits = (Job.state == "queued") & Job.error.is_not(None)
        wanted = Job.kind.in_(list(kinds)) & (waits | (Job.state == "failed"))
        return _update(session, wanted, state="queued", finished_at=None, cancel_requested=False, **again)

    def claim(self, owner: str, kinds: Iterable[str]) -> Lease | None:
        """Requeue the jobs of dead workers and take the next job; return None if no job is due."""
        of_kinds = Job.kind.in_(list(kinds))

        def wanted() -> ColumnElement[bool]:
            return and_(Job.state == "queued", of_kinds, Job.run_after <= self.database.moment())

        with self.database.read() as session:  # look without taking the write lock, which uploads want too
            if session.scalar(select(Job.id).where(or_(wanted(), self._dead())).limit(1)) is None:
                return None

        def take(session: Session) -> Lease | None:
            self._requeue_dead(session)
            job = session.scalar(
                select(Job)
                .where(wanted())
                .order_by(Job.priority.desc(), Job.turn, Job.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            if job is None:
                return None
            job.state, job.attempt = "running", job.attempt + 1
            job.lease_owner, job.lease_until = owner, self._until()
            job.progress, job.error = {}, None
            tries = job.attempt - (job.max_attempts - MAX_ATTEMPTS)
            return Lease(job.id, job.kind, dict(job.payload), owner, job.attempt, tries)

        return self.database.commit(take, HUB)

    def beat(self, lease: Lease, progress: Mapping[str, Any]) -> bool:
        """Renew a lease, tell how far the work is; True when the job was called off. Raises `LeaseLost`."""
        with self.database.write() as session:
            _write(session, lease, QUIET, lease_until=self._until(), progress=dict(progress))
            return bool(session.scalar(select(Job.cancel_requested).where(Job.id == lease.job_id)))

    def finish(self, lease: Lease, keep: Callable[[Session], None]) -> None:
        """End a job and keep its result, in one transaction; raises `LeaseLost` and keeps nothing."""

        def end(session: Session) -> None:
            _write(session, lease, state="done", lease_until=None, finished_at=now())
            keep(session)

        self.database.commit(end, HUB)  # who may see what is private

    def fail(self, lease: Lease, error: str, *, retry: bool, postponed: bool = False) -> JobState:
        """Say that an attempt failed; returns what the job is now. Raises `LeaseLost`.

        An attempt that is `postponed` does not count: the job waits, each time longer, until the hub can do
        it. Another user's job comes first when it is tried again.
        """
        more = 1 if postponed else 0

        def end(session: Session) -> JobState:
            job = session.get(Job, lease.job_id)
            again = retry and job is not None and lease.attempt < job.max_attempts + more
            called_off = job is not None and job.cancel_requested
            state: JobState = "cancelled" if called_off else "queued" if again else "failed"
            most = _LONGEST_WAIT if postponed else _LONGEST_PAUSE
            _write(
                session,
                lease,
                state=state,
                max_attempts=Job.max_attempts + more,
                turn=Job.turn + Job.cost,
                error=storable(hide_paths(error))[:_LONGEST_ERROR],
                lease_until=None,
                run_after=self.database.moment(self._pause(lease.attempt, most)),
                finished_at=None if state == "queued" else now(),
            )
            self._settle(session, [lease.job_id])
            return state

        return self.database.commit(end, HUB)

    def give_back(self, lease: Lease) -> None:
        """Put a job back that its worker cannot end for reasons of its own; the attempt does not count."""
        with self.database.write() as session:
            _write(session, lease, state="queued", lease_until=None, max_attempts=Job.max_attempts + 1)

    def _requeue_dead(self, session: Session) -> None:
        """Requeue jobs whose lease ran out after a pause, fail those that were tried often enough."""
        # Rows that another worker is looking at are its own to requeue; waiting for each other is a deadlock.
        dead = session.scalars(select(Job).where(self._dead()).with_for_update(skip_locked=True)).all()
        for job in dead:
            job.lease_until = None
            if job.cancel_requested:
                job.state, job.finished_at = "cancelled", now()
            elif job.attempt < job.max_attempts:
                job.state = "queued"
                job.run_after = self.database.moment(self._pause(job.attempt, _LONGEST_PAUSE))
            else:
                job.state, job.finished_at = "failed", now()
                job.error = "the worker that had the job died, on every attempt"
        session.flush()
        self._settle(session, [job.id for job in dead])

    def _pause(self, attempt: int, most_doublings: int) -> timedelta:
        return timedelta(seconds=self._retry_seconds * 2 ** min(attempt - 1, most_doublings))

    def _settle(self, session: Session, job_ids: Sequence[int]) -> None:
        """See to what those of some jobs leave that ended without a result."""
        for kind, settle in sorted(self.on_failure.items()):
            ended = Job.id.in_(job_ids), Job.kind == kind, Job.state.in_(("failed", "cancelled"))
            if found := session.scalars(select(Job.id).where(*ended)).all():
                settle(session, found)

    def _until(self) -> ColumnElement[datetime]:
        return self.database.moment(timedelta(seconds=self.lease_seconds))

    def _dead(self) -> ColumnElement[bool]:
        return and_(Job.state == "running", Job.lease_until < self.database.moment())


def hide_paths(text: str) -> str:
    """Return a text that all may read, which tells of a file of this machine no more than its name."""
    for path, name in _PATHS:
        text = path.sub(name, text)
    return text


def storable(text: str) -> str:
    """Return a text without what no database keeps: zero characters, and halves of characters."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _write(session: Session, lease: Lease, options: Mapping[str, Any] = {}, /, **values: Any) -> None:
    held = and_(
        Job.id == lease.job_id,
        Job.state == "running",
        Job.lease_owner == lease.owner,
        Job.attempt == lease.attempt,
    )
    if not _update(session, held, options, **values):
        raise LeaseLost(f"job {lease.job_id} is no longer that of `{lease.owner}`")


def _update(session: Session, where: Any, options: Mapping[str, Any] = {}, /, **values: Any) -> int:
    statement = update(Job).where(where).values(**values)
    options = {"synchronize_session": False, **options}
    return int(session.connection().execute(statement, execution_options=options).rowcount)
