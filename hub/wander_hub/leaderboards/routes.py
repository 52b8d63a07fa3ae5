"""The API on leaderboards."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from wander.wire import Leaderboard

from wander_hub.boundary import BaseUrl, ReadSession
from wander_hub.environments import service as environments
from wander_hub.leaderboards import service
from wander_hub.problems import documented

router = APIRouter(prefix="/api/v1/environments", tags=["leaderboards"])


@router.get("/{owner}/{name}/leaderboard", response_model=Leaderboard, responses=documented(404, 422))
def get_leaderboard(
    session: ReadSession,
    base_url: BaseUrl,
    owner: str,
    name: str,
    version: Annotated[str | None, Query(max_length=100)] = None,
    task_set: Annotated[str | None, Query(max_length=64, description="digest or its beginning")] = None,
    board: Annotated[str | None, Query(max_length=64, description="as `others` names them")] = None,
) -> Leaderboard:
    """Rank the complete runs of one version, one task set and one protocol."""
    environment = environments.find(session, owner, name)
    return service.leaderboard(
        session, environment, base_url, version=version, task_set=task_set, board=board
    )
