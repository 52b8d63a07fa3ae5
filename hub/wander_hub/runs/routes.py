"""The API on runs and rollouts."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response, StreamingResponse
from wander.types import Rollout
from wander.wire import RolloutPage, RunDetail, RunPage

from wander_hub.accounts.schemas import HUB, Identity
from wander_hub.boundary import (
    BaseUrl,
    HubDatabase,
    HubSettings,
    HubStorage,
    Poster,
    ReadSession,
    wake_jobs,
)
from wander_hub.database import Database
from wander_hub.http_answers import REVALIDATE, stored_object
from wander_hub.jobs import JobQueue
from wander_hub.problems import HubProblem, documented
from wander_hub.runs import manifest as manifests
from wander_hub.runs import repository, service
from wander_hub.runs.schemas import PostedFile, PostedRun
from wander_hub.settings import Settings
from wander_hub.storage import Storage, digest_of
from wander_hub.upload.form import multipart_form
from wander_hub.verification import service as verification

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "md": "text/plain; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "toml": "text/plain; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
}
"""Artifacts that are taken, by suffix, and how they are sent: none of these can run in a browser here."""

_ARTIFACT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")
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
                    },
                }
            }
        },
    }
}

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
    """Post a run folder. The hub validates every rollout and computes all aggregates itself."""
    max_files = 2 + settings.max_artifacts
    async with multipart_form(request, max_bytes=settings.max_run_bytes, max_files=max_files) as form:
        detail, created = await run_in_threadpool(_post, form, caller, database, storage, settings, base_url)
    if created and settings.verify_posts and settings.verification != "off":
        await run_in_threadpool(_verify, request, database, detail.run_id)
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


@router.get("/{run_id}/rollouts", response_model=RolloutPage, responses=documented(404, 422))
def list_rollouts(
    session: ReadSession,
    run_id: RunId,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> RolloutPage:
    """List a run's rollouts without their messages."""
    return service.rollout_page(session, run_id, offset, limit)


@router.get(
    "/{run_id}/rollouts.jsonl", responses={**_LINES, **documented(404, 422)}, response_class=StreamingResponse
)
def download_rollouts(session: ReadSession, storage: HubStorage, run_id: RunId) -> Response:
    """Download every whole rollout of a run as JSON lines."""
    run = service.find(session, run_id)
    if run.rollouts_sha256 is None:
        return Response(b"", media_type="application/jsonl")
    blocks = list(repository.blocks_of(session, run_id))
    lines = service.rollout_lines(storage, run.rollouts_sha256, blocks)
    return StreamingResponse(lines, media_type="application/jsonl")


@router.get("/{run_id}/rollouts/{number}", response_model=Rollout, responses=documented(404, 422))
def get_rollout(
    session: ReadSession,
    storage: HubStorage,
    run_id: RunId,
    number: Annotated[int, Path(ge=0, le=2**31)],
) -> Rollout:
    """Show one whole rollout."""
    return service.rollout(session, storage, run_id, number)


@router.get(
    "/{run_id}/artifacts/{name}", responses={**_BYTES, **documented(404, 416, 422)}, response_class=Response
)
def get_artifact(
    request: Request, session: ReadSession, storage: HubStorage, run_id: RunId, name: str
) -> Response:
    """Send a file that was posted with a run."""
    service.find(session, run_id)
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
    run_id, created = service.post(database, storage, posted, caller, max_bytes=settings.max_run_bytes)
    with database.read(caller) as session:
        return service.detail_of(service.find(session, run_id), base_url), created


def _verify(request: Request, database: Database, run_id: str) -> None:
    queue: JobQueue = request.app.state.jobs
    if database.committed(lambda session: verification.request_after_post(session, queue, run_id), HUB):
        wake_jobs(request)


def _posted_run(form: FormData, settings: Settings) -> PostedRun:
    text = _manifest_bytes(form.get("manifest"), settings)
    rollouts = form.get("rollouts")
    if isinstance(rollouts, str):
        raise HubProblem(400, "bad_form", "`rollouts` must be a file part")
    artifacts = [_artifact(one, settings) for one in form.getlist("artifacts")]
    if len({one.name for one in artifacts}) != len(artifacts):
        raise HubProblem(422, "bad_artifact", "two artifacts have one name")
    manifest = manifests.parsed(text)
    if manifest.kind == "evaluation" and rollouts is None:
        raise HubProblem(400, "bad_form", "the form has no file part `rollouts`")
    body = rollouts.file if rollouts is not None else None
    return PostedRun(manifest, text.decode(), body, artifacts)


def _manifest_bytes(part: UploadFile | str | None, settings: Settings) -> bytes:
    if part is None:
        raise HubProblem(400, "bad_form", "the form has no part `manifest` (run.json)")
    text = part.encode() if isinstance(part, str) else part.file.read(settings.max_manifest_bytes + 1)
    if len(text) > settings.max_manifest_bytes:
        raise HubProblem(413, "too_large", f"run.json is over {settings.max_manifest_bytes:,} bytes")
    return text


def _artifact(part: UploadFile | str, settings: Settings) -> PostedFile:
    if isinstance(part, str) or not part.filename:
        raise HubProblem(400, "bad_form", "`artifacts` must be file parts")
    name = part.filename
    suffix = name.rpartition(".")[2].lower()
    if not _ARTIFACT.fullmatch(name) or suffix not in MEDIA_TYPES:
        hint = f"a plain name ending in one of {', '.join(f'.{one}' for one in MEDIA_TYPES)}"
        raise HubProblem(422, "bad_artifact", f"the hub takes no artifact `{name[:100]}`", hint=hint)
    body = part.file
    sha256, size = digest_of(body)
    if size > settings.max_artifact_bytes:
        raise HubProblem(413, "too_large", f"`{name}` is over {settings.max_artifact_bytes:,} bytes")
    return PostedFile(name, MEDIA_TYPES[suffix], body, size, sha256)
