"""The API for posting runs, in parts or in one request, and for naming, publishing and withdrawing them."""

from __future__ import annotations

import tempfile
from typing import Annotated

from fastapi import Query, Request
from pydantic import BaseModel, ValidationError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import JSONResponse, Response
from wander.wire import RunDetail
from wander.wire.fields import fold
from wander.wire.postings import NewRunName
from wander.wire.transfers import NewRun
from wander.wire.untrusted_text import MANIFEST, RUN_ANNOUNCEMENT, refusal_of

from wander_hub.http.bodies import form_body, multipart_form
from wander_hub.http.boundary import Context, ForPoster, audited, part_of_upload, wake_jobs
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter, body_limits
from wander_hub.posting import service as posting
from wander_hub.posting.arrival import MAX_ARTIFACT_BYTES, MAX_ARTIFACTS, RUNS, announce, post_whole
from wander_hub.posting.reading import FilePosition, lines_that_count, unpack
from wander_hub.runs import manifest as manifests
from wander_hub.runs import service
from wander_hub.runs.artifacts import PostedFile, check_file
from wander_hub.runs.manifest import PinnedRun
from wander_hub.runs.routes import RunId
from wander_hub.transfers.routes import OPENING, opened, routes_of

router = HubRouter(prefix="/api/v1/runs", tags=["runs"])
transfer_router = routes_of(RUNS, "results", "run.post", RunDetail, "runs")

_BODY = form_body(
    {
        "manifest": {"type": "string", "format": "binary", "description": "run.json"},
        "rollouts": {"type": "string", "format": "binary", "description": "rollouts.jsonl, plain or zstd"},
        "artifacts": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "private": {"type": "string", "enum": ["true", "false"]},
        "name": {"type": "string", "maxLength": 100, "description": "name of the run on the hub"},
    },
    required="manifest",
)

ONE_REQUEST_BYTES = 1024 * 1024 * 1024
"""Maximum size of a run in one request. A larger run must be posted in parts."""


@transfer_router.post("", **OPENING)
@part_of_upload
@body_limits(RUN_ANNOUNCEMENT)
def open_run_transfer(wanted: NewRun, context: ForPoster) -> Response:
    """Announce a run with its manifest and the files that will follow."""
    return opened(context, *announce(context, wanted))


@router.post(
    "",
    status_code=201,
    response_model=RunDetail,
    responses={
        200: {"model": RunDetail, "description": "The same run was posted before"},
        **refusals(400, 401, 403, 409, 413, 415, 422, 507),
    },
    openapi_extra=_BODY,
)
@audited("run.post")
async def post_run(request: Request, context: ForPoster) -> Response:
    """Post a whole run folder in one request, for example with `curl`.

    The request takes the same steps as a run in parts (`/api/v1/transfers/runs`). The hub validates every
    rollout and computes all aggregates itself.
    """
    max_files = 2 + MAX_ARTIFACTS
    max_bytes = min(context.settings.max_run_bytes, ONE_REQUEST_BYTES)
    async with multipart_form(request, max_bytes=max_bytes, max_files=max_files) as form:
        detail, created = await run_in_threadpool(_post, form, context)
    if created:
        wake_jobs(request)
    return JSONResponse(detail.model_dump(mode="json", by_alias=True), 201 if created else 200)


@router.post("/{run_id}/publish", responses=refusals(401, 403, 404, 410, 422))
@audited("run.publish")
def publish_run(context: ForPoster, run_id: RunId) -> RunDetail:
    """Make a private run public, permanently."""

    def record(session: Session) -> RunDetail:
        shown = posting.publish_run(session, run_id, context.caller)
        return service.detail_of(shown, context.base_url)

    return context.commit(record)


@router.put("/{run_id}/name", responses=refusals(400, 401, 403, 404, 422))
@audited("run.rename")
def rename_run(context: ForPoster, run_id: RunId, body: NewRunName) -> RunDetail:
    """Name a run that you posted, or remove its name. Its record and digest do not change."""

    def record(session: Session) -> RunDetail:
        named = posting.rename_run(session, run_id, body.name, context.caller)
        return service.detail_of(named, context.base_url)

    return context.commit(record)


@router.delete("/{run_id}", responses=refusals(401, 403, 404, 422))
@audited("run.withdraw")
def withdraw_run(
    context: ForPoster,
    run_id: RunId,
    reason: Annotated[str, Query(min_length=1, max_length=500, description="public reason")],
) -> RunDetail:
    """Remove the rollouts and files of your own run. Its manifest, its digests and the reason remain."""
    posting.withdraw_run(context, run_id, reason)
    with context.read() as session:
        return service.detail_of(service.find(session, run_id), context.base_url)


def _post(form: FormData, context: Context) -> tuple[BaseModel, bool]:
    """Post the run in a form; return it and whether it is new."""
    settings = context.settings
    part = form.get("manifest")
    if part is None:
        raise HubProblem(400, "bad_form", "the form has no part `manifest` (run.json)")
    text = part.encode() if isinstance(part, str) else part.file.read(MANIFEST.most_bytes + 1)
    if len(text) > MANIFEST.most_bytes:
        raise HubProblem(413, "too_large", f"run.json is larger than {MANIFEST.most_bytes:,} bytes")
    rollouts = form.get("rollouts")
    if isinstance(rollouts, str):
        raise HubProblem(400, "bad_form", "`rollouts` must be a file part")
    artifacts: list[PostedFile] = []
    for part in form.getlist("artifacts"):
        if isinstance(part, str) or not part.filename:
            raise HubProblem(400, "bad_form", "`artifacts` must be file parts")
        artifacts.append(check_file(part.filename, part.file, MAX_ARTIFACT_BYTES))
    if len({fold(artifact.name) for artifact in artifacts}) != len(artifacts):
        raise HubProblem(422, "bad_artifact", "the names of two artifacts differ only in letter case")
    manifest = manifests.parse(text)
    if manifest.kind == "evaluation" and rollouts is None:
        raise HubProblem(400, "bad_form", "the form has no file part `rollouts`")
    private = form.get("private", "false")
    if private not in ("true", "false"):
        raise HubProblem(400, "bad_form", "`private` must be `true` or `false`")
    try:
        name = NewRunName.model_validate({"name": form.get("name", "")}).name
    except ValidationError as error:
        raise refusal_of(error) from None
    with context.read() as session:
        posting.require_permission(session, manifest, context.caller)
    with tempfile.TemporaryFile() as plain:
        lines: list[FilePosition] = []
        if rollouts is not None:
            unpack(rollouts.file, plain, settings.max_run_bytes, "the rollouts are")
            lines = lines_that_count(plain, PinnedRun.of(manifest))
        return post_whole(context, text, plain, lines, artifacts, private=private == "true", name=name)
