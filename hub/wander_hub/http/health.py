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
    503: {
        "model": HealthStatus,
        "description": "Database or storage does not respond, or the hub is shutting down",
    }
}


@router.get("/live")
def live(request: Request) -> JSONResponse:
    """Report that the process responds, and how it sees the request behind any proxies."""
    address = request.client.host if request.client is not None else None
    seen = {"status": "ok", "scheme": request.url.scheme, "address": address}
    seen["forwarded_for"] = forwarded_for(request.scope)
    return JSONResponse(seen, headers=_NO_STORE)


@router.get("/health", response_model=HealthStatus, responses=_NOT_WELL)
def health(database: HubDatabase, storage: HubStorage, settings: HubSettings) -> Response:
    """Report whether the hub works: 200 if database and storage respond, otherwise 503."""
    return _answer(_state(database, storage, settings))


@router.get("/ready", response_model=HealthStatus, responses={**_NOT_WELL, **refusals(422)})
def ready(
    request: Request,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    uploads: bool = False,
) -> Response:
    """Report whether to send requests to this process: 503 while it shuts down, or with `uploads` if disk
    space is low."""
    state = _state(database, storage, settings)
    if getattr(request.app.state, "draining", False) or (uploads and not state.room):
        state = state.model_copy(update={"status": "degraded"})
    return _answer(state)


def free_bytes(settings: Settings) -> int:
    """Return the free space of the data folder in bytes. Uploads in progress are stored there as well."""
    path = settings.data.absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free


def _state(database: Database, storage: Storage, settings: Settings) -> HealthStatus:
    answers = database.healthy(), storage.healthy()
    return HealthStatus(
        status="ok" if all(answers) else "degraded",
        version=__version__,
        database=answers[0],
        storage=answers[1],
        room=free_bytes(settings) >= settings.min_free_bytes,
    )


def _answer(state: HealthStatus) -> Response:
    return JSONResponse(state.model_dump(), 200 if state.status == "ok" else 503, headers=_NO_STORE)
