"""The API on what the hub follows on other hubs; for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from wander.wire.events import MirrorInfo, MirrorList, NewMirror

from wander_hub.database import fill
from wander_hub.http.boundary import Caller, ForManager, Number, ReadSession, audited, origin_of
from wander_hub.http.problems import refusals
from wander_hub.mirrors import service
from wander_hub.rights import rights

router = APIRouter(prefix="/api/v1/mirrors", tags=["operation"])

_CHANGES = refusals(401, 403, 404, 422)


@router.get("", response_model=MirrorList, responses=refusals(401, 403))
def list_mirrors(session: ReadSession, caller: Caller) -> MirrorList:
    """List what is followed, and what could not be brought."""
    rights.administrator(caller)
    return MirrorList(data=[fill(MirrorInfo, one) for one in service.list_all(session)])


@router.post("", status_code=201, response_model=MirrorInfo, responses=_CHANGES | refusals(400, 409, 502))
@audited("mirror.add")
def add_mirror(request: Request, context: ForManager, body: NewMirror) -> MirrorInfo:
    """Follow an owner of another hub, or one environment: what it shows to strangers."""
    rights.administrator(context.caller)
    origin = origin_of(request, context.caller)
    what = (body.url, body.owner, body.name)
    return fill(MirrorInfo, service.add(context.database, context.settings, origin, *what))


@router.post("/{mirror}/refresh", status_code=202, response_model=MirrorInfo, responses=_CHANGES)
@audited("mirror.refresh")
def refresh_mirror(request: Request, context: ForManager, mirror: Number) -> MirrorInfo:
    """Look soon, and compare everything."""
    rights.administrator(context.caller)
    queue = request.app.state.jobs
    return fill(MirrorInfo, context.commit(lambda session: service.refresh(session, queue, mirror)))


@router.delete("/{mirror}", response_model=MirrorInfo, responses=_CHANGES)
@audited("mirror.remove")
def remove_mirror(
    context: ForManager,
    mirror: Number,
    release: Annotated[bool, Query(description="what came becomes this hub's own")] = False,
) -> MirrorInfo:
    """Follow something no more; what came stays."""
    rights.administrator(context.caller)
    found = context.commit(lambda session: service.remove(session, mirror, release=release))
    return fill(MirrorInfo, found)
