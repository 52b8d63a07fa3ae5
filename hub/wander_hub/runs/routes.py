"""The API on runs and rollouts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response, StreamingResponse
from wander.types import Rollout
from wander.wire import RolloutPage, RunDetail, RunPage
from wander.wire.postings import RunLinks

from wander_hub.accounts.schemas import Identity
from wander_hub.database import Database
from wander_hub.http.answers import REVALIDATE, stored_object
from wander_hub.http.boundary import (
    BaseUrl,
    HubDatabase,
    HubSettings,
    HubStorage,
    Poster,
    ReadSession,
    WriteSession,
)
from wander_hub.http.form import multipart_form
from wander_hub.http.problems import HubProblem, documented
from wander_hub.posting import whole_post
from wander_hub.posting.routes import limits_of, verified_after_post
from wander_hub.runs import manifest as manifests
from wander_hub.runs import repository, service
from wander_hub.runs.artifacts import posted_file
from wander_hub.runs.schemas import PostedRun
from wander_hub.settings import Settings
from wander_hub.storage import Storage

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

_ARTIFACT_CSP = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The file"}
}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/jsonl": {}}, "description": "One rollout a line"}
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["manifest"],
                    "properties": {
                        "manifest": {"type": "string", "format": "binary", "description": "run.json"},
                        "rollouts": {
                            "type": "string",
                            "format": "binary",
                            "description": "rollouts.jsonl, plain or zstd",
                        },
                        "artifacts": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "private": {"type": "string", "enum": ["true", "false"]},
                    },
                }
            }
        },
    }
}

ONE_REQUEST_BYTES = 1024 * 1024 * 1024
"""A run that is larger comes in parts."""

RunId = Annotated[str, Path(max_length=64)]


@router.post(
    "",
    status_code=201,
    response_model=RunDetail,
    responses={
        200: {"model": RunDetail, "description": "The very same run was posted before"},
        **documented(400, 401, 403, 409, 413, 415, 422, 507),
    },
    openapi_extra=_BODY,
)
async def post_run(
    request: Request,
    caller: Poster,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    base_url: BaseUrl,
) -> Response:
    """Post a whole run folder at once, as `curl` can: it is taken in by the same steps as one that comes in
    parts (`/api/v1/postings`). The hub validates every rollout and computes all aggregates itself.
    """
    max_files = 2 + settings.max_artifacts
    max_bytes = min(settings.max_run_bytes, ONE_REQUEST_BYTES)
    async with multipart_form(request, max_bytes=max_bytes, max_files=max_files) as form:
        detail, created = await run_in_threadpool(_post, form, caller, database, storage, settings, base_url)
    if created:
        await run_in_threadpool(verified_after_post, request, database, detail.run_id)
    body = detail.model_dump_json(by_alias=True)
    return Response(body, 201 if created else 200, media_type="application/json")


@router.get("", response_model=RunPage, responses=documented(404, 422))
def list_runs(
    session: ReadSession,
    base_url: BaseUrl,
    environment: Annotated[str | None, Query(max_length=250, description="`owner/name`")] = None,
    model: Annotated[str | None, Query(max_length=300)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=300, description="`next` of the page before")] = None,
) -> RunPage:
    """List runs, newest first."""
    return service.listing(
        session, base_url, environment=environment, model=model, limit=limit, cursor=cursor
    )


@router.get("/{run_id}", response_model=RunDetail, responses=documented(404, 422))
def get_run(session: ReadSession, base_url: BaseUrl, run_id: RunId) -> RunDetail:
    """Show one run with its manifest and the hub's summary; the beginning of its id will do."""
    return service.detail_of(service.meant(session, run_id), base_url)


@router.get("/{run_id}/links", response_model=RunLinks, responses=documented(404, 422))
def get_links(session: ReadSession, run_id: RunId) -> RunLinks:
    """Show the evaluations of what a training run made, or the training runs behind an evaluation."""
    return service.links(session, service.find(session, run_id))


@router.post("/{run_id}/publish", response_model=RunDetail, responses=documented(401, 403, 404, 410, 422))
def publish_run(session: WriteSession, caller: Poster, base_url: BaseUrl, run_id: RunId) -> RunDetail:
    """Show a private run to everybody, for good."""
    return service.detail_of(service.publish(session, run_id, caller), base_url)


