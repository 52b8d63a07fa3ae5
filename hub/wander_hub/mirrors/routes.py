"""The API on what the hub follows on other hubs; for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from wander.wire.events import MirrorInfo, MirrorList, NewMirror

from wander_hub.database import fill
from wander_hub.http.boundary import Number, ReadSession, audited, origin_of
from wander_hub.http.problems import refusals
from wander_hub.mirrors import service
from wander_hub.rights.rights import Administrator, ForAdministrator

router = APIRouter(prefix="/api/v1/mirrors", tags=["operation"])

_CHANGES = refusals(401, 403, 404, 422)


@router.get("", responses=refusals(401, 403))
def list_mirrors(session: ReadSession, _caller: Administrator) -> MirrorList:
    """List what is followed, and what could not be brought."""
    return MirrorList(data=[fill(MirrorInfo, one) for one in service.list_all(session)])


@router.post("", status_code=201, responses=_CHANGES | refusals(400, 409, 502))
@audited("mirror.add")
def add_mirror(request: Request, context: ForAdministrator, body: NewMirror) -> MirrorInfo:
    """Follow an owner of another hub, or one environment: what it shows to strangers."""
    origin = origin_of(request, context.caller)
    what = (body.url, body.owner, body.name)
    return fill(MirrorInfo, service.add(context.database, context.settings, origin, *what))


@router.post("/{mirror}/refresh", status_code=202, responses=_CHANGES)
@audited("mirror.refresh")
def refresh_mirror(request: Request, context: ForAdministrator, mirror: Number) -> MirrorInfo:
    """Look soon, and compare everything."""
    queue = request.app.state.jobs
    return fill(MirrorInfo, context.commit(lambda session: service.refresh(session, queue, mirror)))


@router.delete("/{mirror}", responses=_CHANGES)
@audited("mirror.remove")
def remove_mirror(
    context: ForAdministrator,
    mirror: Number,
    release: Annotated[bool, Query(description="what came becomes this hub's own")] = False,
) -> MirrorInfo:
    """Follow something no more; what came stays."""
    found = context.commit(lambda session: service.remove(session, mirror, release=release))
    return fill(MirrorInfo, found)
