"""The legacy upload API, as twine, uv, poetry, pdm, hatch and `wander publish` speak it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import JSONResponse, Response
from wander.wire import VersionDetail

from wander_hub import names
from wander_hub.attestations.verification import FIELD, verify
from wander_hub.database import Database
from wander_hub.environments import service as environment_service
from wander_hub.http.boundary import (
    HubDatabase,
    HubSettings,
    HubStorage,
    Publisher,
    base_url_of,
    database_of,
)
from wander_hub.http.form import multipart_form
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.identity import Identity
from wander_hub.rights import rights
from wander_hub.settings import Settings
from wander_hub.storage import Storage, digest_of
from wander_hub.upload import checks, service
from wander_hub.upload.schemas import Limits, Upload

router = APIRouter(tags=["upload"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["content"],
                    "properties": {
                        ":action": {"type": "string", "enum": ["file_upload"]},
                        "protocol_version": {"type": "string", "enum": ["1"]},
                        "sha256_digest": {"type": "string"},
                        "name": {"type": "string"},
                        "version": {"type": "string"},
                        checks.CHECK_FIELD: {
                            "type": "string",
                            "maxLength": checks.CHECK_BYTES,
                            "description": "a CheckSummary as JSON, with a wheel",
                        },
                        service.VISIBILITY_FIELD: {
                            "type": "string",
                            "enum": ["private", "public"],
                            "description": "of an environment that is new; else the owner's settings decide",
                        },
                        "content": {"type": "string", "format": "binary"},
                    },
                }
            }
        },
    }
}


def may_upload(request: Request, owner: str, caller: Publisher) -> Identity:
    """Refuse a caller who may publish nothing here before a byte of the body is read."""
    with database_of(request).read(caller) as session:
        rights.find_uploading_owner(session, caller, owner)
    return caller


@router.post("/{owner}/legacy", include_in_schema=False)
@router.post(
    "/{owner}/legacy/",
    response_model=VersionDetail,
    responses=refusals(400, 401, 403, 404, 409, 413, 415, 422, 507),
    openapi_extra=_BODY,
)
async def upload_file(
    request: Request,
    owner: str,
    caller: Annotated[Identity, Depends(may_upload)],
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
) -> Response:
    """Publish one distribution file; the same bytes again get 200, other bytes 409."""
    async with multipart_form(request, max_bytes=settings.max_upload_bytes, max_files=8) as form:
        body, created = await run_in_threadpool(
            _publish, form, owner, caller, database, storage, settings, base_url_of(request)
        )
    outcome = "created" if created else "unchanged"
    return JSONResponse(body.model_dump(mode="json"), headers={"X-Wander-Upload": outcome})


def _publish(
    form: FormData,
    owner_name: str,
    caller: Identity,
    database: Database,
    storage: Storage,
    settings: Settings,
    base_url: str,
) -> tuple[VersionDetail, bool]:
    upload = _upload_from(form, names.normalise_owner(owner_name))
    check = checks.parse_check(upload)
    package = checks.check(upload, Limits.of(settings))
    attested = verify(upload.fields.get(FIELD), package.filename, package.sha256, caller.claims)
    storage.keep(upload.body, upload.sha256, upload.size)

    private = service.read_visibility(upload)

    def record(session: Session) -> tuple[VersionDetail, bool]:
        owner = rights.find_uploading_owner(session, caller, upload.owner)
        database.lock_objects(session, exclusive=False)
        storage.ensure(package.sha256, upload.body)
        published = service.publish(
            session,
            owner,
            [package],
            caller,
            check=check,
            private=private,
            open_days=settings.version_open_days,
            attested={package.filename: attested},
        )
        detail = environment_service.version_detail(published.environment, published.version, base_url)
        warnings = [*package.warnings, *attested.warnings]
        return detail.model_copy(update={"warnings": warnings}), published.created

    return database.committed(record, caller)


def _upload_from(form: FormData, owner: str) -> Upload:
    content = form.get("content")
    if not isinstance(content, UploadFile) or not content.filename:
        raise HubProblem(400, "bad_form", "the form has no file part `content`")
    body = content.file
    sha256, size = digest_of(body)
    fields: dict[str, str] = {}
    for key, value in form.multi_items():
        if isinstance(value, str):
            fields.setdefault(key, value)
    return Upload(owner, content.filename, body, size, sha256, fields)
