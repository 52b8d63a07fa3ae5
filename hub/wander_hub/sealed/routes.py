"""The API of sealed task sets."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from pydantic import AwareDatetime
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from wander.wire.transfers import NewSealedPlay, SealedSetInfo, SealedSetList, SealOpening
from wander.wire.untrusted_text import SEALED_SET

from wander_hub.http.bodies import plain_body, read_body
from wander_hub.http.boundary import (
    BaseUrl,
    Context,
    ForPoster,
    ForPublisher,
    ReadSession,
    audited,
    open_to_jobs,
    wake_jobs,
)
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.rights import rights
from wander_hub.sealed import service

router = HubRouter(prefix="/api/v1", tags=["sealed sets"])

Commitment = Annotated[str, Path(max_length=64)]
_CHANGE = refusals(400, 401, 403, 404, 409, 422, 429)


def may_seal(context: ForPublisher, owner: str, name: str) -> Context:
    """Refuse a caller who cannot publish here before the body is read."""
    service.keeper_of(context.settings)
    with context.read() as session:
        rights.environment_for(session, context.caller, "publish", owner, name)
    return context


@router.post(
    "/environments/{owner}/{name}/versions/{version}/sealed",
    status_code=201,
    response_model=SealedSetInfo,
    responses=refusals(308, 400, 401, 403, 404, 409, 410, 413, 422, 429),
    openapi_extra=plain_body("the set's file"),
)
@audited("sealed.create")
async def create_sealed_set(
    request: Request,
    owner: str,
    name: str,
    version: str,
    opens_at: Annotated[AwareDatetime, Query(description="when the set opens")],
    context: Annotated[Context, Depends(may_seal)],
) -> Response:
    """Commit to hidden examples for a version. The hub stores them encrypted until the set opens."""
    most = SEALED_SET.most_bytes
    refusal = HubProblem(413, "too_large", f"the set is larger than {most:,} bytes")
    content = await read_body(request, most, refusal)
    made = await run_in_threadpool(service.create, context, (owner, name, version), content, opens_at)
    wake_jobs(request)
    return JSONResponse(made.model_dump(mode="json"), 201)


@router.get("/environments/{owner}/{name}/sealed", responses=refusals(308, 404, 410, 422))
def list_sealed_sets(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> SealedSetList:
    """List the sealed sets of an environment, newest first."""
    return service.list_sets(session, owner, name, base_url)


@router.get("/sealed/{commitment}", responses=refusals(404, 422))
def get_sealed_set(session: ReadSession, base_url: BaseUrl, commitment: Commitment) -> SealedSetInfo:
    """Show a sealed set with its plays, and to which hosts its questions were sent."""
    return service.info_of(service.find(session, commitment), base_url)


@router.get(
    "/sealed/{commitment}/examples.jsonl",
    response_class=Response,
    responses={
        200: {"description": "The set's file", "content": {"application/jsonl": {}}},
        **refusals(404, 422),
    },
)
@open_to_jobs
def get_sealed_examples(session: ReadSession, commitment: Commitment) -> Response:
    """Download the file of an opened set. Its SHA-256 is the commitment."""
    return Response(service.opened_file(session, commitment), media_type="application/jsonl")


@router.post("/sealed/{commitment}/plays", status_code=201, responses=_CHANGE)
@audited("sealed.play")
def play_sealed_set(
    request: Request, context: ForPoster, commitment: Commitment, body: NewSealedPlay
) -> SealedSetInfo:
    """Let the hub play a sealed set with the model of your endpoint, which receives the questions."""
    made = service.request_play(context, commitment, body)
    wake_jobs(request)
    return made


@router.put("/sealed/{commitment}/opening", responses=_CHANGE)
@audited("sealed.open")
def open_sealed_set(
    request: Request, context: ForPublisher, commitment: Commitment, body: SealOpening
) -> SealedSetInfo:
    """Open a sealed set now, or set an earlier date."""
    changed = service.open_earlier(context, commitment, body)
    wake_jobs(request)
    return changed
