"""The job queue for administrators: waiting and failed jobs, their subjects, and the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session
from wander.wire.events import JobInfo, JobPage, RetriedJobs
from wander.wire.verification import JobState

from wander_hub import audit
from wander_hub.accounts.models import Owner
from wander_hub.database import fill, now
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import readable
from wander_hub.http.problems import HubProblem
from wander_hub.jobs import OPEN, Job, TableQueue
from wander_hub.runs.models import Run
from wander_hub.runs.repository import readable_run
from wander_hub.sealed import service as sealed
from wander_hub.verification import evidence, version_checks
from wander_hub.verification import service as verification
from wander_hub.webhooks import delivery
from wander_hub.webhooks.models import WebhookDelivery

_SEEN = timedelta(days=1)
_OPEN_SHOWN = 50
RETRIED = (
    *(verification.KIND, evidence.KIND, version_checks.KIND, version_checks.LEARN),
    *(sealed.CHECK, sealed.OPENING),
)
"""Kinds of jobs that a fault of the hub can hold up."""
KINDS = (*RETRIED, delivery.KIND)
Queue = TypeVar("Queue", bound=TableQueue)


class WorkerSeen(NamedTuple):
    """A worker that had a job within the last day."""

    name: str
    running: int
    done: int
    last: datetime | None
    """Time when it last finished a job."""


def settle_failures(queue: Queue) -> Queue:
    """Register what happens when a verification or a delivery fails permanently; return the queue."""
    queue.on_failure |= {
        verification.KIND: verification.keep_failures,
        sealed.CHECK: sealed.keep_failures,
        sealed.PLAY: sealed.forget_keys,
        delivery.KIND: partial(delivery.keep_failures, queue),
    }
    return queue


def list_page(
    session: Session, *, kind: str | None, state: JobState | None, before: int | None, limit: int
) -> JobPage:
    """Return a page of jobs, newest first."""
    jobs = session.scalars(_newest(kind, state, before).limit(limit + 1)).all()
    data = describe(session, jobs[:limit])
    return JobPage(data=data, next=data[-1].id if len(jobs) > limit else None)


def list_open(session: Session, owner_id: int, environment_id: int | None = None) -> list[JobInfo]:
    """Return the queued and running jobs for an owner's environments, or for one of them, newest first.

    Jobs of runs that the session's reader may not see are left out.
    """
    return describe(session, session.scalars(_open(session, owner_id, environment_id)).all())


def _open(session: Session, owner_id: int, environment_id: int | None) -> Select[Job]:
    query = select(Job).where(Job.state.in_(OPEN)).order_by(Job.id.desc()).limit(_OPEN_SHOWN)
    query = query.outerjoin(Run, Run.run_id == Job.payload["run_id"].as_string())
    query = query.outerjoin(Version, Version.id == Job.payload["version_id"].as_integer())
    query = query.join(
        Environment, Environment.id == func.coalesce(Run.environment_id, Version.environment_id)
    )
    query = query.where(Environment.owner_id == owner_id, readable(session))
    query = query.where(Run.run_id.is_(None) | readable_run(session))
    if environment_id is not None:
        query = query.where(Environment.id == environment_id)
    return query


def _newest(kind: str | None, state: JobState | None, before: int | None) -> Select[Job]:
    query = select(Job).order_by(Job.id.desc())
    for column, wanted in ((Job.kind, kind), (Job.state, state)):
        query = query.where(column == wanted) if wanted is not None else query
    return query.where(Job.id < before) if before is not None else query


def count(session: Session) -> dict[str, dict[str, int]]:
    """Return the number of jobs by kind and state."""
    counts: dict[str, dict[str, int]] = {}
    query = select(Job.kind, Job.state, func.count()).group_by(Job.kind, Job.state).order_by(Job.kind)
    for kind, state, number in session.execute(query):
        counts.setdefault(kind, {})[state] = number
    return counts


def list_workers(session: Session) -> list[WorkerSeen]:
    """Return the workers that had a job within the last day."""
    running, done = (func.count().filter(Job.state == state) for state in ("running", "done"))
    query = select(Job.lease_owner, running, done, func.max(Job.finished_at)).group_by(Job.lease_owner)
    query = query.where((Job.state == "running") | (Job.finished_at > now() - _SEEN))
    rows = session.execute(query.where(Job.lease_owner.is_not(None)).order_by(Job.lease_owner))
    return [WorkerSeen(name or "", running, done, last) for name, running, done, last in rows]


class HeldUp(NamedTuple):
    """Jobs that the hub could not run because of a fault of the hub itself."""

    waiting: int
    failed: int
    error: str
    """Error of the most recent of them."""


def find_held_up(session: Session) -> HeldUp | None:
    """Return the jobs that wait for the hub or failed because of it; otherwise None."""
    waits = (Job.state == "queued") & Job.error.is_not(None)
    failed = (Job.state == "failed") & Job.kind.in_((verification.KIND, evidence.KIND))
    of_hub = Job.kind.in_(RETRIED) & (waits | failed)
    counts = select(func.count().filter(waits), func.count().filter(failed)).where(of_hub)
    waiting, given_up = session.execute(counts).one()
    if not waiting + given_up:
        return None
    last = session.scalar(select(Job.error).where(of_hub).order_by(Job.run_after.desc()).limit(1))
    return HeldUp(waiting, given_up, last or "")


def retry_all(session: Session, queue: TableQueue, kind: str | None = None) -> RetriedJobs:
    """Retry all jobs of a kind that failed, or that are waiting after a failure.

    Without `kind`, this retries replays of runs, checks of versions and proofs of learning.
    """
    count = queue.retry_all(session, RETRIED if kind is None else [kind])
    audit.about(session, target=f"{count} jobs")
    return RetriedJobs(retried=count)


def retry(session: Session, queue: TableQueue, number: int) -> JobInfo:
    """Queue a failed or canceled job again."""
    job = _find(session, number)
    if not queue.retry(session, number):
        hint = "`GET /api/v1/jobs?state=failed` lists the jobs that can be retried"
        raise HubProblem(409, "job_not_over", f"job {number} is {job.state} and cannot be retried", hint=hint)
    return _describe_change(session, job)


def cancel(session: Session, queue: TableQueue, number: int) -> JobInfo:
    """Cancel a job: immediately if it is queued, soon if it is running."""
    job = _find(session, number)
    if job.finished_at is not None:
        raise HubProblem(409, "job_over", f"job {number} is already {job.state}")
    queue.cancel(session, number)
    return _describe_change(session, job)


def _find(session: Session, number: int) -> Job:
    job = session.get(Job, number)
    if job is None:
        raise HubProblem(404, "job_not_found", f"there is no job {number}")
    return job


def _describe_change(session: Session, job: Job) -> JobInfo:
    session.refresh(job)
    audit.about(session, target=f"job {job.id}", kind=job.kind, **job.payload)
    return describe(session, [job])[0]


class Subject(NamedTuple):
    """Object that a job is about."""

    about: str
    page: str | None
    """Path of the object's page; None if the object was deleted."""


