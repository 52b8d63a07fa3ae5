"""The simple index of every owner, the combined index of all namespaces, and the files they list.

Most public requests are handled before they reach these routes (`direct`). Installers send more of them than
of any other kind, so each route opens its session itself: one hand-over to a thread instead of three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlencode

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from wander_hub.database import Database
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import File
from wander_hub.http.boundary import HubDatabase, HubStorage, open_to_jobs, optional_identity
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.responses import etag_matches, from_beginning, stored_object
from wander_hub.http.routing import HubRouter
from wander_hub.identity import JOB_TOKEN
from wander_hub.index import service
from wander_hub.index.direct import CachedResponse, file_caching, metadata_response, page_response
from wander_hub.index.downloads import DownloadCounter
from wander_hub.index.negotiation import HTML_V1, JSON_V1, choose_encoding, negotiate
from wander_hub.index.schemas import Absent, IndexedProject, NamespaceInfo, RenderedPage
from wander_hub.index.upstream import Upstream
from wander_hub.storage import Storage

router = HubRouter(tags=["index"])
Answers: TypeAlias = dict[int | str, dict[str, Any]]
Route = TypeVar("Route", bound=Callable[..., Any])

_PAGES: Answers = {200: {"content": {JSON_V1: {}, HTML_V1: {}, "text/html": {}}, "description": "The page"}}
_BYTES: Answers = {200: {"content": {"application/octet-stream": {}}, "description": "The file"}}

_FILES: Answers = {
    **_BYTES,
    206: {"content": {"application/octet-stream": {}}, "description": "The requested range"},
    302: {"description": "Redirect to the object store, which sends the file from the address in `Location`"},
}

FileName = Annotated[str, Path(max_length=255)]
Format = Annotated[
    str | None, Query(alias="format", max_length=80, description="takes precedence over the Accept header")
]


def _serve(path: str, content: Answers, *refused: int) -> Callable[[Route], Route]:
    """Handle GET and HEAD at a path; the API description includes only GET."""

    def register(route: Route) -> Route:
        router.head(path, include_in_schema=False)(route)
        responses = {**content, **refusals(*refused)}
        return open_to_jobs(router.get(path, responses=responses, response_class=Response)(route))

    return register


@router.get("/simple/namespaces", responses=refusals(401))
def list_namespaces(request: Request, database: HubDatabase) -> list[NamespaceInfo]:
    """List the namespaces that have projects in the combined index (PEP 752)."""
    with database.read(optional_identity(request)) as session:
        return service.list_namespaces(session)


@router.get("/simple/namespace/{namespace}", responses=refusals(401, 404, 422))
def get_namespace(request: Request, database: HubDatabase, namespace: str) -> NamespaceInfo:
    """Return the owner of a namespace and the namespaces around it (PEP 752)."""
    with database.read(optional_identity(request)) as session:
        return service.find_namespace(session, namespace)


@_serve("/simple/", _PAGES, 401, 406, 422)
def list_combined(request: Request, database: HubDatabase, format: Format = None) -> Response:
    """List the projects that owners offer in their own namespaces: `alice` and `alice-*` for the owner
    `alice`."""
    media_type = _media_type(request, format)
    with database.read(optional_identity(request)) as session:
        page = service.render_combined_root(session, media_type)
    return _answer(request, page_response(page))


@_serve("/simple/{project}/", _PAGES, 401, 404, 406, 422)
def list_combined_files(
    request: Request, database: HubDatabase, project: str, format: Format = None
) -> Response:
    """List the files of a project in its owner's namespace, as on the page of the owner's index."""
    return _project_page(request, database, IndexedProject(None, project), format)


@_serve("/{owner}/simple/", _PAGES, 401, 404, 406, 422)
def list_projects(request: Request, database: HubDatabase, owner: str, format: Format = None) -> Response:
    """List the projects of an owner (PEP 503, 691)."""
    media_type = _media_type(request, format)
    encoding = choose_encoding(request.headers.get("accept-encoding"))
    with database.read(optional_identity(request)) as session:
        environment_service.require_owner(session, owner)
        page = service.find_root(session, owner, media_type, encoding)
    return _answer(request, page_response(page))


@_serve("/{owner}/simple/{project}/", _PAGES, 401, 404, 406, 422)
def list_files(
    request: Request,
    database: HubDatabase,
    owner: str,
    project: str,
    format: Format = None,
) -> Response:
    """List the files of a project (PEP 503, 592, 629, 658, 691, 700, 714, 792)."""
    return _project_page(request, database, IndexedProject(owner, project), format)


@router.api_route("/{owner}/index/", methods=["GET", "HEAD"], include_in_schema=False)
def list_sole(request: Request, owner: str) -> Response:
    """Redirect to the project list of the owner; the projects of the index behind the hub are not listed."""
    return _redirect(request, _index_path(owner, None))


@_serve("/{owner}/index/{project}/", _PAGES, 401, 404, 406, 409, 422, 503)
async def list_sole_files(
    request: Request,
    database: HubDatabase,
    owner: str,
    project: str,
    format: Format = None,
    held: bool = False,
) -> Response:
    """List the files of a project in an index that needs no other: from this hub or the index behind it.

    A name that the hub has never comes from elsewhere. With `held`, every other name is a 404.
    """
    upstream: Upstream = request.app.state.upstream
    media_type = _media_type(request, format)
    encoding = choose_encoding(request.headers.get("accept-encoding"))

    def look() -> RenderedPage | IndexedProject | Absent:
        with database.read(optional_identity(request)) as session:
            return service.find_sole(session, owner, project, media_type, encoding)

    found = await run_in_threadpool(look)
    if isinstance(found, RenderedPage):
        return _answer(request, page_response(found))
    if isinstance(found, IndexedProject) and found.owner is not None:
        return _redirect(request, _index_path(*found), 307)
    behind = None
    absent = found if isinstance(found, Absent) else None
    try:
        if not held:
            hidden = absent is not None and absent.hidden
            behind = await upstream.page(project, media_type, encoding, hidden=hidden)
    except HubProblem as silence:
        # Where the hub hides names, a 503 would reveal the names that it does not have.
        raise (absent.refusal if absent is not None and absent.refusal.status == 401 else silence) from None
    if behind is None:
        if absent is not None:
            raise absent.refusal
        return _redirect(request, _index_path(None, project), 307)
    if absent is None:
        detail = f"`{project}` is both in another owner's namespace on this hub and in the index behind it"
        hint = "name the file's address, or install from the index of its owner, `/OWNER/simple/`"
        raise HubProblem(409, "ambiguous_name", detail, hint=hint)
    return _answer(request, page_response(behind))


@router.api_route("/{owner}/legacy/+simple/{project}/", methods=["GET", "HEAD"], include_in_schema=False)
def list_files_for_hatch(request: Request, database: HubDatabase, owner: str, project: str) -> Response:
    """List the files already uploaded, at the address where `hatch publish` looks for them."""
    return _project_page(request, database, IndexedProject(owner, project), None)


@_serve("/files/{project}/{filename}.metadata", _BYTES, 401, 403, 404, 410, 422)
def get_combined_core_metadata(
    request: Request, database: HubDatabase, project: str, filename: FileName
) -> Response:
    """Download the METADATA of a wheel in the combined index."""
    return _core_metadata(request, database, IndexedProject(None, project), filename)


@_serve("/{owner}/files/{project}/{filename}.metadata", _BYTES, 401, 403, 404, 410, 422)
def get_core_metadata(
    request: Request, database: HubDatabase, owner: str, project: str, filename: FileName
) -> Response:
    """Download the METADATA of a wheel, byte for byte (PEP 658)."""
    return _core_metadata(request, database, IndexedProject(owner, project), filename)


@_serve("/files/{project}/{filename}", _FILES, 401, 403, 404, 410, 416, 422)
def get_combined_file(
    request: Request, database: HubDatabase, storage: HubStorage, project: str, filename: FileName
) -> Response:
    """Download a distribution file from the combined index."""
    return _distribution(request, database, storage, IndexedProject(None, project), filename)


@_serve("/{owner}/files/{project}/{filename}", _FILES, 401, 403, 404, 410, 416, 422)
def get_file(
    request: Request,
    database: HubDatabase,
    storage: HubStorage,
    owner: str,
    project: str,
    filename: FileName,
) -> Response:
    """Download a distribution file; range and conditional requests are supported."""
    return _distribution(request, database, storage, IndexedProject(owner, project), filename)


def _project_page(
    request: Request, database: Database, place: IndexedProject, wanted: str | None
) -> Response:
    media_type = _media_type(request, wanted)
    encoding = choose_encoding(request.headers.get("accept-encoding"))
    with database.read(optional_identity(request)) as session:
        page = service.find_page(session, place, media_type, encoding)
    return _answer(request, page_response(page))


def _core_metadata(request: Request, database: Database, place: IndexedProject, filename: str) -> Response:
    file, caching, _private = _file(request, database, place, filename)
    answer = metadata_response(file, caching)
    if answer is None:
        raise HubProblem(404, "file_not_found", f"`{filename}` has no separate metadata")
    return _answer(request, answer)


def _distribution(
    request: Request, database: Database, storage: Storage, place: IndexedProject, filename: str
) -> Response:
    file, caching, private = _file(request, database, place, filename)
    stored = (file.sha256, file.size, "application/octet-stream", {"Cache-Control": caching})
    answer = stored_object(request, storage, *stored, private=private)
    if answer.status_code == 302 or "x-accel-redirect" in answer.headers:  # another program sends the range
        begins = from_beginning(request.headers.get("range"))
    else:
        begins = answer.status_code != 206 or answer.headers["content-range"].startswith("bytes 0-")
    if request.method == "GET" and answer.status_code != 304 and begins and not _is_own(request):
        downloads: DownloadCounter = request.app.state.downloads
        downloads.note(file.version_id)
    return answer


def _is_own(request: Request) -> bool:
    caller = optional_identity(request)
    return caller is not None and caller.token.name.startswith(JOB_TOKEN)


def _file(
    request: Request, database: Database, place: IndexedProject, filename: str
) -> tuple[File, str, bool]:
    """Return a file on offer, its `Cache-Control` value, and whether it is private."""
    with database.read(optional_identity(request)) as session:
        file, environment = service.find_file(session, place, filename)
    private = environment.private
    return file, file_caching(environment.owner.name, place.project, private=private), private


def _media_type(request: Request, wanted: str | None) -> str:
    media_type = negotiate(request.headers.get("accept"), wanted)
    if media_type is None:
        hint = f"request `{JSON_V1}` or `text/html`"
        raise HubProblem(406, "not_acceptable", "the index does not offer this format", hint=hint)
    return media_type


def _answer(request: Request, answer: CachedResponse) -> Response:
    same = etag_matches(request.headers.get("if-none-match"), answer.etag)
    response = Response(b"" if same else answer.body, 304 if same else 200)
    response.raw_headers = list(answer.unchanged if same else answer.headers)
    return response


def _index_path(owner: str | None, project: str | None) -> str:
    root = f"/{owner}/simple/" if owner else "/simple/"
    return root + (f"{project}/" if project else "")


def _redirect(request: Request, path: str, status: int = 301) -> Response:
    taken = {name: value for name, value in request.query_params.items() if name == "format"}
    query = f"?{urlencode(taken)}" if taken else ""  # the only parameter that every index address takes
    # A temporary redirect must be requested again each time.
    return RedirectResponse(path + query, status, {"Cache-Control": "no-cache"} if status == 307 else None)
