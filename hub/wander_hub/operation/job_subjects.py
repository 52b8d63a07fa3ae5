"""What the jobs of the queue are about, in words, and the pages that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.wire.events import JobInfo

from wander_hub.accounts.models import Owner
from wander_hub.database import fill
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.jobs import Job
from wander_hub.mirrors.models import Mirror
from wander_hub.operation import backup_jobs
from wander_hub.runs.models import Run
from wander_hub.webhooks.models import WebhookDelivery


class Subject(NamedTuple):
    """What a job is about."""

    about: str
    page: str | None
    """The path of a page that shows it; None of what is gone."""


def describe(session: Session, jobs: Sequence[Job]) -> list[JobInfo]:
    """Return jobs as administrators see them; what they are about is looked up by kind, not job by job."""
    known: dict[tuple[str, Any], Subject] = {}
    for name, find in _FINDERS.items():
        if wanted := {job.payload[name] for job in jobs if name in job.payload}:
            known |= {(name, key): subject for key, subject in find(session, list(wanted)).items()}
    return [fill(JobInfo, job, **_subject_of(job, known)._asdict()) for job in jobs]


def _subject_of(job: Job, known: Mapping[tuple[str, Any], Subject]) -> Subject:
    if job.kind == backup_jobs.KIND:
        return Subject("the whole hub", "/system#backups")
    for name, key in job.payload.items():
        if name in _FINDERS:
            gone = Subject(f"{_WORDS.get(name, name)} {key}, which is gone", None)
            return known.get((name, key), gone)
    return Subject(job.kind, None)


def _runs(session: Session, ids: list[Any]) -> dict[Any, Subject]:
    found = environments.visible(session).join(Run, Run.environment_id == Environment.id)
    query = found.where(Run.run_id.in_(ids)).with_only_columns(Run.run_id, Owner.name, Environment.name)
    return {
        run_id: Subject(f"run {run_id[-10:]} on {owner}/{name}", f"/runs/{run_id}#verification")
        for run_id, owner, name in session.execute(query)
    }


def _versions(session: Session, ids: list[Any]) -> dict[Any, Subject]:
    found = environments.visible(session).join(Version, Version.environment_id == Environment.id)
    found = found.where(Version.id.in_(ids), Version.deleted_at.is_(None))
    query = found.with_only_columns(Version.id, Owner.name, Environment.name, Version.version)
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


def _mirrors(session: Session, ids: list[Any]) -> dict[Any, Subject]:
    found = session.scalars(select(Mirror).where(Mirror.id.in_(ids)))
    return {one.id: Subject(f"{one.target} of {one.url}", "/system#mirrors") for one in found}


_FINDERS: dict[str, Callable[[Session, list[Any]], dict[Any, Subject]]] = {
    "run_id": _runs,
    "version_id": _versions,
    "delivery": _deliveries,
    "mirror": _mirrors,
}
"""By the name in a job's payload of what it is about."""
_WORDS = {"run_id": "run", "version_id": "version"}
