"""The API for administrators: state of the hub, jobs, archives of owners.

Commands that replace or trust rows from elsewhere (`wander-hub restore` and `wander-hub import`) are
deliberately not available as requests.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import IO, Annotated

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse
from wander.wire.events import (
    DoctorFinding,
    DoctorReport,
    JobInfo,
    JobPage,
    RetriedJobs,
)
from wander.wire.verification import JobState

from wander_hub.http.boundary import (
    Before,
    HubDatabase,
    HubSettings,
    HubStorage,
    Number,
    ReadSession,
    audited,
    origin_of,
    wake_jobs,
)
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.operation import job_queue
from wander_hub.rights.rights import Administrator, ForAdministrator
from wander_hub.settings import Settings
from wander_hub.storage import CHUNK

router = HubRouter(prefix="/api/v1", tags=["operation"])

_ARCHIVE = "application/x-tar"
_CHANGES = refusals(401, 403, 404, 409, 422)
_writing = threading.Lock()
"""Held while this process writes an archive for a request, because each archive is as large as its
content."""


@router.get("/doctor", responses=refusals(401, 403))
def show_state(_caller: Administrator, settings: HubSettings) -> DoctorReport:
    """Check settings, database, clock, storage, disk, proxy and sandbox. For administrators."""
    return report_state(settings)


def report_state(settings: Settings) -> DoctorReport:
    """Return the results of the doctor's checks."""
    from wander_hub.operation.doctor import examine  # imported here, so that the hub starts faster

    results = [DoctorFinding(**asdict(result)) for result in examine(settings)]
    return DoctorReport(well=all(result.state != "failed" for result in results), data=results)


@router.get("/jobs", responses=refusals(401, 403, 422))
def list_jobs(
    session: ReadSession,
    _caller: Administrator,
    kind: Annotated[str | None, Query(max_length=40)] = None,
    state: JobState | None = None,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> JobPage:
    """List the hub's jobs, newest first: replays, checks, deliveries and backups. For administrators."""
    return job_queue.list_page(session, kind=kind, state=state, before=before, limit=limit)


@router.post("/jobs/{job}/retry", responses=_CHANGES)
@audited("job.retry")
def retry_job(request: Request, context: ForAdministrator, job: Number) -> JobInfo:
    """Queue a failed or canceled job again, with the attempts of a new job. For administrators."""
    retried = context.commit(lambda session: job_queue.retry(session, request.app.state.jobs, job))
    wake_jobs(request)
    return retried


@router.post("/jobs/retry", responses=refusals(401, 403, 422))
@audited("job.retry")
def retry_jobs(
    request: Request, context: ForAdministrator, kind: Annotated[str | None, Query(max_length=40)] = None
) -> RetriedJobs:
    """Retry all jobs of a kind that failed or wait after a failure. For administrators.

    Without `kind`, this retries all verifications of runs and checks of versions.
    """
    retried = context.commit(lambda session: job_queue.retry_all(session, request.app.state.jobs, kind))
    wake_jobs(request)
    return retried


@router.delete("/jobs/{job}", responses=_CHANGES)
@audited("job.cancel")
def cancel_job(request: Request, context: ForAdministrator, job: Number) -> JobInfo:
    """Cancel a job: immediately if it is queued, soon if it is running. For administrators."""
    return context.commit(lambda session: job_queue.cancel(session, request.app.state.jobs, job))


@router.get(
    "/owners/{owner}/archive",
    response_class=Response,
    responses={200: {"content": {_ARCHIVE: {}}}, **refusals(401, 403, 404, 409, 422)},
)
def export_owner(
    request: Request,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    caller: Administrator,
    owner: str,
) -> Response:
    """Send an archive of everything that an owner has, including private content, as `wander-hub export`
    writes it."""
    from wander_hub.operation.export import write_archive

    if not _writing.acquire(blocking=False):
        raise HubProblem(409, "busy", "another archive is being written", hint="try again later")
    try:
        file = tempfile.TemporaryFile(dir=settings.data)  # noqa: SIM115 - closed after it is sent
        try:
            origin = replace(origin_of(request, caller), action="hub.export")
            write_archive(database, storage, file, origin=origin, owner=owner)
        except BaseException:
            file.close()
            raise
    finally:
        _writing.release()
    disposition = f'attachment; filename="{owner}.tar"'
    headers = {"Content-Disposition": disposition, "Content-Length": str(file.tell())}
    return StreamingResponse(_pieces(file), media_type=_ARCHIVE, headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(CHUNK):
            yield piece
