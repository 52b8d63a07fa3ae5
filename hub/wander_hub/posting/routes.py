"""The API of posting a run in parts, and of the keys that sign runs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, BinaryIO

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from wander.wire import RunDetail
from wander.wire.gate import MANIFEST
from wander.wire.postings import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    FinishPosting,
    KeyInfo,
    KeyList,
    NewKey,
    PostedArtifact,
    PostedChunk,
    Posting,
)

from wander_hub.http.bodies import open_body, plain_body
from wander_hub.http.boundary import (
    Caller,
    Context,
    ForManager,
    ForPoster,
    ReadSession,
    audited,
    part_of_another,
    wake_jobs,
)
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.jobs import TableQueue
from wander_hub.posting import finish as finishing
from wander_hub.posting import service as posting
from wander_hub.runs import service, signing
from wander_hub.runs.artifacts import check_file, media_type_of

router = HubRouter(prefix="/api/v1", tags=["runs"])

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="the run's digest")]
_POSTING = "/postings/{sha256}"


def _file_within(request: Request, what: str, most: int) -> AbstractAsyncContextManager[BinaryIO]:
    """Give the body as a file; refuse one of more than `most` bytes."""
    return open_body(request, most, HubProblem(413, "too_large", f"{what} is over {most:,} bytes"))


@router.put(
    _POSTING,
    response_model=Posting,
    status_code=201,
    responses={
        200: {"model": Posting, "description": "It was begun before; what is here of it"},
        **refusals(401, 403, 409, 413, 422, 429),
    },
    openapi_extra=plain_body("run.json"),
)
@part_of_another
async def open_posting(
    request: Request,
    context: ForPoster,
    sha256: Digest,
    private: Annotated[bool, Query(description="only for its submitter and who has a role there")] = False,
) -> Response:
    """Begin to post a run, or hear what is here of it already."""
    async with _file_within(request, "run.json", MANIFEST.most_bytes) as body:
        text = await run_in_threadpool(body.read)
    found, created = await run_in_threadpool(posting.open_posting, context, text, sha256, private=private)
    return Response(found.model_dump_json(), 201 if created else 200, media_type="application/json")


@router.get(_POSTING, responses=refusals(401, 403, 404, 422))
def get_posting(session: ReadSession, caller: Caller, sha256: Digest) -> Posting:
    """Show what has arrived of a run that one is posting."""
    return posting.describe_posting(session, posting.find(session, sha256, caller)[0])


@router.put(
    _POSTING + "/chunks/{chunk}",
    responses=refusals(401, 403, 404, 413, 422, 507),
    openapi_extra=plain_body("lines of rollouts in the manifest's order, plain or zstd"),
)
@part_of_another
async def put_chunk(
    request: Request,
    context: ForPoster,
    sha256: Digest,
    chunk: Annotated[int, Path(ge=0, lt=MAX_CHUNKS)],
    digest: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the plain lines")],
) -> PostedChunk:
    """Send one chunk of the rollouts. The hub validates every line; the same chunk again changes nothing."""
    async with _file_within(request, "the chunk", MAX_CHUNK_BYTES) as body:
        return await run_in_threadpool(posting.add_chunk, context, sha256, chunk, body, digest)


@router.put(
    _POSTING + "/artifacts/{file}",
    responses=refusals(401, 403, 404, 413, 422, 507),
    openapi_extra=plain_body("the file"),
)
@part_of_another
async def put_artifact(request: Request, context: ForPoster, sha256: Digest, file: str) -> PostedArtifact:
    """Send a file that belongs to the run: metrics, checkpoints, plots."""
    media_type_of(file)
    most = context.settings.max_artifact_bytes
    async with _file_within(request, "the file", most) as body:
        return await run_in_threadpool(
            lambda: posting.add_artifact(context, sha256, check_file(file, body, most))
        )


@router.post(
    _POSTING + "/finish",
    response_model=RunDetail,
    status_code=201,
    responses={
        200: {"model": RunDetail, "description": "It was finished before"},
        **refusals(400, 401, 403, 404, 409, 422, 507),
    },
)
@audited("run.post")
def finish_posting(request: Request, context: ForPoster, sha256: Digest, body: FinishPosting) -> Response:
    """Say that everything was sent: the hub computes all aggregates and shows the run."""
    queue: TableQueue = request.app.state.jobs
    return answer_run(request, context, *finishing.finish(context, queue, sha256, body))


@router.delete(_POSTING, status_code=204, responses=refusals(401, 403, 404, 422))
@part_of_another
def drop_posting(context: ForPoster, sha256: Digest) -> None:
    """Forget what was sent of a run."""
    posting.drop(context, sha256)


@router.get("/keys", responses=refusals(401))
def list_keys(session: ReadSession, caller: Caller) -> KeyList:
    """List your keys that sign runs."""
    return signing.keys_of(session, caller.user_id)


@router.post(
    "/keys",
    response_model=KeyInfo,
    status_code=201,
    responses={
        200: {"model": KeyInfo, "description": "It was registered before"},
        **refusals(400, 401, 403, 409, 422),
    },
)
@audited("key.add")
def add_key(context: ForManager, body: NewKey) -> Response:
    """Register a public key that you sign runs with."""
    key, created = context.commit(lambda session: signing.add_key(session, body, context.caller))
    return Response(key.model_dump_json(), 201 if created else 200, media_type="application/json")


@router.delete("/keys/{fingerprint}", responses=refusals(401, 403, 404, 422))
@audited("key.revoke")
def revoke_key(
    context: ForManager, fingerprint: Annotated[str, Path(min_length=6, max_length=64)]
) -> KeyInfo:
    """Revoke a key: it signs nothing any more, and runs that it signed say so."""
    return context.commit(lambda session: signing.revoke_key(session, fingerprint, context.caller))


def answer_run(request: Request, context: Context, run_id: str, created: bool) -> Response:
    """Answer with a posted run; a new one came with its jobs."""
    if created:
        wake_jobs(request)
    with context.read() as session:
        detail = service.detail_of(service.find(session, run_id), context.base_url)
    text = detail.model_dump_json(by_alias=True)
    return Response(text, 201 if created else 200, media_type="application/json")
