"""Renders an owner's index pages with each change, and finds the page that a request asks for.

A page belongs to a project name as it appears in file names. Most environments have one such name; a renamed
environment keeps the page of its former name, because the files published under that name still carry it.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from wander_hub import names
from wander_hub.accounts.models import Owner
from wander_hub.database import READER
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import Environment, File
from wander_hub.http.problems import HubProblem, Moved
from wander_hub.identity import Identity
from wander_hub.index import namespaces, rendering, repository
from wander_hub.index.negotiation import JSON_V1
from wander_hub.index.schemas import Absent, IndexedProject, NamespaceInfo, RenderedPage
from wander_hub.names import BUNDLED_OWNER

CHALLENGE = {"WWW-Authenticate": 'Basic realm="wander"'}


def write_pages(session: Session, environment: Environment, *, as_listed: bool = False) -> None:
    """Render the pages of an environment, and the owner's project list.

    With `as_listed`, the change affects the project list only if a page is added or removed.
    """
    projects = projects_of(session, environment)
    if environment.private:
        repository.note_private(session, environment.owner_id, projects)
    present = repository.pages_of(session, environment.id, whole=False)
    gone = [page for page in present if page.owner_id != environment.owner_id or page.project not in projects]
    for page in gone:
        session.delete(page)
    session.flush()
    new = [
        repository.store_page(
            session,
            environment.owner_id,
            name,
            environment.id,
            html=rendering.project_html(project),
            json=rendering.project_json(project),
        )
        for name, project in projects.items()
    ]
    session.flush()
    if not as_listed or gone or any(new):
        write_root(session, environment.owner)


def projects_of(session: Session, environment: Environment) -> dict[str, rendering.Project]:
    """Return the projects of an environment by name; a deleted environment keeps a page without files.

    Without that page, an installer would look for the name in another index, where anyone may offer it.
    """
    files_by_name: dict[str, list[environments.OfferedFile]] = {environment.name: []}
    for file, offered in environments.files_for_pages(session, environment):
        name = names.distribution_of(file.filename)
        files_by_name.setdefault(name, []).extend([file] if offered else [])
    return {
        name: rendering.Project(
            name=name,
            status=environment_service.status_of(environment),
            reason=environment_service.reason_of(environment),
            files=files,
            namespace=_own_namespace(session, environment.owner, name),
        )
        for name, files in sorted(files_by_name.items())
    }


def _own_namespace(session: Session, owner: Owner, project: str) -> str | None:
    if not namespaces.covers(owner.name, project):
        return None
    held_by = repository.owner_of_namespaces(session, namespaces.namespaces_of(project))
    return owner.name if held_by == owner.name else None


def write_root(session: Session, owner: Owner) -> None:
    """Render the owner's public project list."""
    projects = repository.public_projects_of(session, owner.id)
    repository.store_page(
        session,
        owner.id,
        "",
        None,
        html=rendering.root_html(owner.name, projects),
        json=rendering.root_json(projects),
    )


def find_page(session: Session, place: IndexedProject, media_type: str, encoding: str | None) -> RenderedPage:
    """Return the stored page of a project, or raise the reason why the caller cannot have it."""
    reader: Identity | None = session.info.get(READER)
    if reader is not None and reader.only_version is not None:
        own = environments.environment_numbered(session, reader.only_environment or 0)
        offered = projects_of(session, own) if own and place.owner in (None, own.owner.name) else {}
        if place.project in offered:  # the project's other versions are not listed
            return _render(offered[place.project], media_type)
    query = repository.page_query(place, media_type, encoding, reader)
    row = session.execute(query, place.values()).first()
    if row is not None:
        return RenderedPage.of(tuple(row), media_type, encoding)
    owner = place.owner or owner_of(session, place.project)
    _raise_if_moved(session, owner, place)
    raise refuse_missing(
        session, IndexedProject(owner, place.project), f"`{owner}` does not have a project `{place.project}`"
    )


