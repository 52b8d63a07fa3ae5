"""`GET /health`, for operators and load balancers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response
from wander.wire import HealthStatus

from wander_hub import __version__
from wander_hub.http.boundary import HubDatabase, HubStorage

router = APIRouter(tags=["health"])


@router.get(
    "/health",
    response_model=HealthStatus,
    responses={503: {"model": HealthStatus, "description": "Database or storage does not answer"}},
)
def health(database: HubDatabase, storage: HubStorage) -> Response:
    """Tell whether the hub can serve: 200 when all is well, otherwise 503."""
    database_answers, storage_answers = database.healthy(), storage.healthy()
    well = database_answers and storage_answers
    status = HealthStatus(
        status="ok" if well else "degraded",
        version=__version__,
        database=database_answers,
        storage=storage_answers,
    )
    return JSONResponse(status.model_dump(), 200 if well else 503, headers={"Cache-Control": "no-store"})