@router.delete("/{run_id}", response_model=RunDetail, responses=documented(401, 403, 404, 422))
def withdraw_run(
    database: HubDatabase,
    storage: HubStorage,
    caller: Poster,
    base_url: BaseUrl,
    run_id: RunId,
    reason: Annotated[str, Query(min_length=1, max_length=500, description="shown to all")],
) -> RunDetail:
    """Remove the rollouts and files of a run one posted, and leave its manifest, digests and the reason."""
    service.withdraw(database, storage, run_id, reason, caller)
    with database.read(caller) as session:
        return service.detail_of(service.find(session, run_id), base_url)


@router.get("/{run_id}/rollouts", response_model=RolloutPage, responses=documented(404, 410, 422))
def list_rollouts(
    session: ReadSession,
    storage: HubStorage,
    run_id: RunId,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> RolloutPage:
    """List a run's rollouts without their messages."""
    return service.rollout_page(session, storage, run_id, offset, limit)


@router.get(
    "/{run_id}/rollouts.jsonl",
    responses={**_LINES, **documented(404, 410, 422)},
    response_class=StreamingResponse,
)
def download_rollouts(session: ReadSession, storage: HubStorage, run_id: RunId) -> Response:
    """Download every whole rollout of a run as JSON lines."""
    run = service.with_rollouts(service.find(session, run_id))
    return StreamingResponse(service.rollout_lines(session, storage, run), media_type="application/jsonl")


@router.get("/{run_id}/rollouts/{number}", response_model=Rollout, responses=documented(404, 410, 422))
def get_rollout(
    session: ReadSession,
    storage: HubStorage,
    run_id: RunId,
    number: Annotated[int, Path(ge=0, le=2**31)],
) -> Rollout:
    """Show one whole rollout."""
    return service.rollout(session, storage, run_id, number)


@router.get(
    "/{run_id}/artifacts/{name}",
    responses={**_BYTES, **documented(404, 410, 416, 422)},
    response_class=Response,
)
def get_artifact(
    request: Request, session: ReadSession, storage: HubStorage, run_id: RunId, name: str
) -> Response:
    """Send a file that was posted with a run."""
    service.with_rollouts(service.find(session, run_id))
    artifact = repository.artifact_named(session, run_id, name)
    if artifact is None:
        raise HubProblem(404, "artifact_not_found", f"the run has no file `{name[:100]}`")
    headers = {"Cache-Control": REVALIDATE, "Content-Security-Policy": _ARTIFACT_CSP}
    what = (artifact.sha256, artifact.size, artifact.media_type, headers)
    return stored_object(request, storage, *what, private=True)  # who may see the run may be one of few


def _post(
    form: FormData,
    caller: Identity,
    database: Database,
    storage: Storage,
    settings: Settings,
    base_url: str,
) -> tuple[RunDetail, bool]:
    posted = _posted_run(form, settings)
    run_id, created = whole_post.post(database, storage, posted, caller, limits_of(settings))
    with database.read(caller) as session:
        return service.detail_of(service.find(session, run_id), base_url), created


def _posted_run(form: FormData, settings: Settings) -> PostedRun:
    text = _manifest_bytes(form.get("manifest"), settings)
    rollouts = form.get("rollouts")
    if isinstance(rollouts, str):
        raise HubProblem(400, "bad_form", "`rollouts` must be a file part")
    artifacts = []
    for part in form.getlist("artifacts"):
        if isinstance(part, str) or not part.filename:
            raise HubProblem(400, "bad_form", "`artifacts` must be file parts")
        artifacts.append(posted_file(part.filename, part.file, settings.max_artifact_bytes))
    if len({one.name for one in artifacts}) != len(artifacts):
        raise HubProblem(422, "bad_artifact", "two artifacts have one name")
    manifest = manifests.parsed(text)
    if manifest.kind == "evaluation" and rollouts is None:
        raise HubProblem(400, "bad_form", "the form has no file part `rollouts`")
    body = rollouts.file if rollouts is not None else None
    private = form.get("private", "false")
    if private not in ("true", "false"):
        raise HubProblem(400, "bad_form", "`private` is `true` or `false`")
    return PostedRun(manifest, text, body, artifacts, private == "true")


def _manifest_bytes(part: UploadFile | str | None, settings: Settings) -> bytes:
    if part is None:
        raise HubProblem(400, "bad_form", "the form has no part `manifest` (run.json)")
    text = part.encode() if isinstance(part, str) else part.file.read(settings.max_manifest_bytes + 1)
    if len(text) > settings.max_manifest_bytes:
        raise HubProblem(413, "too_large", f"run.json is over {settings.max_manifest_bytes:,} bytes")
    return text