def find_sole(
    session: Session, owner: str, project: str, media_type: str, encoding: str | None
) -> RenderedPage | IndexedProject | Absent:
    """Return the page of a name in an owner's only index, or the place to redirect to.

    Names that the owner has or ever had come first, then those of `wander`, then those of another owner in
    its own namespace. Only the index behind the hub can have an absent name, unless it is hidden.
    """
    environment_service.require_owner(session, owner)
    # All queries run in any case, so that the time they take does not reveal what the owner hides.
    mine = repository.holds(session, owner, project)
    bundled = repository.holds(session, BUNDLED_OWNER, project)
    space = repository.owner_of_namespaces(session, namespaces.namespaces_of(project)) or owner
    elsewhere = repository.holds(session, space, project)
    if namespaces.covers(BUNDLED_OWNER, project) and not mine:
        return IndexedProject(BUNDLED_OWNER, project)
    place = IndexedProject(owner if mine or space == owner else None, project)
    if bundled and not mine:
        place = IndexedProject(BUNDLED_OWNER, project)
    try:
        page = find_page(session, place, media_type, encoding)
    except HubProblem as refusal:
        held = mine or bundled or elsewhere
        if held and refusal.status != 401:
            raise
        return Absent(_refuse_absent(session, owner, space, project), held)
    return page if mine else place


def _refuse_absent(session: Session, owner: str, space: str, project: str) -> HubProblem:
    """Return the same error for a name that nobody has and for a name that one of the owners hides."""
    for other in (BUNDLED_OWNER, space):
        if other != owner and _is_closed(session, other):
            return _token_required()
    detail = f"neither this hub nor the index behind it has `{project}`"
    return refuse_missing(session, IndexedProject(owner, project), detail)


def find_root(session: Session, owner: str, media_type: str, encoding: str | None) -> RenderedPage:
    """Return the owner's project list: the stored public list, or a list made for a reader who may see
    more."""
    if session.info.get(READER) is None:
        place = IndexedProject(owner, "")
        values = {**place.values(), "nothing": rendering.root_json([])}
        row = session.execute(repository.page_query(place, media_type, encoding), values).first()
        if row is not None:
            return RenderedPage.of(tuple(row), media_type, encoding)
    projects = repository.projects_of(session, owner)
    if not projects and _is_closed(session, owner):
        raise _token_required()
    return _fresh(owner, list(projects), media_type)


def find_file(session: Session, place: IndexedProject, filename: str) -> tuple[File, Environment]:
    """Return a file on offer at a place, and its environment."""
    owner, project = place.owner or owner_of(session, place.project), place.project
    environment = environments.environment_named(session, owner, project)
    if environment is None:
        _raise_if_moved(session, owner, place)
        environment = environments.environment_once_named(session, owner, project)
    file = environments.file_of(session, environment, filename) if environment else None
    if environment is None or file is None:
        detail = f"`{owner}/{project}` does not have a file `{filename}`"
        raise refuse_missing(session, IndexedProject(owner, project), detail, "file_not_found")
    if file.version.deleted_at is not None:
        raise HubProblem(410, "version_deleted", f"`{filename}` was deleted")
    if environment.quarantine_reason is not None and not environment_service.may_inspect(session):
        reason = environment.quarantine_reason
        raise HubProblem(403, "quarantined", f"`{owner}/{project}` is in quarantine: {reason}")
    return file, environment


def owner_of(session: Session, project: str) -> str:
    """Return the owner of a name in the combined index; raise a 404 for a name in no namespace."""
    spaces = namespaces.namespaces_of(names.normalize_environment(project))
    owner = repository.owner_of_namespaces(session, spaces)
    if owner is None:
        detail = f"`{project}` is not in any owner's namespace"
        hint = "projects with other names are in the index of their owner, `/OWNER/simple/`"
        raise HubProblem(404, "project_not_found", detail, hint=hint)
    return owner


def render_combined_root(session: Session, media_type: str) -> RenderedPage:
    """Return the project list of the combined index, rendered on request: few clients want it, and every
    change alters it."""
    return _fresh("all namespaces", [name for name, _ in _list_combined(session)], media_type)


def find_namespace(session: Session, name: str) -> NamespaceInfo:
    """Return one namespace; raise a 404 if the caller cannot see anything in it."""
    for namespace in list_namespaces(session, name):
        if namespace.name == name:
            return namespace
    raise HubProblem(404, "namespace_not_found", f"namespace `{name}` not found")


