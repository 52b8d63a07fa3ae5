"""The API of posted runs and their rollouts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response, StreamingResponse
from wander.errors import did_you_mean
from wander.types import Rollout
from wander.wire import RolloutPage, RunDetail, RunPage
from wander.wire.environments import RolloutSearchPage
from wander.wire.postings import RunLinks

from wander_hub.http.boundary import BaseUrl, HubStorage, ReadSession, open_to_jobs
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.responses import REVALIDATE, stored_object
from wander_hub.http.routing import HubRouter
from wander_hub.runs import explorer, service
from wander_hub.runs.explorer import RolloutQuery, RolloutSearch
from wander_hub.runs.exports import ExportFormat, export
from wander_hub.runs.models import RunArtifact

router = HubRouter(prefix="/api/v1/runs", tags=["runs"])

_ARTIFACT_CSP = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The file"}
}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/jsonl": {}}, "description": "One rollout per line"}
}
RunId = Annotated[str, Path(max_length=64)]


@router.get("", responses=refusals(404, 422))
def list_runs(
    session: ReadSession,
    base_url: BaseUrl,
    environment: Annotated[str | None, Query(max_length=250, description="`owner/name`")] = None,
    model: Annotated[str | None, Query(max_length=300)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=300, description="`next` of the previous page")] = None,
) -> RunPage:
    """List runs, newest first."""
    return service.list_page(
        session, base_url, environment=environment, model=model, limit=limit, cursor=cursor
    )


@router.get("/rollouts", responses=refusals(404, 422))
def search_rollouts(
    session: ReadSession, storage: HubStorage, wanted: Annotated[RolloutSearch, Query()]
) -> RolloutSearchPage:
    """Search the rollouts of all runs by text, model, reward and ending, newest run first.

    A page covers at most 100 runs. It may be empty although `next` leads to another page.
    """
    return explorer.search_runs(session, storage, wanted)


@router.get("/{run_id}", response_model=RunDetail, responses=refusals(404, 422))
@open_to_jobs
def get_run(session: ReadSession, base_url: BaseUrl, run_id: RunId) -> Response:
    """Show a run with its manifest and the hub's summary. The first characters of its id are sufficient."""
    run = service.find_by_prefix(session, run_id)
    return Response(service.whole_detail(run, base_url), media_type="application/json")


@router.get(
    "/{run_id}/run.json",
    responses={200: {"content": {"application/json": {}}, "description": "The file"}, **refusals(404, 422)},
    response_class=Response,
)
@open_to_jobs
def get_manifest(session: ReadSession, run_id: RunId) -> Response:
    """Send a run's manifest byte for byte as it was posted, which is what its digest covers."""
    return Response(service.find(session, run_id).manifest.encode(), media_type="application/json")


@router.get("/{run_id}/links", responses=refusals(404, 422))
def get_links(session: ReadSession, run_id: RunId) -> RunLinks:
    """Show the evaluations of a training run's weights, or the training runs that produced an evaluation's
    weights."""
    return service.links(session, service.find(session, run_id))


@router.get("/{run_id}/rollouts", responses=refusals(404, 410, 422))
@open_to_jobs
def list_rollouts(
    session: ReadSession,
    storage: HubStorage,
    run_id: RunId,
    wanted: Annotated[RolloutQuery, Query()],
) -> RolloutPage:
    """List a run's rollouts without their messages, with filters and order."""
    run = service.with_rollouts(service.find(session, run_id))
    rows, total = explorer.list_page(session, storage, run, wanted, wanted.offset, wanted.limit)
    return RolloutPage(data=rows, total=total, offset=wanted.offset)


@router.get(
    "/{run_id}/rollouts.jsonl",
    responses={**_LINES, **refusals(404, 410, 422)},
    response_class=StreamingResponse,
)
@open_to_jobs
def download_rollouts(session: ReadSession, storage: HubStorage, run_id: RunId) -> Response:
    """Download all rollouts of a run as JSON lines."""
    run = service.with_rollouts(service.find(session, run_id))
    return StreamingResponse(service.rollout_lines(session, storage, run), media_type="application/jsonl")


@router.get(
    "/{run_id}/exports/{format}",
    responses={**_BYTES, **refusals(404, 410, 422)},
    response_class=StreamingResponse,
)
def export_run(
    session: ReadSession, storage: HubStorage, base_url: BaseUrl, run_id: RunId, format: ExportFormat
) -> Response:
    """Download a run in the format of another tool: Inspect, ATIF or Hugging Face's `.eval_results`."""
    run = service.with_rollouts(service.find(session, run_id))
    return export(session, storage, run, format, base_url)


@router.get("/{run_id}/rollouts/{number}", response_model=Rollout, responses=refusals(404, 410, 422))
@open_to_jobs
def get_rollout(
    session: ReadSession,
    storage: HubStorage,
    run_id: RunId,
    number: Annotated[int, Path(ge=0, le=2**31)],
) -> Response:
    """Send one rollout, byte for byte as it was posted."""
    line = service.rollout_line(session, storage, service.find(session, run_id), number)
    return Response(line, media_type="application/json")


@router.get(
    "/{run_id}/artifacts/{name}",
    responses={**_BYTES, **refusals(404, 410, 416, 422)},
    response_class=Response,
)
@open_to_jobs
def get_artifact(
    request: Request, session: ReadSession, storage: HubStorage, run_id: RunId, name: str
) -> Response:
    """Send a file that was posted with a run."""
    run = service.with_rollouts(service.find(session, run_id))
    artifact = session.get(RunArtifact, (run.run_id, name))
    if artifact is None:
        hint = did_you_mean(name[:100], [known.name for known in run.artifacts])
        raise HubProblem(404, "artifact_not_found", f"the run has no file `{name[:100]}`", hint=hint)
    headers = {"Cache-Control": REVALIDATE, "Content-Security-Policy": _ARTIFACT_CSP}
    stored = (artifact.sha256, artifact.size, artifact.media_type, headers)
    return stored_object(request, storage, *stored, private=True)  # the run may be private
