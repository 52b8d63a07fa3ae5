"""The job queue: rows of the hub's database."""

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
"""Maximum doublings of the 10-second pause: up to 160 s after a failed attempt, and up to 6 hours after an
attempt that failed because of a fault of the hub."""
_LONGEST_ERROR = 2000
_PATHS = (
    (re.compile(r"""(["'`])(?:file://)?~?/[^"'`\n]*?([^"'`/\n]+)/?\1"""), r"\1\2\1"),
    (re.compile(r"""(?<![\w/.~])(?:file://)?~?(?:/[^\s/'"`,;:()]+)*/([^\s/'"`,;:()]+)/?"""), r"\1"),
)
"""Patterns of paths: in quotes (with spaces) and without quotes."""


@dataclass(frozen=True)
class Lease:
    """The right to work on a job for a limited time."""

    job_id: int
    kind: str
    payload: dict[str, Any]
    owner: str
    attempt: int
    tries: int
    """Number of attempts, including this one, without the ones that failed because of the hub."""


class LeaseLost(Exception):
    """Another worker has taken the job, so no result of this attempt may be stored."""


class TableQueue:
    """The jobs of a hub. Submissions and cancellations happen in the caller's transaction."""

    def __init__(
        self, database: Database, *, lease_seconds: float = LEASE_SECONDS, retry_seconds: float = 10.0
    ) -> None:
        self.database = database
        self.lease_seconds = lease_seconds
        self._retry_seconds = retry_seconds
        self.on_failure: dict[str, Callable[[Session, Sequence[int]], None]] = {}
        """Functions by kind that handle jobs that ended without a result, in the same transaction."""

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
        """Add a job that runs after a pause, or return the existing job with this key.

        Among jobs of the same priority, users (`created_by`) take turns, by start-time fair queuing: a
        user's next job comes after the cost of their previous jobs, and never before the job that runs now. A
        user with a thousand jobs therefore delays another user's single job by only one job.
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
        """Queue the job with this key again after a pause, or mark it as failed; return False if it does not
        exist."""
        state: JobState = "failed" if failed else "queued"
        ended: dict[str, Any] = {"finished_at": now() if failed else None, "lease_until": None}
        ended |= {"cancel_requested": False, "error": storable(error)[:_LONGEST_ERROR] if error else None}
        again = {"max_attempts": Job.attempt + MAX_ATTEMPTS, "run_after": self.database.moment(pause)}
        values = {"state": state, "payload": payload, "priority": priority, **ended, **again}
        return bool(_update(session, Job.key == key, **values))

    def _next_turn(self, session: Session, user_id: int | None) -> float:
        """Return the turn of a user's next job: after their own last job, and not before the current one."""
        waiting = session.scalar(select(func.min(Job.turn)).where(Job.state == "queued"))
        if waiting is None:
            waiting = session.scalar(select(func.max(Job.turn))) or 0.0
        last = select(Job.turn + Job.cost).where(Job.created_by_id == user_id).order_by(Job.turn.desc())
        own = session.scalar(last.limit(1)) if user_id is not None else None
        return max(waiting, own or 0.0)

    def cancel(self, session: Session, job_id: int) -> None:
        """Cancel a job: immediately if it is queued, soon if it is running."""
        waiting = and_(Job.id == job_id, Job.state == "queued")
        ended = {"state": "canceled", "finished_at": now()}
        if _update(session, waiting, **ended):
            self._settle(session, [job_id])
        else:
            _update(session, and_(Job.id == job_id, Job.state == "running"), cancel_requested=True)

    def put_off(self, session: Session, job_id: int) -> bool:
        """Stop the attempt of a running job and move the job back in the queue; return False if that already
        happened once.

        The job's worker loses its lease and cannot store anything.
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
        """Queue a failed or canceled job again with the attempts of a new job; return False for any other
        job."""
        ended = and_(Job.id == job_id, Job.state.in_(("failed", "canceled")))
        again = {"max_attempts": Job.attempt + MAX_ATTEMPTS, "run_after": self.database.moment()}
        return bool(
            _update(session, ended, state="queued", finished_at=None, cancel_requested=False, **again)
        )

    def retry_all(self, session: Session, kinds: Iterable[str]) -> int:
        """Queue all jobs of these kinds that failed or wait after an attempt, and return their number."""
        again = {"max_attempts": Job.attempt + MAX_ATTEMPTS, "run_after": self.database.moment()}
        waits = (Job.state == "queued") & Job.error.is_not(None)
        wanted = Job.kind.in_(list(kinds)) & (waits | (Job.state == "failed"))
        return _update(session, wanted, state="queued", finished_at=None, cancel_requested=False, **again)

    def claim(self, owner: str, kinds: Iterable[str]) -> Lease | None:
        """Requeue the jobs of dead workers and take the next job; return None if no job is due."""
        of_kinds = Job.kind.in_(list(kinds))

        def wanted() -> ColumnElement[bool]:
            return and_(Job.state == "queued", of_kinds, Job.run_after <= self.database.moment())

        with self.database.read() as session:  # check without the write lock, which uploads need as well
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
        """Renew a lease and store the progress; return True if the job was canceled. Raises `LeaseLost`."""
        with self.database.write() as session:
            _write(session, lease, QUIET, lease_until=self._until(), progress=dict(progress))
            return bool(session.scalar(select(Job.cancel_requested).where(Job.id == lease.job_id)))

    def finish(self, lease: Lease, keep: Callable[[Session], None]) -> None:
        """Finish a job and store its result, in one transaction. Raises `LeaseLost` and stores nothing."""

        def end(session: Session) -> None:
            _write(session, lease, state="done", lease_until=None, finished_at=now())
            keep(session)

        self.database.commit(end, HUB)  # the hub's identity may see private objects

    def fail(self, lease: Lease, error: str, *, retry: bool, postponed: bool = False) -> JobState:
        """Record a failed attempt and return the job's new state. Raises `LeaseLost`.

        A `postponed` attempt does not count. The job waits, longer each time, until the hub can run it. After
        a failed attempt, jobs of other users run first.
        """
        more = 1 if postponed else 0

        def end(session: Session) -> JobState:
            job = session.get(Job, lease.job_id)
            again = retry and job is not None and lease.attempt < job.max_attempts + more
            canceled = job is not None and job.cancel_requested
            state: JobState = "canceled" if canceled else "queued" if again else "failed"
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
        """Return a job to the queue if its worker cannot finish it for reasons of its own; the attempt does
        not count."""
        with self.database.write() as session:
            _write(session, lease, state="queued", lease_until=None, max_attempts=Job.max_attempts + 1)

    def _requeue_dead(self, session: Session) -> None:
        """Queue jobs with an expired lease again after a pause; fail those without attempts left."""
        # Skip rows that another worker has locked, because waiting for each other would be a deadlock.
        dead = session.scalars(select(Job).where(self._dead()).with_for_update(skip_locked=True)).all()
        for job in dead:
            job.lease_until = None
            if job.cancel_requested:
                job.state, job.finished_at = "canceled", now()
            elif job.attempt < job.max_attempts:
                job.state = "queued"
                job.run_after = self.database.moment(self._pause(job.attempt, _LONGEST_PAUSE))
            else:
                job.state, job.finished_at = "failed", now()
                job.error = "the worker crashed on every attempt"
        session.flush()
        self._settle(session, [job.id for job in dead])

    def _pause(self, attempt: int, most_doublings: int) -> timedelta:
        return timedelta(seconds=self._retry_seconds * 2 ** min(attempt - 1, most_doublings))

    def _settle(self, session: Session, job_ids: Sequence[int]) -> None:
        """Handle jobs that ended without a result."""
        ended = select(Job).where(Job.id.in_(job_ids), Job.state.in_(("failed", "canceled")))
        # The session may contain the jobs as they were before `_update`.
        jobs = session.scalars(ended.order_by(Job.id).execution_options(populate_existing=True)).all()
        for kind, settle in sorted(self.on_failure.items()):
            if unsuccessful := [job.id for job in jobs if job.kind == kind]:
                settle(session, unsuccessful)

    def _until(self) -> ColumnElement[datetime]:
        return self.database.moment(timedelta(seconds=self.lease_seconds))

    def _dead(self) -> ColumnElement[bool]:
        return and_(Job.state == "running", Job.lease_until < self.database.moment())


def hide_paths(text: str) -> str:
    """Return a public version of a text, with paths of this machine reduced to the file name."""
    for path, name in _PATHS:
        text = path.sub(name, text)
    return text


def storable(text: str) -> str:
    """Return a text without characters that databases reject: null characters and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _write(session: Session, lease: Lease, options: Mapping[str, Any] = {}, /, **values: Any) -> None:
    held = and_(
        Job.id == lease.job_id,
        Job.state == "running",
        Job.lease_owner == lease.owner,
        Job.attempt == lease.attempt,
    )
    if not _update(session, held, options, **values):
        raise LeaseLost(f"`{lease.owner}` lost job {lease.job_id}")


def _update(session: Session, where: Any, options: Mapping[str, Any] = {}, /, **values: Any) -> int:
    statement = update(Job).where(where).values(**values)
    options = {"synchronize_session": False, **options}
    return int(session.connection().execute(statement, execution_options=options).rowcount)