def describe(session: Session, jobs: Sequence[Job]) -> list[JobInfo]:
    """Return jobs for administrators. Their subjects are looked up by kind instead of one by one."""
    known: dict[tuple[str, Any], Subject] = {}
    for name, find in _FINDERS.items():
        if wanted := {job.payload[name] for job in jobs if name in job.payload}:
            known |= {(name, key): subject for key, subject in find(session, list(wanted)).items()}
    return [fill(JobInfo, job, **_subject_of(job, known)._asdict()) for job in jobs]


def _subject_of(job: Job, known: Mapping[tuple[str, Any], Subject]) -> Subject:
    for name, key in job.payload.items():
        if name in _FINDERS:
            gone = Subject(f"{_WORDS.get(name, name)} {key} (deleted)", None)
            return known.get((name, key), gone)
    return Subject(job.kind, None)


def _runs(session: Session, ids: list[Any]) -> dict[Any, Subject]:
    visible = environments.visible(session).join(Run, Run.environment_id == Environment.id)
    query = visible.where(Run.run_id.in_(ids)).with_only_columns(Run.run_id, Owner.name, Environment.name)
    return {
        run_id: Subject(f"run {run_id[-10:]} on {owner}/{name}", f"/runs/{run_id}#verification")
        for run_id, owner, name in session.execute(query)
    }


def _versions(session: Session, ids: list[Any]) -> dict[Any, Subject]:
    visible = environments.visible(session).join(Version, Version.environment_id == Environment.id)
    visible = visible.where(Version.id.in_(ids), Version.deleted_at.is_(None))
    query = visible.with_only_columns(Version.id, Owner.name, Environment.name, Version.version)
    return {
        number: Subject(f"{owner}/{name} {version}", f"/{owner}/{name}/versions/{version}")
        for number, owner, name, version in session.execute(query)
    }


def _deliveries(session: Session, ids: list[Any]) -> dict[Any, Subject]:
    columns = (WebhookDelivery.id, WebhookDelivery.webhook_id, WebhookDelivery.event)
    return {
        number: Subject(
            f"delivery {number}, {event} to webhook {hook}", f"/account/webhooks/{hook}/deliveries/{number}"
        )
        for number, hook, event in session.execute(select(*columns).where(WebhookDelivery.id.in_(ids)))
    }


_FINDERS: dict[str, Callable[[Session, list[Any]], dict[Any, Subject]]] = {
    "run_id": _runs,
    "version_id": _versions,
    "delivery": _deliveries,
}
"""Function that looks up the subjects, by the key of the job's payload that holds their ids."""
_WORDS = {"run_id": "run", "version_id": "version"}
