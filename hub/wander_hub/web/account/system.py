"""The pages for administrators: the hub's status, its jobs, users, organizations and audit log.

They show the data of the administrators' API, and their forms call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.responses import Response
from wander.wire.events import EVENTS
from wander.wire.verification import JobState

from wander_hub import audit
from wander_hub.accounts.models import Owner, User
from wander_hub.environments import browse
from wander_hub.environments.models import File
from wander_hub.http.boundary import Before
from wander_hub.http.routing import HubRouter
from wander_hub.operation import job_queue
from wander_hub.operation.administration import report_state
from wander_hub.people import departures, organizations
from wander_hub.quotas import service as quotas
from wander_hub.runs import repository as runs
from wander_hub.runs.models import Run
from wander_hub.settings import Settings
from wander_hub.web.account.visit import AdministratorVisiting
from wander_hub.web.addresses import query_string
from wander_hub.web.text import size
from wander_hub.webhooks import service as webhooks

router = HubRouter(prefix="/system", include_in_schema=False)

_JOBS, _PEOPLE, _ENTRIES = 100, 200, 200
"""Number of each on a page."""
Word = Annotated[str, Query(max_length=300)]


@router.get("")
def show_state(visit: AdministratorVisiting) -> Response:
    """The hub's checks, its size, jobs and workers, backups and webhooks."""
    return visit.page(
        "system.html",
        report=report_state(visit.settings),
        facts=_describe(visit.session, visit.settings),
        counts=job_queue.count(visit.session),
        held_up=job_queue.find_held_up(visit.session),
        workers=job_queue.list_workers(visit.session),
        webhooks=webhooks.list_all(visit.session, visit.user, None),
        events=EVENTS,
    )


@dataclass(frozen=True)
class JobQuery:
    """Selects the jobs that a page shows."""

    kind: Annotated[str, Query(max_length=40)] = ""
    state: JobState | Literal[""] = ""
    before: Before = None

    def asked(self) -> dict[str, Any]:
        """Return the arguments for the queue's `list_page`."""
        return {"kind": self.kind or None, "state": self.state or None, "before": self.before, "limit": _JOBS}


AskedOfJobs = Annotated[JobQuery, Depends()]


@router.get("/jobs")
def show_jobs(visit: AdministratorVisiting, query: AskedOfJobs) -> Response:
    """The job queue, newest first: status, attempts, worker and error."""
    shown = _list_jobs(visit.session, query)
    return visit.page(
        "system_jobs.html",
        counts=job_queue.count(visit.session),
        kind=query.kind,
        state=query.state,
        **shown,
    )


def _list_jobs(session: Session, query: JobQuery) -> dict[str, Any]:
    found = job_queue.list_page(session, **query.asked())
    at = {"kind": query.kind, "state": query.state}
    return {
        "jobs": found.data,
        "following": query_string(**at, before=found.next) if found.next else None,
        "back": "/system/jobs" + query_string(**at),
    }


@router.get("/users")
def show_users(
    visit: AdministratorVisiting,
    q: Annotated[str, Query(max_length=80)] = "",
    cursor: Annotated[str, Query(max_length=80)] = "",
) -> Response:
    """The page that lists users by name and lets administrators change them."""
    q = q.strip()
    found = departures.list_users(visit.session, after=cursor, limit=_PEOPLE + 1, word=q)
    following = query_string(q=q, cursor=found[_PEOPLE - 1].name) if len(found) > _PEOPLE else None
    return visit.page(
        "system_users.html",
        users=found[:_PEOPLE],
        following=following,
        me=visit.user.user,
        q=q,
    )


@router.get("/organizations")
def show_organizations(
    visit: AdministratorVisiting, cursor: Annotated[str, Query(max_length=80)] = ""
) -> Response:
    """The organizations, and the owners with their own quotas."""
    found = list(organizations.with_owners(visit.session, after=cursor, limit=_PEOPLE + 1).items())
    following = query_string(cursor=found[_PEOPLE - 1][0].name) if len(found) > _PEOPLE else None
    return visit.page(
        "system_organizations.html",
        organizations=found[:_PEOPLE],
        following=following,
        limited=quotas.list_own(visit.session, visit.settings),
        usual={name: getattr(visit.settings, f"quota_{name}") for name in quotas.KINDS},
    )


@router.get("/audit")
def show_audit(
    visit: AdministratorVisiting,
    actor: Word = "",
    action: Annotated[str, Query(max_length=40)] = "",
    target: Word = "",
    since: date | Literal[""] = "",
    until: date | Literal[""] = "",
    before: Before = None,
) -> Response:
    """The audit log of the hub with actors and addresses, newest first."""
    asked = {"actor": actor, "action": action, "target": target, "since": since, "until": until}
    found = audit.list_entries(
        visit.session,
        actor=actor or None,
        action=action or None,
        target=target or None,
        since=_begins(since),
        until=_begins(until),
        before=before,
        limit=_ENTRIES + 1,
    )
    following = query_string(**asked, before=found[_ENTRIES - 1].id) if len(found) > _ENTRIES else None
    given = {name: value or None for name, value in asked.items()}
    return visit.page(
        "system_audit.html",
        entries=found[:_ENTRIES],
        asked=asked,
        narrowed=before or any(asked.values()),
        following=following,
        export="/api/v1/audit.jsonl" + query_string(**given),
    )


def _begins(day: date | Literal[""]) -> datetime | None:
    return datetime.combine(day, time(), UTC) if day else None


def _describe(session: Session, settings: Settings) -> dict[str, str]:
    """Return facts about the hub's content and configuration."""
    engine = session.get_bind().dialect.name
    day = func.count().filter(User.disabled_at.is_(None))
    users, able = session.execute(select(func.count(), day).select_from(User)).one()
    owners = session.scalar(select(func.count()).select_from(Owner)) or 0
    listed, posted = browse.count_listed(session), runs.count_runs(session, most=browse.COUNTED + 1)
    packages = session.scalar(select(func.sum(File.size))) or 0
    records = session.scalar(select(func.sum(Run.stored_bytes))) or 0
    most = f"more than {browse.COUNTED:,}"
    worker = "this process" if settings.serve_jobs else "`wander-hub work`"
    return {
        "environments": most if listed > browse.COUNTED else f"{listed:,}",
        "runs": most if posted > browse.COUNTED else f"{posted:,}",
        "users": f"{users:,} ({able:,} active)",
        "owners": f"{owners:,}",
        "database": {"sqlite": "SQLite in the data folder", "postgresql": "PostgreSQL"}.get(engine, engine),
        "file storage": "an object store" if settings.storage_url else "the data folder",
        "stored data": f"{size(int(packages))} of packages, {size(int(records))} of runs",
        "jobs": f"run by {worker}",
        "replays": {"sandbox": "in a sandbox", "unconfined": "without a sandbox"}.get(
            settings.verification, settings.verification
        ),
    }
