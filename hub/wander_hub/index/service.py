"""Writes an owner's index pages with each change, and finds the one that a request asks for.

A page belongs to a project as its files name it. Most environments have one such name; one that was renamed
keeps the page of its former name, since the files published under that name still carry it.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from wander_hub import names
from wander_hub.accounts.models import Owner
from wander_hub.database import PUBLIC_FILES, READER
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import Environment, File
from wander_hub.http.problems import HubProblem, Moved
from wander_hub.identity import Identity
from wander_hub.index import namespaces, rendering, repository
from wander_hub.index.negotiation import JSON_V1
from wander_hub.index.public_files import PublicFiles
from wander_hub.index.schemas import IndexedProject, NamespaceInfo, RenderedPage
from wander_hub.names import BUNDLED_OWNER

CHALLENGE = {"WWW-Authenticate": 'Basic realm="wander"'}


def write_pages(session: Session, environment: Environment, *, as_listed: bool = False) -> None:
    """Render what the index shows of an environment, and the owner's list.

    `as_listed` says that the change alters nothing in the list but by a page that comes or goes.
    """
    projects = projects_of(session, environment)
    if environment.private:
        repository.note_private(session, environment.owner_id, projects)
    present = repository.pages_of(session, environment.id, whole=False)
    gone = [page for page in present if page.owner_id != environment.owner_id or page.project not in projects]
    links: PublicFiles | None = session.info.get(PUBLIC_FILES)
    if links is not None:
        offered = {
            name: {one.filename: one.sha256 for one in every.files} for name, every in projects.items()
        }
        places = [(session.get_one(Owner, page.owner_id).name, page.project) for page in gone]
        links.changed(session, environment, offered, places)
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
    """Return the projects of an environment by name; a deleted one keeps a page without files.

    Without that page an installer would look for the name elsewhere, where anybody may offer it.
    """
    found: dict[str, list[environments.OfferedFile]] = {environment.name: []}
    for file, offered in environments.files_for_pages(session, environment):
        name = names.distribution_of(file.filename)
        found.setdefault(name, []).extend([file] if offered else [])
    return {
        name: rendering.Project(
            name=name,
            status=environment_service.status_of(environment),
            reason=environment_service.reason_of(environment),
            files=files,
            namespace=_own_namespace(session, environment.owner, name),
        )
        for name, files in sorted(found.items())
    }


def _own_namespace(session: Session, owner: Owner, project: str) -> str | None:
    if not namespaces.covers(owner.name, project):
        return None
    held_by = repository.owner_of_namespaces(session, namespaces.namespaces_of(project))
    return owner.name if held_by == owner.name else None


def write_root(session: Session, owner: Owner) -> None:
    """Render the owner's list of projects as the public sees it."""
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
    """Return the page of a project as it is stored, or say why there is none for this caller."""
    reader: Identity | None = session.info.get(READER)
    if reader is not None and reader.only_version is not None:
        own = environments.environment_numbered(session, reader.only_environment or 0)
        offered = projects_of(session, own) if own and place.owner in (None, own.owner.name) else {}
        if place.project in offered:  # its other versions are not listed
            return _render(offered[place.project], media_type)
    query = repository.page_query(place, media_type, encoding, reader)
    row = session.execute(query, place.values()).first()
    if row is not None:
        return RenderedPage.of(tuple(row), media_type, encoding)
    owner = place.owner or owner_of(session, place.project)
    _raise_if_moved(session, owner, place)
    raise refuse_missing(
        session, IndexedProject(owner, place.project), f"`{owner}` offers no project `{place.project}`"
    )


def find_sole(
    session: Session, owner: str, project: str, media_type: str, encoding: str | None
) -> RenderedPage | IndexedProject | None:
    """Return the page or the place of a name that the hub holds, of an owner's sole index.

    First comes what the owner has or ever had, then what `wander` has, then what another owner has in its own
    namespace. None says that only the index behind the hub may have it.
    """
    environment_service.require_owner(session, owner)
    # All of it is asked for in any case: the time that it takes tells nobody what the owner hides.
    mine = repository.holds(session, owner, project)
    bundled = repository.holds(session, BUNDLED_OWNER, project)
    space = repository.owner_of_namespaces(session, namespaces.namespaces_of(project))
    if mine:
        return find_page(session, IndexedProject(owner, project), media_type, encoding)
    if bundled or namespaces.covers(BUNDLED_OWNER, project):
        return IndexedProject(BUNDLED_OWNER, project)
    if space is None or not repository.holds(session, space, project):
        return None
    find_page(session, IndexedProject(None, project), media_type, encoding)
    return IndexedProject(None, project)


def refuse_unheld(session: Session, owner: str, project: str) -> HubProblem:
    """Return the answer of an owner's sole index for a name that nobody has, here or behind the hub."""
    space = repository.owner_of_namespaces(session, namespaces.namespaces_of(project))
    detail = f"neither this hub nor the index behind it has `{project}`"
    if space is not None and space != owner:  # the same answer as for a private name there
        _refuse_strangers(session, space)
    return refuse_missing(session, IndexedProject(owner, project), detail)


def find_root(session: Session, owner: str, media_type: str, encoding: str | None) -> RenderedPage:
    """Return the owner's list of projects: stored for the public, made for who may see more."""
    if session.info.get(READER) is None:
        place = IndexedProject(owner, "")
        values = {**place.values(), "nothing": rendering.root_json([])}
        row = session.execute(repository.page_query(place, media_type, encoding), values).first()
        if row is not None:
            return RenderedPage.of(tuple(row), media_type, encoding)
    projects = repository.projects_of(session, owner)
    if not projects:
        _refuse_strangers(session, owner)
    return _fresh(owner, list(projects), media_type)


