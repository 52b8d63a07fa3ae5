"""`GET /schemas/...`: the JSON Schemas of the run record, for other programs."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response
from wander.evals.store.schema import PARTS, VERSION, record_schema, schema_path

from wander_hub.http.boundary import BaseUrl
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.responses import REVALIDATE
from wander_hub.http.routing import HubRouter

router = HubRouter(prefix="/schemas", tags=["schemas"])
_HEADERS = {"Cache-Control": REVALIDATE, "Access-Control-Allow-Origin": "*"}


@router.get("")
def list_schemas(base_url: BaseUrl) -> dict[str, str]:
    """List the addresses of the run record's schemas."""
    return {part: f"{base_url}{schema_path(part)}" for part in PARTS}


@router.get("/{part}/{version}.json", responses=refusals(404, 422))
def show_schema(part: str, version: str, base_url: BaseUrl) -> Response:
    """Return the JSON Schema of a file of the run folder: `run`, `rollout` or `summary`."""
    if part not in PARTS or version != str(VERSION):
        raise HubProblem(
            404,
            "schema_not_found",
            "there is no such schema",
            hint=f"the schema of a run is {schema_path(PARTS[0])}",
        )
    body = record_schema(part, base_url=base_url)
    return JSONResponse(body, headers=_HEADERS, media_type="application/schema+json")
