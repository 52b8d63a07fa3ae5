"""The upload API for versions and models: uploads in parts, and the legacy form of twine, uv, poetry and
pdm."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import JSONResponse, Response
from wander.wire import VersionDetail
from wander.wire.models import ModelRevision, NewModel
from wander.wire.transfers import NewUpload
from wander.wire.untrusted_text import ANNOUNCEMENT, CHECK_REPORT

from wander_hub import names
from wander_hub.attestations.verification import FIELD, verify_attestations
from wander_hub.environments import service as environment_service
from wander_hub.http.bodies import form_body, multipart_form
from wander_hub.http.boundary import Context, ForPublisher, audited, part_of_upload
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter, body_limits
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.storage import digest_of
from wander_hub.transfers.routes import OPENING, opened, routes_of
from wander_hub.upload import checks, revisions, service, versions
from wander_hub.upload.revisions import MODELS
from wander_hub.upload.schemas import Upload
from wander_hub.upload.versions import VERSIONS

router = HubRouter(tags=["upload"])
version_router = routes_of(VERSIONS, "publish", "version.publish", VersionDetail, "upload")
model_router = routes_of(MODELS, "publish", "version.publish", ModelRevision, "models")

_BODY = form_body(
    {
        ":action": {"type": "string", "enum": ["file_upload"]},
        "protocol_version": {"type": "string", "enum": ["1"]},
        "sha256_digest": {"type": "string"},
        "name": {"type": "string"},
        "version": {"type": "string"},
        checks.CHECK_FIELD: {
            "type": "string",
            "maxLength": CHECK_REPORT.most_bytes,
            "description": "a CheckSummary in JSON, sent with a wheel",
        },
        service.VISIBILITY_FIELD: {
            "type": "string",
            "enum": ["public", "internal", "private"],
            "description": "visibility of a new environment; by default the owner's setting",
        },
        "content": {"type": "string", "format": "binary"},
    },
    required="content",
)


@version_router.post("", **OPENING)
@part_of_upload
@body_limits(ANNOUNCEMENT)
def open_version_transfer(wanted: NewUpload, context: ForPublisher) -> Response:
    """Announce all files of a version; problems that the announcement reveals are reported before the
    upload."""
    return opened(context, *versions.announce(context, wanted))


@model_router.post("", **OPENING)
@part_of_upload
@body_limits(ANNOUNCEMENT)
def open_model_transfer(wanted: NewModel, context: ForPublisher) -> Response:
    """Announce all files of a model revision."""
    return opened(context, *revisions.announce(context, wanted))


def may_upload(owner: str, context: ForPublisher) -> Context:
    """Refuse a caller who cannot publish here before the body is read."""
    with context.read() as session:
        rights.find_uploading_owner(session, context.caller, owner)
    return context


@router.post("/{owner}/legacy", include_in_schema=False)
@router.post(
    "/{owner}/legacy/",
    response_model=VersionDetail,
    responses=refusals(400, 401, 403, 404, 409, 413, 415, 422, 507),
    openapi_extra=_BODY,
)
@audited("version.publish")
async def upload_file(
    request: Request, owner: str, context: Annotated[Context, Depends(may_upload)]
) -> Response:
    """Publish one distribution file; repeating the upload returns 200, different bytes return 409."""
    max_bytes = context.settings.max_upload_bytes
    async with multipart_form(request, max_bytes=max_bytes, max_files=8) as form:
        body, created = await run_in_threadpool(_publish, form, owner, context)
    outcome = "created" if created else "unchanged"
    return JSONResponse(body.model_dump(mode="json"), headers={"X-Wander-Upload": outcome})


def _publish(form: FormData, owner_name: str, context: Context) -> tuple[VersionDetail, bool]:
    content = form.get("content")
    if not isinstance(content, UploadFile) or not content.filename:
        raise HubProblem(400, "bad_form", "the form does not have a file part `content`")
    fields: dict[str, str] = {}
    for key, value in form.multi_items():
        if isinstance(value, str):
            fields.setdefault(key, value)
    sha256, size = digest_of(content.file)
    owner_name = names.normalize_owner(owner_name)
    upload = Upload(owner_name, content.filename, content.file, size, sha256, fields)
    check = checks.parse_check(upload)
    caller, database, storage = context.caller, context.database, context.storage
    package = checks.check(upload, context.settings)
    attested = verify_attestations(fields.get(FIELD), package.filename, sha256, caller.claims)
    visibility = service.read_visibility(upload)
    with context.read() as session:
        owner = rights.find_uploading_owner(session, caller, owner_name)
        files, place = {package.filename: sha256}, (owner, package.name, package.version)
        open_days = context.settings.version_open_days
        known = service.place_for(
            session, *place, files, caller, visibility=visibility, open_days=open_days
        ).version
        quotas.require_quota(
            session, context.settings, owner, files={sha256: size}, versions=0 if known is not None else 1
        )
    storage.keep(upload.body, sha256, size)

    def record(session: Session) -> tuple[VersionDetail, bool]:
        owner = rights.find_uploading_owner(session, caller, owner_name)
        database.lock_objects(session, exclusive=False)
        storage.ensure(sha256, upload.body)
        published = service.publish(
            *(session, owner, [package], caller),
            check=check,
            visibility=visibility,
            open_days=context.settings.version_open_days,
            attested={package.filename: attested},
        )
        if published.created:
            quotas.require_room(session, context.settings, owner, quotas.OF_VERSIONS)
        environment, version = published.environment, published.version
        detail = environment_service.version_detail(environment, version, context.base_url)
        warnings = [*package.warnings, *attested.warnings]
        return detail.model_copy(update={"warnings": warnings}), published.created

    return context.commit(record)
