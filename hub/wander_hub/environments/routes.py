"""The API on environments."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from wander.wire import EnvironmentDetail, EnvironmentPage, VersionDetail

from wander_hub.environments import service
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.boundary import BaseUrl, ReadSession
from wander_hub.http.problems import refusals

router = APIRouter(prefix="/api/v1/environments", tags=["environments"])


@router.get("", response_model=EnvironmentPage, responses=refusals(422))
def list_environments(
    session: ReadSession,
    q: Annotated[str, Query(max_length=200, description="words in owner, name, tags or summary")] = "",
    owner: Annotated[str | None, Query(max_length=39)] = None,
    tag: Annotated[str | None, Query(max_length=80)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=200, description="`next` of the page before")] = None,
) -> EnvironmentPage:
    """List or search environments, most recently updated first."""
    return service.list_page(session, EnvironmentFilter(q, owner, tag, limit, cursor))


@router.get("/{owner}/{name}", response_model=EnvironmentDetail, responses=refusals(404, 422))
def get_environment(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> EnvironmentDetail:
    """Show one environment with its newest version."""
    return service.detail(session, owner, name, base_url)


@router.get("/{owner}/{name}/versions/{version}", response_model=VersionDetail, responses=refusals(404, 422))
def get_version(
    session: ReadSession, base_url: BaseUrl, owner: str, name: str, version: str
) -> VersionDetail:
    """Show one version; `latest` is the newest."""
    environment = service.find(session, owner, name)
    return service.version_detail(environment, service.find_version(session, environment, version), base_url)
