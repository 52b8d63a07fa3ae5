"""The integrity API (PEP 740), at PyPI's addresses below the owner's name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from wander_hub.environments.models import FileProvenance
from wander_hub.http.boundary import HubDatabase, optional_identity
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.index import service as index
from wander_hub.index.negotiation import accepts
from wander_hub.index.schemas import IndexedProject
from wander_hub.names import release_of

router = HubRouter(tags=["index"])

INTEGRITY_V1 = "application/vnd.pypi.integrity.v1+json"
_BODY: dict[int | str, dict[str, Any]] = {
    200: {"content": {INTEGRITY_V1: {}}, "description": "The provenance object"}
}


@router.get(
    "/{owner}/integrity/{project}/{version}/{filename}/provenance",
    responses={**_BODY, **refusals(401, 403, 404, 406, 410, 422)},
    response_class=Response,
)
@router.head("/{owner}/integrity/{project}/{version}/{filename}/provenance", include_in_schema=False)
def get_provenance(
    request: Request,
    database: HubDatabase,
    owner: str,
    project: str,
    version: Annotated[str, Path(max_length=100)],
    filename: Annotated[str, Path(max_length=255)],
) -> Response:
    """Return the provenance of a file: its attestations and who made them."""
    if not accepts(request.headers.get("accept"), INTEGRITY_V1, "application/json"):
        raise HubProblem(406, "not_acceptable", f"provenance is served as `{INTEGRITY_V1}`")
    with database.read(optional_identity(request)) as session:
        file, _environment = index.find_file(session, IndexedProject(owner, project), filename)
        provenance = session.get(FileProvenance, file.id)
        if provenance is None or file.version.release != release_of(version):
            detail = f"`{filename}` of version `{version[:80]}` has no attestation"
            raise HubProblem(404, "no_provenance", detail)
    return Response(provenance.document, media_type=INTEGRITY_V1, headers={"Cache-Control": "no-cache"})
