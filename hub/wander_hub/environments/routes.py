"""The API of environments."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from sqlalchemy.orm import Session
from wander.wire import EnvironmentDetail, EnvironmentPage, VersionDetail
from wander.wire.environments import DownloadHistory, StarInfo

from wander_hub.environments import service, stars
from wander_hub.environments.schemas import EnvironmentFilter, Sort
from wander_hub.http.boundary import BaseUrl, Caller, Context, ForManager, ReadSession, audited, open_to_jobs
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter

router = HubRouter(prefix="/api/v1/environments", tags=["environments"])
star_router = HubRouter(prefix="/api/v1/stars", tags=["environments"])


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


@router.get("/{owner}/{name}/downloads", responses=refusals(404, 410, 422))
def get_downloads(
    session: ReadSession, owner: str, name: str, days: Annotated[int, Query(ge=1, le=366)] = 30
) -> DownloadHistory:
    """Return the downloads of an environment: the total, and the last days by version."""
    return service.downloads(session, owner, name, days)


@router.put("/{owner}/{name}/star", responses=refusals(401, 403, 404, 410, 422))
@audited("environment.star")
def add_star(context: ForManager, owner: str, name: str) -> StarInfo:
    """Star an environment. Everyone can see the number of stars."""
    return _star(context, owner, name, wanted=True)


@router.delete("/{owner}/{name}/star", responses=refusals(401, 403, 404, 410, 422))
@audited("environment.unstar")
def remove_star(context: ForManager, owner: str, name: str) -> StarInfo:
    """Remove your star."""
    return _star(context, owner, name, wanted=False)


def _star(context: Context, owner: str, name: str, *, wanted: bool) -> StarInfo:
    def work(session: Session) -> StarInfo:
        starred = stars.star(session, context.caller, owner, name, wanted=wanted)
        return StarInfo(starred=wanted, stars=starred.star_count)

    return context.commit(work)


@router.get("/{owner}/{name}/versions/{version}", responses=refusals(404, 422))
@open_to_jobs
def get_version(
    session: ReadSession, base_url: BaseUrl, owner: str, name: str, version: str
) -> VersionDetail:
    """Show a version; `latest` is the newest."""
    environment = service.find(session, owner, name)
    return service.version_detail(environment, service.find_version(session, environment, version), base_url)


@star_router.get("", responses=refusals(401, 422))
def list_stars(
    session: ReadSession,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=200)] = 200,
    cursor: Annotated[int, Query(ge=0, le=1_000_000, description="`next` of the previous page")] = 0,
) -> EnvironmentPage:
    """List the environments that you starred, most recently starred first."""
    return stars.list_page(session, caller.user_id, cursor, limit)
