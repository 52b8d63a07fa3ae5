"""Routes of transfers. Every kind has the same routes, under its own path, scope and audit action."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from wander.wire.transfers import TransferInfo, TransferredPart

from wander_hub.http.bodies import open_body, plain_body
from wander_hub.http.boundary import Context, audited, context_for, part_of_upload, wake_jobs
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.identity import Permission
from wander_hub.transfers import service
from wander_hub.transfers.service import TransferRules

Offset = Annotated[int, Query(ge=0, lt=2**40, description="position of the part in the file's plain bytes")]
Digest = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the part's plain bytes")]
OPENING: dict[str, Any] = {
    "status_code": 201,
    "response_model": TransferInfo,
    "responses": {
        **refusals(400, 401, 403, 404, 409, 410, 413, 422, 429),
        200: {"description": "the caller's open transfer of the same content", "model": TransferInfo},
    },
}
"""Options that the routes for opening a transfer share."""


def routes_of(
    rules: TransferRules, permission: Permission, action: str, answer: type[BaseModel], tag: str
) -> HubRouter:
    """Return the router that shows, receives, finishes and drops the transfers of a kind."""
    router = HubRouter(tags=[tag], prefix=f"/api/v1/transfers/{rules.kind}")
    give = context_for(permission)

    @router.get("/{transfer_id}", responses=refusals(401, 403, 404, 422))
    def get_transfer(transfer_id: str, context: Context = Depends(give)) -> TransferInfo:  # noqa: B008
        """Show one of your transfers: its files, and the received parts."""
        with context.read() as session:
            transfer, _ = service.find(session, context.caller, rules, transfer_id)
            return service.describe(session, context, rules, transfer)

    @router.put(
        "/{transfer_id}/files/{filename}",
        response_model=TransferredPart,
        responses=refusals(400, 401, 403, 404, 413, 422, 507),
        openapi_extra=plain_body("the part's bytes; lines of rollouts may be compressed with zstd"),
    )
    @part_of_upload
    async def put_part(
        request: Request,
        transfer_id: str,
        filename: str,
        offset: Offset,
        digest: Digest,
        context: Context = Depends(give),  # noqa: B008
    ) -> TransferredPart:
        """Send a part of a file. Sending it again changes nothing; other bytes replace it."""
        await run_in_threadpool(_expect, context, rules, transfer_id, filename)
        most = rules.most_part_bytes
        too_large = HubProblem(
            413, "part_too_large", f"the part is larger than this hub's limit of {most:,} bytes"
        )
        async with open_body(request, most, too_large) as body:
            return await run_in_threadpool(
                service.receive, context, rules, transfer_id, filename, offset, digest, body
            )

    @router.post(
        "/{transfer_id}/finish",
        response_model=answer,
        status_code=201,
        responses={
            200: {"model": answer, "description": "It existed before"},
            **refusals(400, 401, 403, 404, 409, 410, 413, 422, 503, 507),
        },
    )
    @audited(action)
    def finish_transfer(
        request: Request,
        transfer_id: str,
        context: Context = Depends(give),  # noqa: B008
    ) -> Response:
        """Publish everything that was sent in one step. Repeating the request changes nothing."""
        published, created = service.finish(context, rules, transfer_id)
        if created:
            wake_jobs(request)
        return JSONResponse(published.model_dump(mode="json", by_alias=True), 201 if created else 200)

    @router.delete("/{transfer_id}", status_code=204, responses=refusals(401, 403, 404, 422))
    @part_of_upload
    def drop_transfer(transfer_id: str, context: Context = Depends(give)) -> None:  # noqa: B008
        """Drop a transfer and its parts. The result of a finished transfer is not affected."""
        service.drop(context, rules, transfer_id)

    return router


def opened(context: Context, info: TransferInfo, created: bool) -> Response:
    """Return the response for an opened transfer."""
    headers = {"Location": f"{context.base_url}/api/v1/transfers/{info.kind}/{info.id}"}
    return JSONResponse(info.model_dump(mode="json"), 201 if created else 200, headers=headers)


def _expect(context: Context, rules: TransferRules, transfer_id: str, filename: str) -> None:
    """Reject a part of an unknown transfer or file, before its bytes are read."""
    with context.read() as session:
        service.find_file(session, context.caller, rules, transfer_id, filename)
