"""Writes an owner's index pages with each change, and finds the one that a request asks for."""

from __future__ import annotations

from sqlalchemy.orm import Session

from wander_hub.accounts.models import Owner
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment
from wander_hub.index import rendering, repository
from wander_hub.index.negotiation import JSON_V1, PLAIN_HTML
from wander_hub.index.schemas import StoredPage
from wander_hub.problems import HubProblem


def write_pages(session: Session, environment: Environment, *, new: bool) -> None:
    """Render the environment's page, and the owner's list when the environment is new to it."""
    versions = environments.versions_of(session, environment)
    repository.store_page(
        session,
        environment.owner_id,
        environment.name,
        html=rendering.project_html(environment.name, versions),
        json=rendering.project_json(environment.name, versions),
    )
    if new:
        write_root(session, environment.owner)


def write_root(session: Session, owner: Owner) -> None:
    """Render the owner's list of projects."""
    projects = environments.packages_of(session, owner.id)
    repository.store_page(
        session,
        owner.id,
        "",
        html=rendering.root_html(owner.name, projects),
        json=rendering.root_json(projects),
    )


def page(session: Session, owner: str, project: str, media_type: str) -> StoredPage:
    """Return the stored page; an owner who has published nothing has an empty list."""
    stored = repository.stored_page(session, owner, project)
    if stored is None and not project:
        return _empty_root(owner, media_type)
    if stored is None:
        raise HubProblem(404, "project_not_found", f"`{owner}` offers no project `{project}`")
    if media_type == JSON_V1:
        return StoredPage(stored.json, JSON_V1, f'"{stored.json_etag}"')
    return StoredPage(stored.html, _html_type(media_type), f'"{stored.html_etag}"')


def _empty_root(owner: str, media_type: str) -> StoredPage:
    if media_type == JSON_V1:
        return StoredPage(rendering.root_json([]), JSON_V1, '"empty-json"')
    return StoredPage(rendering.root_html(owner, []), _html_type(media_type), '"empty-html"')


def _html_type(media_type: str) -> str:
    return f"{media_type}; charset=utf-8" if media_type == PLAIN_HTML else media_type
