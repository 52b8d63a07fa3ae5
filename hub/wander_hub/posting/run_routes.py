"""The API that posts a run in one request, publishes a private one, and withdraws one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import Response
from wander.wire import RunDetail

from wander_hub.database import Database
from wander_hub.http.boundary import BaseUrl, HubDatabase, HubSettings, HubStorage, Poster, WriteSession
from wander_hub.http.form import multipart_form
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.identity import Identity
from wander_hub.posting import changes, whole_post
from wander_hub.posting.routes import limits_of, verify_after_post
from wander_hub.runs import manifest as manifests
from wander_hub.runs import service
from wander_hub.runs.artifacts import check_file
from wander_hub.runs.routes import RunId
from wander_hub.runs.schemas import PostedRun
from wander_hub.settings import Settings
from wander_hub.storage import Storage

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

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


@router.post(
    "",
    status_code=201,
    response_model=RunDetail,
    responses={
        200: {"model": RunDetail, "description": "The very same run was posted before"},
        **refusals(400, 401, 403, 409, 413, 415, 422, 507),
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
        await run_in_threadpool(verify_after_post, request, database, detail.run_id)
    body = detail.model_dump_json(by_alias=True)
    return Response(body, 201 if created else 200, media_type="application/json")


@router.post("/{run_id}/publish", response_model=RunDetail, responses=refusals(401, 403, 404, 410, 422))
def publish_run(session: WriteSession, caller: Poster, base_url: BaseUrl, run_id: RunId) -> RunDetail:
    """Show a private run to everybody, for good."""
    return service.detail_of(changes.publish(session, run_id, caller), base_url)


@router.delete("/{run_id}", response_model=RunDetail, responses=refusals(401, 403, 404, 422))
def withdraw_run(
    database: HubDatabase,
    storage: HubStorage,
    caller: Poster,
    base_url: BaseUrl,
    run_id: RunId,
    reason: Annotated[str, Query(min_length=1, max_length=500, description="shown to all")],
) -> RunDetail:
    """Remove the rollouts and files of a run one posted, and leave its manifest, digests and the reason."""
    changes.withdraw(database, storage, run_id, reason, caller)
    with database.read(caller) as session:
        return service.detail_of(service.find(session, run_id), base_url)


def _post(
    form: FormData,
    caller: Identity,
    database: Database,
    storage: Storage,
    settings: Settings,
    base_url: str,
) -> tuple[RunDetail, bool]:
    posted = _read_run(form, settings)
    run_id, created = whole_post.post(database, storage, posted, caller, limits_of(settings))
    with database.read(caller) as session:
        return service.detail_of(service.find(session, run_id), base_url), created


def _read_run(form: FormData, settings: Settings) -> PostedRun:
    part = form.get("manifest")
    if part is None:
        raise HubProblem(400, "bad_form", "the form has no part `manifest` (run.json)")
    text = part.encode() if isinstance(part, str) else part.file.read(settings.max_manifest_bytes + 1)
    if len(text) > settings.max_manifest_bytes:
        raise HubProblem(413, "too_large", f"run.json is over {settings.max_manifest_bytes:,} bytes")
    rollouts = form.get("rollouts")
    if isinstance(rollouts, str):
        raise HubProblem(400, "bad_form", "`rollouts` must be a file part")
    artifacts = []
    for part in form.getlist("artifacts"):
        if isinstance(part, str) or not part.filename:
            raise HubProblem(400, "bad_form", "`artifacts` must be file parts")
        artifacts.append(check_file(part.filename, part.file, settings.max_artifact_bytes))
    if len({one.name for one in artifacts}) != len(artifacts):
        raise HubProblem(422, "bad_artifact", "two artifacts have one name")
    manifest = manifests.parse(text)
    if manifest.kind == "evaluation" and rollouts is None:
        raise HubProblem(400, "bad_form", "the form has no file part `rollouts`")
    body = rollouts.file if rollouts is not None else None
    private = form.get("private", "false")
    if private not in ("true", "false"):
        raise HubProblem(400, "bad_form", "`private` is `true` or `false`")
    return PostedRun(manifest, text, body, artifacts, private == "true")
