"""Staged uploads: open a session, send chunks, finalize. The shapes follow the draft of PEP 694.

A model's revision is sent in the same way as an environment's version, and only begun elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from fastapi import Header, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from wander.wire import VersionDetail
from wander.wire.gate import ANNOUNCEMENT
from wander.wire.models import ModelRevision, NewModel
from wander.wire.uploads import OFFSET_HEADER, NewUpload, UploadedFile, UploadSession

from wander_hub.http.bodies import plain_body, whole
from wander_hub.http.boundary import Context, ForPublisher, audited, part_of_another
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter, takes
from wander_hub.upload import finalize as finishing
from wander_hub.upload import revisions, sessions

router = HubRouter(tags=["upload"], prefix="/api/v1/uploads")
model_router = HubRouter(tags=["models"], prefix="/api/v1/models")

_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{44}):\s*(?:,|$)")
Offset = Annotated[int, Header(alias=OFFSET_HEADER, ge=0, lt=2**40, description="where the chunk begins")]
ContentDigest = Annotated[
    str | None,
    Header(max_length=500, description="RFC 9530; its `sha-256` is held against the chunk"),
]


@router.post(
    "",
    status_code=201,
    response_model=UploadSession,
    responses={
        **refusals(400, 401, 403, 404, 409, 413, 422, 429),
        200: {"description": "the caller's open upload of the very same files", "model": UploadSession},
    },
)
@part_of_another
@takes(ANNOUNCEMENT)
def open_upload(wanted: NewUpload, context: ForPublisher) -> Response:
    """Announce all files of a version; what can be said against them is said before a byte is sent."""
    return _opened(context, *sessions.begin(context, wanted))


@model_router.post(
    "",
    status_code=201,
    response_model=UploadSession,
    responses={
        **refusals(400, 401, 403, 404, 409, 410, 413, 422, 429),
        200: {"description": "the caller's open upload of this revision", "model": UploadSession},
    },
)
@part_of_another
@takes(ANNOUNCEMENT)
def open_model_upload(wanted: NewModel, context: ForPublisher) -> Response:
    """Announce all files of a model's revision; they are sent and finalized as an upload."""
    return _opened(context, *revisions.begin(context, wanted))


def _opened(context: Context, found: UploadSession, created: bool) -> Response:
    headers = {"Location": f"{context.base_url}/api/v1/uploads/{found.id}"}
    return JSONResponse(found.model_dump(mode="json"), 201 if created else 200, headers=headers)


@router.get("/{session_id}", responses=refusals(401, 403, 404, 422))
def show_upload(session_id: str, context: ForPublisher) -> UploadSession:
    """Show an upload of the caller's: how far each file is."""
    with context.read() as session:
        return sessions.describe_session(sessions.find(session, context.caller, session_id), context)


@router.head("/{session_id}/files/{filename}", include_in_schema=False)
@router.get("/{session_id}/files/{filename}", responses=refusals(401, 403, 404, 409, 422))
def show_file(session_id: str, filename: str, context: ForPublisher, response: Response) -> UploadedFile:
    """Show how far a file is; `Upload-Offset` says where the next chunk begins."""
    with context.read() as session:
        _, file = sessions.find_file(session, context.caller, session_id, filename)
        response.headers[OFFSET_HEADER] = str(file.received)
        response.headers["Cache-Control"] = "no-store"
        return sessions.describe_file(file, context.base_url)


@router.put(
    "/{session_id}/files/{filename}",
    response_model=UploadedFile,
    responses=refusals(400, 401, 403, 404, 409, 413, 422, 507),
    openapi_extra=plain_body(),
)
@part_of_another
async def send_chunk(
    request: Request,
    session_id: str,
    filename: str,
    upload_offset: Offset,
    context: ForPublisher,
    content_digest: ContentDigest = None,
) -> Response:
    """Send the next chunk of a file; at a wrong offset the answer is a 409 that tells the right one."""
    stated = _sha256_in(content_digest)
    await run_in_threadpool(_expect, context, session_id, filename)
    most = context.settings.upload_chunk_bytes
    too_large = HubProblem(413, "chunk_too_large", f"the chunk is over this hub's {most:,} bytes")
    content = await whole(request, most, too_large)  # one that breaks off counts for nothing
    found = await run_in_threadpool(
        sessions.receive, context, session_id, filename, upload_offset, content, stated
    )
    return JSONResponse(found.model_dump(mode="json"), headers={OFFSET_HEADER: str(found.offset)})


@router.post(
    "/{session_id}/finalize",
    response_model=VersionDetail | ModelRevision,
    responses=refusals(401, 403, 404, 409, 413, 422, 503, 507),
)
@audited("version.publish")
def finalize_upload(session_id: str, context: ForPublisher) -> Response:
    """Publish all files of an upload at once, or none of them; again is fine."""
    with context.read() as session:
        of_model = sessions.find(session, context.caller, session_id).of_model
    detail: VersionDetail | ModelRevision
    if of_model:
        detail, created = revisions.finalize(context, session_id)
    else:
        detail, created = finishing.finalize(context, session_id)
    outcome = "created" if created else "unchanged"
    return JSONResponse(detail.model_dump(mode="json"), headers={"X-Wander-Upload": outcome})


@router.delete("/{session_id}", status_code=204, responses=refusals(401, 403, 404, 409, 422))
@part_of_another
def cancel_upload(session_id: str, context: ForPublisher) -> None:
    """Call an upload off and drop what was sent."""
    sessions.cancel(context, session_id)
    finishing.drop_staged(context.storage, session_id)


def _expect(context: Context, session_id: str, filename: str) -> None:
    """Refuse a chunk of nothing that is under way, before its bytes are read."""
    with context.read() as session:
        sessions.find_file(session, context.caller, session_id, filename)


def _sha256_in(header: str | None) -> str | None:
    """Return the SHA-256 in hexadecimal that a `Content-Digest` states."""
    if header is None:
        return None
    found = _DIGEST.search(header)
    try:
        return base64.b64decode(found[1], validate=True).hex() if found else None
    except binascii.Error as error:
        raise HubProblem(422, "bad_digest", "the `sha-256` of `Content-Digest` is no base64") from error
