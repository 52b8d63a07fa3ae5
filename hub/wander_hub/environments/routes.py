"""The API of environments."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from wander.wire import EnvironmentDetail, EnvironmentPage, VersionDetail

from wander_hub.environments import service
from wander_hub.environments.schemas import EnvironmentFilter, Sort
from wander_hub.http.boundary import BaseUrl, ReadSession, open_to_jobs
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter

router = HubRouter(prefix="/api/v1/environments", tags=["environments"])


@router.get("", responses=refusals(422))
def list_environments(
    session: ReadSession,
    q: Annotated[str, Query(max_length=200, description="words in name, tags, summary or README")] = "",
    owner: Annotated[str | None, Query(max_length=39)] = None,
    tag: Annotated[str | None, Query(max_length=80)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=200, description="`next` of the previous page")] = None,
    kind: Annotated[str | None, Query(max_length=40, description="`single-turn`, `tool`, ...")] = None,
    deterministic: bool | None = None,
    checked: Annotated[bool | None, Query(description="whether the newest version passed all checks")] = None,
    license: Annotated[str | None, Query(max_length=100)] = None,
    sort: Annotated[Sort | None, Query(description="default: relevance, or without `q` last update")] = None,
) -> EnvironmentPage:
    """List or search environments. A search returns at most the best 200."""
    wanted = EnvironmentFilter(q, owner, tag, limit, cursor, kind, deterministic, checked, license, sort=sort)
    return service.list_page(session, wanted)


@router.get("/{owner}/{name}", responses=refusals(404, 422))
def get_environment(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> EnvironmentDetail:
    """Show an environment with its newest version."""
    return service.detail(session, owner, name, base_url)


@router.get("/{owner}/{name}/versions/{version}", responses=refusals(404, 422))
@open_to_jobs
def get_version(
    session: ReadSession, base_url: BaseUrl, owner: str, name: str, version: str
) -> VersionDetail:
    """Show a version; `latest` is the newest."""
    environment = service.find(session, owner, name)
    return service.version_detail(environment, service.find_version(session, environment, version), base_url)
