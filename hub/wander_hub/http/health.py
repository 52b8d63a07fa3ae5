"""`GET /health`, `/live` and `/ready`, for operators and load balancers."""

from __future__ import annotations

import shutil

from fastapi import Request
from starlette.responses import JSONResponse, Response
from wander.wire import HealthStatus

from wander_hub import __version__
from wander_hub.database import Database
from wander_hub.http.boundary import HubDatabase, HubSettings, HubStorage
from wander_hub.http.limits import forwarded_for
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.settings import Settings
from wander_hub.storage import Storage

router = HubRouter(tags=["health"])

_NO_STORE = {"Cache-Control": "no-store"}
_NOT_WELL: dict[int | str, dict[str, object]] = {
    503: {"model": HealthStatus, "description": "Database or storage does not answer, or the hub is ending"}
}


@router.get("/live")
def live(request: Request) -> JSONResponse:
    """Tell that the process answers, and how the request looks from here, behind whatever proxy."""
    address = request.client.host if request.client is not None else None
    seen = {"status": "ok", "scheme": request.url.scheme, "address": address}
    seen["forwarded_for"] = forwarded_for(request.scope)
    return JSONResponse(seen, headers=_NO_STORE)


@router.get("/health", response_model=HealthStatus, responses=_NOT_WELL)
def health(database: HubDatabase, storage: HubStorage, settings: HubSettings) -> Response:
    """Tell whether the hub can serve: 200 when all is well, otherwise 503."""
    return _answer(_state(database, storage, settings))


@router.get("/ready", response_model=HealthStatus, responses={**_NOT_WELL, **refusals(422)})
def ready(
    request: Request,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    uploads: bool = False,
) -> Response:
    """Tell whether to send requests here: not while the hub ends, and no `uploads` while the disk is full."""
    found = _state(database, storage, settings)
    if getattr(request.app.state, "draining", False) or (uploads and not found.room):
        found = found.model_copy(update={"status": "degraded"})
    return _answer(found)


def free_bytes(settings: Settings) -> int:
    """Return how much room is left for the data folder, where the hub also writes what is being uploaded."""
    path = settings.data.absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def _state(database: Database, storage: Storage, settings: Settings) -> HealthStatus:
    answers = database.healthy(), storage.healthy()
    return HealthStatus(
        status="ok" if all(answers) else "degraded",
        version=__version__,
        database=answers[0],
        storage=answers[1],
        room=free_bytes(settings) >= settings.min_free_bytes,
    )


def _answer(found: HealthStatus) -> Response:
    return JSONResponse(found.model_dump(), 200 if found.status == "ok" else 503, headers=_NO_STORE)