def list_namespaces(session: Session, around: str | None = None) -> list[NamespaceInfo]:
    """Return the namespaces with projects in the combined index that the caller may see.

    `around` limits them to one namespace and those above and below it.
    """
    spaces = sorted({owner for _, owner in _list_combined(session, around)})
    return [
        NamespaceInfo(
            name=space,
            owner=space,
            parent=next(
                (other for other in reversed(namespaces.namespaces_of(space)[:-1]) if other in spaces), None
            ),
            children=[other for other in spaces if space != other and namespaces.covers(space, other)],
        )
        for space in spaces
    ]


def _list_combined(session: Session, around: str | None = None) -> list[tuple[str, str]]:
    """Return the name and owner of every project in the combined index that the caller may see, by name."""
    offered = repository.projects_in_namespaces(session, around)
    spaces = {space for name, _ in offered for space in namespaces.namespaces_of(name)}
    ages = repository.owner_ages(session, spaces)
    return [
        (name, owner)
        for name, owner in offered
        if owner == namespaces.oldest(namespaces.namespaces_of(name), ages)
    ]


def _raise_if_moved(session: Session, owner: str, place: IndexedProject) -> None:
    """Redirect from the name of an environment that moved to another owner.

    In the combined index, a project that left its namespace is a 404: nobody else can have the name there.
    """
    moved = environments.environment_once_named(session, owner, place.project)
    if moved is None or moved.owner.name == owner:
        return
    if place.owner is not None:
        raise Moved(moved.owner.name, place.project)
    new = f"{moved.owner.name}/{place.project}"
    detail = f"`{place.project}` is now `{new}`, outside the namespace `{owner}`"
    raise refuse_missing(session, IndexedProject(owner, place.project), detail)


def refuse_missing(
    session: Session, place: IndexedProject, detail: str, code: str = "project_not_found"
) -> HubProblem:
    """Return the error for a name or file that is missing or hidden from the caller, who must not learn
    which.

    If an owner has or had environments that the caller may not see, everyone except the owner's members gets
    the same 401 for every name that is not open to them, and members get it for names that were ever private.
    uv stops at a 401, whereas a 404 would make it try the next index, where anyone may offer the name; pip
    continues in both cases.
    """
    assert place.owner is not None
    reader: Identity | None = session.info.get(READER)
    if _sees_all(reader) or _may_begin(session, reader, place):
        return HubProblem(404, code, detail)
    if _is_closed(session, place.owner) or repository.was_private(session, place.owner, place.project):
        return _token_required()
    return HubProblem(404, code, detail)


def _sees_all(reader: Identity | None) -> bool:
    """Return whether a reader may see everything: an administrator with an unlimited token."""
    return (
        reader is not None and reader.admin and reader.only_owner is None and reader.only_environment is None
    )


def _may_begin(session: Session, reader: Identity | None, place: IndexedProject) -> bool:
    """Return whether the token may publish this name, which is free: its uploader looks the name up first."""
    if reader is None or reader.only_new is None or reader.only_new[1] != place.project:
        return False
    owner = session.get(Owner, reader.only_new[0])
    return owner is not None and owner.name == place.owner


def _is_closed(session: Session, owner: str) -> bool:
    """Return whether the caller gets the same 401 for every name of an owner that is not open to them."""
    reader: Identity | None = session.info.get(READER)
    if reader is not None and reader.only_version is not None:
        return False  # a job of the hub: names that were ever private are refused one by one
    return not _sees_all(reader) and repository.is_closed_to(session, owner, reader)


def _token_required() -> HubProblem:
    hint = "add the token to the index address as `https://__token__:TOKEN@...`, or to a netrc file"
    detail = "this index needs an API token"
    return HubProblem(401, "token_required", detail, hint=hint, headers=dict(CHALLENGE))


def _render(project: rendering.Project, media_type: str) -> RenderedPage:
    render = rendering.project_json if media_type == JSON_V1 else rendering.project_html
    body = render(project)
    return RenderedPage(body, media_type, repository.etag_of(body))


def _fresh(owner: str, projects: list[str], media_type: str) -> RenderedPage:
    is_json = media_type == JSON_V1
    body = rendering.root_json(projects) if is_json else rendering.root_html(owner, projects)
    return RenderedPage(body, media_type, repository.etag_of(body))
