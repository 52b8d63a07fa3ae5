"""The API for reading models. Files are sent whole or as ranges, so that a download can be resumed."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response
from wander.wire.models import ModelRevision, ModelRevisions

from wander_hub.http.boundary import BaseUrl, HubStorage, ReadSession
from wander_hub.http.problems import refusals
from wander_hub.http.responses import REVALIDATE, stored_object
from wander_hub.http.routing import HubRouter
from wander_hub.models import service

router = HubRouter(prefix="/api/v1/models/{owner}/{name}", tags=["models"])

_REFUSALS = refusals(404, 410, 422)
_BYTES = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.get("", responses=_REFUSALS)
def get_model(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> ModelRevisions:
    """Show a model with all its revisions, newest first."""
    return service.describe(session, service.find(session, owner, name), base_url)


@router.get("/revisions/{revision}", responses=_REFUSALS)
def get_revision(
    session: ReadSession, base_url: BaseUrl, owner: str, name: str, revision: str
) -> ModelRevision:
    """Show a revision by its digest, by the start of the digest, or as `latest`."""
    model = service.find(session, owner, name)
    return service.describe_revision(service.find_revision(session, model, revision), base_url)


@router.head("/revisions/{revision}/files/{filename}", include_in_schema=False)
@router.get(
    "/revisions/{revision}/files/{filename}",
    response_class=Response,
    responses={200: {"description": "The file", **_BYTES}, **refusals(404, 410, 416, 422)},
)
def get_file(
    request: Request,
    session: ReadSession,
    storage: HubStorage,
    owner: str,
    name: str,
    revision: str,
    filename: str,
) -> Response:
    """Send a file of a revision, or a range of it."""
    model = service.find(session, owner, name)
    file = service.find_file(session, model, revision, filename)
    headers = {"Cache-Control": REVALIDATE}
    kind = "application/octet-stream"
    return stored_object(request, storage, file.sha256, file.size, kind, headers, private=model.private)
