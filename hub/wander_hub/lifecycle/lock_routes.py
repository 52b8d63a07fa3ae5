"""The API on locks: read one, give a published version one."""

from __future__ import annotations

import io
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from wander.wire import VersionDetail

from wander_hub.environments import service
from wander_hub.http.answers import REVALIDATE, stored_object
from wander_hub.http.bodies import whole
from wander_hub.http.boundary import BaseUrl, HubDatabase, HubSettings, HubStorage, Publisher, ReadSession
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.lifecycle import locks

router = APIRouter(prefix="/api/v1/environments/{owner}/{name}", tags=["environments"])

MEDIA_TYPE = "application/toml"
_TOML: dict[str, Any] = {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}


@router.get(
    "/versions/{version}/pylock.toml",
    response_class=Response,
    responses={200: {"description": "The lock", **_TOML}, **refusals(308, 404, 410, 422)},
)
def get_lock(
    request: Request, session: ReadSession, storage: HubStorage, owner: str, name: str, version: str
) -> Response:
    """Return the `pylock.toml` of a version; `latest` is the newest. pip and uv install from this address."""
    lock = locks.find(session, owner, name, version)
    return stored_object(request, storage, lock.sha256, lock.size, MEDIA_TYPE, {"Cache-Control": REVALIDATE})


@router.put(
    "/versions/{version}/pylock.toml",
    response_model=VersionDetail,
    responses=refusals(308, 401, 403, 404, 409, 410, 413, 422),
    openapi_extra={"requestBody": {"required": True, **_TOML}},
)
async def put_lock(
    request: Request,
    caller: Publisher,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    base_url: BaseUrl,
    owner: str,
    name: str,
    version: str,
) -> VersionDetail:
    """Give a version that was uploaded without one its `pylock.toml`; it is never changed afterwards."""
    most = settings.max_lock_bytes
    too_large = HubProblem(413, "too_large", f"a lock has at most {most:,} bytes on this hub")
    content = await whole(request, most, too_large)

    def record(session: Session) -> VersionDetail:
        database.lock_objects(session, exclusive=False)
        environment, found = locks.attach(session, storage, caller, owner, name, version, content)
        return service.version_detail(environment, found, base_url)

    def attach() -> VersionDetail:
        with database.read(caller) as session:
            locks.check_offer(session, caller, owner, name, version, content, most)
        storage.put(io.BytesIO(content))
        return database.committed(record, caller)

    return await run_in_threadpool(attach)
