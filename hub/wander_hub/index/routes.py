"""The simple index of every owner, and the files it lists.

Installers ask for these more than for all else, so each route opens its session itself: one trip to a thread
instead of three.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import RedirectResponse, Response

from wander_hub import names
from wander_hub.boundary import HubDatabase, HubStorage, optional_identity
from wander_hub.database import Database
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import File
from wander_hub.http_answers import IMMUTABLE, REVALIDATE, not_modified, stored_object
from wander_hub.index import service
from wander_hub.index.negotiation import HTML_V1, JSON_V1, negotiated
from wander_hub.index.schemas import StoredPage
from wander_hub.problems import HubProblem, documented
from wander_hub.upload.bundled import BUNDLED_OWNER

router = APIRouter(tags=["index"])

_PAGES: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON_V1: {}, HTML_V1: {}, "text/html": {}}, "description": "The page"}
}
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The file"}
}
_CSP = "sandbox; default-src 'none'"

Format = Annotated[str | None, Query(alias="format", max_length=80, description="outranks Accept")]


@router.api_route("/{owner}/simple", methods=["GET", "HEAD"], include_in_schema=False)
@router.api_route("/{owner}/simple/{project}", methods=["GET", "HEAD"], include_in_schema=False)
def add_slash(request: Request, owner: str, project: str | None = None) -> Response:
    """Every address of the index ends with a slash."""
    path = f"/{owner}/simple/" + (f"{names.normalise_environment(project)}/" if project else "")
    return _redirect(request, path)


@router.get(
    "/{owner}/simple/", responses={**_PAGES, **documented(401, 404, 406, 422)}, response_class=Response
)
@router.head("/{owner}/simple/", include_in_schema=False)
def list_projects(request: Request, database: HubDatabase, owner: str, format: Format = None) -> Response:
    """List the projects of an owner (PEP 503, 691)."""
    media_type = _media_type(request, format)
    with database.read(optional_identity(request)) as session:
        environment_service.require_owner(session, owner)
        page = service.root(session, owner, media_type)
    return _conditional(request, page)


@router.get(
    "/{owner}/simple/{project}/",
    responses={**_PAGES, **documented(401, 404, 406, 422)},
    response_class=Response,
)
@router.head("/{owner}/simple/{project}/", include_in_schema=False)
def list_files(
    request: Request,
    database: HubDatabase,
    owner: str,
    project: str,
    format: Format = None,
) -> Response:
    """List the files of a project (PEP 503, 592, 629, 658, 691, 700, 714, 792)."""
    normal = names.normalise_environment(project)
    if normal != project:
        return _redirect(request, f"/{owner}/simple/{normal}/")
    media_type = _media_type(request, format)
    with database.read(optional_identity(request)) as session:
        page = service.project(session, owner, project, media_type)
    return _conditional(request, page)


@router.get(
    "/{owner}/files/{project}/{filename}.metadata",
    responses={**_BYTES, **documented(401, 403, 404, 410, 422)},
    response_class=Response,
)
@router.head("/{owner}/files/{project}/{filename}.metadata", include_in_schema=False)
def get_core_metadata(
    request: Request, database: HubDatabase, owner: str, project: str, filename: str
) -> Response:
    """Send a wheel's METADATA byte for byte (PEP 658)."""
    file, caching = _file(request, database, owner, project, filename)
    if file.core_metadata is None:
        raise HubProblem(404, "file_not_found", f"`{filename}` is served without separate metadata")
    headers = {"ETag": f'"{file.core_metadata_sha256}"', "Cache-Control": caching}
    same = not_modified(request, headers["ETag"], headers)
    body = file.core_metadata.encode()
    return same or Response(body, media_type="application/octet-stream", headers=headers)


@router.get(
    "/{owner}/files/{project}/{filename}",
    responses={**_BYTES, **documented(401, 403, 404, 410, 416, 422)},
    response_class=Response,
)
@router.head("/{owner}/files/{project}/{filename}", include_in_schema=False)
def get_file(
    request: Request,
    database: HubDatabase,
    storage: HubStorage,
    owner: str,
    project: str,
    filename: Annotated[str, Path(max_length=255)],
) -> Response:
    """Send a distribution file; ranges and conditional requests work."""
    file, caching = _file(request, database, owner, project, filename)
    headers = {"Cache-Control": caching}
    return stored_object(request, storage, file.sha256, file.size, "application/octet-stream", headers)


def _file(request: Request, database: Database, owner: str, project: str, filename: str) -> tuple[File, str]:
    """Return a file that may be had, and how long its bytes may be kept by whom."""
    with database.read(optional_identity(request)) as session:
        environment = environments.environment_named(session, owner, project)
        if environment is None:
            service.raise_if_moved(session, owner, project)
            environment = environments.environment_once_named(session, owner, project)
        file = environments.file_of(session, environment, filename) if environment else None
        if environment is None or file is None:
            detail = f"`{owner}/{project}` has no file `{filename}`"
            raise service.missing(session, owner, detail, "file_not_found")
        if file.version.deleted_at is not None:
            raise HubProblem(410, "version_deleted", f"`{filename}` was deleted")
        if environment.quarantine_reason is not None and not environment_service.may_inspect(session):
            reason = environment.quarantine_reason
            raise HubProblem(403, "quarantined", f"`{owner}/{project}` is in quarantine: {reason}")
    return file, _caching(owner, private=environment.private)


def _caching(owner: str, *, private: bool) -> str:
    """The hub's own packages may be rebuilt under one version while they are developed; nothing else may."""
    if owner == BUNDLED_OWNER:
        return REVALIDATE
    return IMMUTABLE.replace("public", "private") if private else IMMUTABLE


def _media_type(request: Request, wanted: str | None) -> str:
    media_type = negotiated(request.headers.get("accept"), wanted)
    if media_type is None:
        hint = f"ask for `{JSON_V1}` or `text/html`"
        raise HubProblem(406, "not_acceptable", "the index has no such format", hint=hint)
    return media_type


def _conditional(request: Request, page: StoredPage) -> Response:
    headers = {
        "ETag": page.etag,
        "Cache-Control": REVALIDATE,
        "Vary": "Accept",
        "Content-Security-Policy": _CSP,
    }
    same = not_modified(request, page.etag, headers)
    return same or Response(page.body, headers={**headers, "Content-Type": page.media_type})


def _redirect(request: Request, path: str) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(path + query, 301)