def find_file(session: Session, place: IndexedProject, filename: str) -> tuple[File, Environment]:
    """Return a file that may be had at a place, and its environment."""
    owner, project = place.owner or owner_of(session, place.project), place.project
    environment = environments.environment_named(session, owner, project)
    if environment is None:
        _raise_if_moved(session, owner, place)
        environment = environments.environment_once_named(session, owner, project)
    found = environments.file_of(session, environment, filename) if environment else None
    if environment is None or found is None:
        detail = f"`{owner}/{project}` has no file `{filename}`"
        raise refuse_missing(session, IndexedProject(owner, project), detail, "file_not_found")
    if found.version.deleted_at is not None:
        raise HubProblem(410, "version_deleted", f"`{filename}` was deleted")
    if environment.quarantine_reason is not None and not environment_service.may_inspect(session):
        reason = environment.quarantine_reason
        raise HubProblem(403, "quarantined", f"`{owner}/{project}` is in quarantine: {reason}")
    return found, environment


def owner_of(session: Session, project: str) -> str:
    """Return whose a name is in the combined index; raise a 404 for one that lies in no namespace."""
    spaces = namespaces.namespaces_of(names.normalize_environment(project))
    owner = repository.owner_of_namespaces(session, spaces)
    if owner is None:
        detail = f"`{project}` lies in no owner's namespace"
        hint = "projects with other names are in the index of their owner, `/OWNER/simple/`"
        raise HubProblem(404, "project_not_found", detail, hint=hint)
    return owner


def render_combined_root(session: Session, media_type: str) -> RenderedPage:
    """Return the list of the combined index, made from rows: few want it, every change alters it."""
    return _fresh("all namespaces", [name for name, _ in _list_combined(session)], media_type)


def find_namespace(session: Session, name: str) -> NamespaceInfo:
    """Return one namespace; raise a 404 where nothing is offered that the caller may see."""
    for found in list_namespaces(session, name):
        if found.name == name:
            return found
    raise HubProblem(404, "namespace_not_found", f"there is no namespace `{name}`")


def list_namespaces(session: Session, around: str | None = None) -> list[NamespaceInfo]:
    """Return the namespaces that the combined index offers something of that the caller may see.

    Given one, that one and those above and below it.
    """
    spaces = sorted({owner for _, owner in _list_combined(session, around)})
    return [
        NamespaceInfo(
            name=one,
            owner=one,
            parent=next((two for two in reversed(namespaces.namespaces_of(one)[:-1]) if two in spaces), None),
            children=[two for two in spaces if one != two and namespaces.covers(one, two)],
        )
        for one in spaces
    ]


def _list_combined(session: Session, around: str | None = None) -> list[tuple[str, str]]:
    """Return name and owner of everything the caller may see in the combined index, by name."""
    offered = repository.projects_in_namespaces(session, around)
    spaces = {one for name, _ in offered for one in namespaces.namespaces_of(name)}
    ages = repository.owner_ages(session, spaces)
    return [
        (name, owner)
        for name, owner in offered
        if owner == namespaces.oldest(namespaces.namespaces_of(name), ages)
    ]


def _raise_if_moved(session: Session, owner: str, place: IndexedProject) -> None:
    """Redirect a name that its environment took to another owner.

    What left its namespace is a 404 in the combined index: nobody else can have the name there.
    """
    moved = environments.environment_once_named(session, owner, place.project)
    if moved is None or moved.owner.name == owner:
        return
    if place.owner is not None:
        raise Moved(moved.owner.name, place.project)
    new = f"{moved.owner.name}/{place.project}"
    detail = f"`{place.project}` is `{new}` now, outside of the namespace `{owner}`"
    raise refuse_missing(session, IndexedProject(owner, place.project), detail)


def refuse_missing(
    session: Session, place: IndexedProject, detail: str, code: str = "project_not_found"
) -> HubProblem:
    """Return the answer for what is not there, or not for this caller, which it must not tell apart.

    Where an owner has or had environments that the caller may not see, everybody but a member of the owner
    gets the same 401 for every name that is not open to them, and a member for the names that were ever
    private. uv stops at a 401, where a 404 would send it on to the next index, at which anybody may offer
    the name; pip goes on in both cases.
    """
    assert place.owner is not None
    reader: Identity | None = session.info.get(READER)
    if not _sees_all(reader) and not _may_begin(session, reader, place):
        _refuse_strangers(session, place.owner)
        if repository.was_private(session, place.owner, place.project):
            return _token_required()
    return HubProblem(404, code, detail)


def _sees_all(reader: Identity | None) -> bool:
    """Return whether nothing is hidden from a reader: an administrator whose token is good for everything."""
    return (
        reader is not None and reader.admin and reader.only_owner is None and reader.only_environment is None
    )


def _may_begin(session: Session, reader: Identity | None, place: IndexedProject) -> bool:
    """Return whether a token is there to publish this name, which is free: its uploader looks it up first."""
    if reader is None or reader.only_new is None or reader.only_new[1] != place.project:
        return False
    owner = session.get(Owner, reader.only_new[0])
    return owner is not None and owner.name == place.owner


def _refuse_strangers(session: Session, owner: str) -> None:
    reader: Identity | None = session.info.get(READER)
    if reader is not None and reader.only_version is not None:
        return  # a job of the hub: what was ever private is refused by its name
    if not _sees_all(reader) and repository.is_closed_to(session, owner, reader):
        raise _token_required()


def _token_required() -> HubProblem:
    hint = "put the token into the index's address as `https://__token__:TOKEN@...`, or into a netrc file"
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
