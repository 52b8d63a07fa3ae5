"""The API for changing published environments and versions, and for their locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from wander.wire import EnvironmentDetail, VersionDetail
from wander.wire.changes import NewStatus, NewVisibility, Reason, TransferTarget
from wander.wire.environments import visibility_of
from wander.wire.untrusted_text import LOCK

from wander_hub.environments import service
from wander_hub.environments.models import Environment
from wander_hub.http.bodies import read_body
from wander_hub.http.boundary import (
    Context,
    ForMaintainer,
    ForManager,
    ForPublisher,
    HubStorage,
    ReadSession,
    audited,
    open_to_jobs,
)
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.responses import REVALIDATE, stored_object
from wander_hub.http.routing import HubRouter
from wander_hub.lifecycle import locks
from wander_hub.lifecycle import service as life
from wander_hub.transfers import objects

router = HubRouter(prefix="/api/v1/environments/{owner}/{name}", tags=["environments"])

MEDIA_TYPE = "application/toml"
_TOML: dict[str, Any] = {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
_REFUSALS = refusals(308, 400, 401, 403, 404, 409, 410, 422)
Why = Annotated[str | None, Query(max_length=500, description="public reason")]


@router.put("/versions/{version}/yank", responses=_REFUSALS)
@audited("version.yank")
def yank_version(context: ForMaintainer, owner: str, name: str, version: str, body: Reason) -> VersionDetail:
    """Make installers skip a version unless its exact number is requested (PEP 592)."""
    arguments = (context.caller, owner, name, version, body.reason)
    return context.commit(
        lambda session: service.version_detail(*life.yank(session, *arguments), context.base_url)
    )


@router.delete("/versions/{version}/yank", responses=_REFUSALS)
@audited("version.unyank")
def unyank_version(context: ForMaintainer, owner: str, name: str, version: str) -> VersionDetail:
    """Offer a yanked version again."""
    arguments = (context.caller, owner, name, version)
    return context.commit(
        lambda session: service.version_detail(*life.yank(session, *arguments, undo=True), context.base_url)
    )


@router.delete("/versions/{version}", responses=_REFUSALS)
@audited("version.delete")
def delete_version(
    context: ForManager, owner: str, name: str, version: str, reason: Why = None
) -> VersionDetail:
    """Delete the files of a version permanently. Its number and file names cannot be used again."""

    def record(session: Session) -> tuple[VersionDetail, list[str]]:
        arguments = (context.caller, owner, name, version, reason)
        environment, deleted, digests = life.delete_version(session, *arguments)
        return service.version_detail(environment, deleted, context.base_url), digests

    detail, digests = context.commit(record)
    objects.discard(context.database, context.storage, digests)
    return detail


@router.delete("", status_code=204, responses=_REFUSALS)
@audited("environment.delete")
def delete_environment(context: ForManager, owner: str, name: str, reason: Why = None) -> None:
    """Delete an environment and all its files permanently. Its name cannot be used again; its runs are
    kept."""
    digests = context.commit(
        lambda session: life.delete_environment(session, context.caller, owner, name, reason)
    )
    objects.discard(context.database, context.storage, digests)


@router.put("/status", responses=_REFUSALS)
@audited("environment.status")
def set_status(context: ForMaintainer, owner: str, name: str, body: NewStatus) -> EnvironmentDetail:
    """Deprecate, archive or (as an administrator) quarantine an environment (PEP 792), or undo that."""
    return _change(context, lambda session: life.set_status(session, context.caller, owner, name, body))


@router.put("/visibility", responses=_REFUSALS)
@audited("environment.visibility")
def set_visibility(context: ForManager, owner: str, name: str, body: NewVisibility) -> EnvironmentDetail:
    """Make an environment public, internal or private."""
    arguments = (context.caller, owner, name, visibility_of(body.private, internal=body.internal))
    return _change(context, lambda session: life.set_visibility(session, *arguments))


@router.post("/transfer", responses=_REFUSALS)
@audited("environment.transfer")
def transfer_environment(
    context: ForManager, owner: str, name: str, body: TransferTarget
) -> EnvironmentDetail:
    """Move an environment to another owner or name. The old address redirects to the new one."""
    arguments = (context.settings, context.caller, owner, name, body)
    return _change(context, lambda session: life.move(session, *arguments))


def _change(context: Context, work: Callable[[Session], Environment]) -> EnvironmentDetail:
    """Change an environment and return its new state."""

    def record(session: Session) -> EnvironmentDetail:
        environment = work(session)
        return service.detail(session, environment.owner.name, environment.name, context.base_url)

    return context.commit(record)


@router.get(
    "/versions/{version}/pylock.toml",
    response_class=Response,
    responses={200: {"description": "The lock", **_TOML}, **refusals(308, 404, 410, 422)},
)
@open_to_jobs
def get_lock(
    request: Request, session: ReadSession, storage: HubStorage, owner: str, name: str, version: str
) -> Response:
    """Return the `pylock.toml` of a version; `latest` is the newest. pip and uv can install from this
    address."""
    lock = locks.find(session, owner, name, version)
    return stored_object(request, storage, lock.sha256, lock.size, MEDIA_TYPE, {"Cache-Control": REVALIDATE})


@router.put(
    "/versions/{version}/pylock.toml",
    responses=refusals(308, 401, 403, 404, 409, 410, 413, 422),
    openapi_extra={"requestBody": {"required": True, **_TOML}},
)
@audited("lock.attach")
async def put_lock(
    request: Request, context: ForPublisher, owner: str, name: str, version: str
) -> VersionDetail:
    """Attach a `pylock.toml` to a version without a lock. It cannot be changed afterwards."""
    too_large = HubProblem(413, "too_large", f"a lock may have at most {LOCK.most_bytes:,} bytes")
    content = await read_body(request, LOCK.most_bytes, too_large)
    return await run_in_threadpool(locks.offer, context, owner, name, version, content)
