"""The API of posting a run in parts, and of the keys that sign runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from wander.wire import RunDetail
from wander.wire.postings import (
    MAX_CHUNK_BYTES,
    FinishPosting,
    KeyInfo,
    KeyList,
    NewKey,
    PostedArtifact,
    PostedChunk,
    Posting,
)

from wander_hub.database import Database
from wander_hub.http.bodies import open_body, plain_body
from wander_hub.http.boundary import (
    BaseUrl,
    Caller,
    HubDatabase,
    HubSettings,
    HubStorage,
    Manager,
    Poster,
    ReadSession,
    WriteSession,
    wake_jobs,
)
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.identity import HUB
from wander_hub.jobs import JobQueue
from wander_hub.posting import finish as finishing
from wander_hub.posting import service as posting
from wander_hub.posting.service import PostingLimits
from wander_hub.runs import service, signing
from wander_hub.runs.artifacts import check_file, media_type_of
from wander_hub.settings import Settings
from wander_hub.verification import service as verification

router = APIRouter(prefix="/api/v1", tags=["runs"])

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="the run's digest")]
_POSTING = "/postings/{sha256}"


def _too_large(what: str, most: int) -> HubProblem:
    return HubProblem(413, "too_large", f"{what} is over {most:,} bytes")


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
async def open_posting(
    request: Request,
    caller: Poster,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    sha256: Digest,
    private: Annotated[bool, Query(description="only for its submitter and who has a role there")] = False,
) -> Response:
    """Begin to post a run, or hear what is here of it already."""
    most = settings.max_manifest_bytes
    async with open_body(request, most, _too_large("run.json", most)) as body:
        text = await run_in_threadpool(body.read)
    found, created = await run_in_threadpool(
        lambda: posting.open_posting(
            database, storage, text, sha256, caller, limits_of(settings), private=private
        )
    )
    return Response(found.model_dump_json(), 201 if created else 200, media_type="application/json")


@router.get(_POSTING, response_model=Posting, responses=refusals(401, 403, 404, 422))
def get_posting(session: ReadSession, caller: Caller, sha256: Digest) -> Posting:
    """Show what has arrived of a run that one is posting."""
    return posting.describe_posting(session, posting.find(session, sha256, caller)[0])


@router.put(
    _POSTING + "/chunks/{chunk}",
    response_model=PostedChunk,
    responses=refusals(401, 403, 404, 413, 422, 507),
    openapi_extra=plain_body("lines of rollouts in the manifest's order, plain or zstd"),
)
async def put_chunk(
    request: Request,
    caller: Poster,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    sha256: Digest,
    chunk: Annotated[int, Path(ge=0, lt=2**31)],
    digest: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the plain lines")],
) -> PostedChunk:
    """Send one chunk of the rollouts. The hub validates every line; the same chunk again changes nothing."""
    async with open_body(request, MAX_CHUNK_BYTES, _too_large("the chunk", MAX_CHUNK_BYTES)) as body:
        return await run_in_threadpool(
            posting.add_chunk,
            *(database, storage, sha256, chunk, body, digest, caller, limits_of(settings)),
        )


@router.put(
    _POSTING + "/artifacts/{file}",
    response_model=PostedArtifact,
    responses=refusals(401, 403, 404, 413, 422, 507),
    openapi_extra=plain_body("the file"),
)
async def put_artifact(
    request: Request,
    caller: Poster,
    database: HubDatabase,
    storage: HubStorage,
    settings: HubSettings,
    sha256: Digest,
    file: str,
) -> PostedArtifact:
    """Send a file that belongs to the run: metrics, checkpoints, plots."""
    media_type_of(file)
    most = settings.max_artifact_bytes
    async with open_body(request, most, _too_large("the file", most)) as body:

        def keep() -> PostedArtifact:
            given = check_file(file, body, most)
            return posting.add_artifact(database, storage, sha256, given, caller, limits_of(settings))

        return await run_in_threadpool(keep)


@router.post(
    _POSTING + "/finish",
    response_model=RunDetail,
    status_code=201,
    responses={
        200: {"model": RunDetail, "description": "It was finished before"},
        **refusals(401, 403, 404, 409, 422, 507),
    },
)
def finish_posting(
    request: Request,
    caller: Poster,
    database: HubDatabase,
    storage: HubStorage,
    base_url: BaseUrl,
    sha256: Digest,
    body: FinishPosting,
) -> Response:
    """Say that everything was sent: the hub computes all aggregates and shows the run."""
    run_id, created = finishing.finish(database, storage, sha256, body, caller)
    if created:
        verify_after_post(request, database, run_id)
    with database.read(caller) as session:
        detail = service.detail_of(service.find(session, run_id), base_url)
    text = detail.model_dump_json(by_alias=True)
    return Response(text, 201 if created else 200, media_type="application/json")


@router.delete(_POSTING, status_code=204, responses=refusals(401, 403, 404, 422))
def drop_posting(caller: Poster, database: HubDatabase, storage: HubStorage, sha256: Digest) -> Response:
    """Forget what was sent of a run."""
    posting.drop(database, storage, sha256, caller)
    return Response(status_code=204)


@router.get("/keys", response_model=KeyList, responses=refusals(401))
def list_keys(session: ReadSession, caller: Caller) -> KeyList:
    """List your keys that sign runs."""
    return signing.keys_of(session, caller.user_id)


@router.post(
    "/keys",
    response_model=KeyInfo,
    status_code=201,
    responses={
        200: {"model": KeyInfo, "description": "It was registered before"},
        **refusals(401, 403, 409, 422),
    },
)
def add_key(session: WriteSession, caller: Manager, body: NewKey) -> Response:
    """Register a public key that you sign runs with."""
    key, created = signing.add_key(session, body, caller)
    return Response(key.model_dump_json(), 201 if created else 200, media_type="application/json")


@router.delete("/keys/{fingerprint}", response_model=KeyInfo, responses=refusals(401, 403, 404, 422))
def revoke_key(
    session: WriteSession, caller: Manager, fingerprint: Annotated[str, Path(min_length=6, max_length=64)]
) -> KeyInfo:
    """Revoke a key: it signs nothing any more, and runs that it signed say so."""
    return signing.revoke_key(session, fingerprint, caller)


def limits_of(settings: Settings) -> PostingLimits:
    """Return what the settings say of postings."""
    return PostingLimits(
        run_bytes=settings.max_run_bytes,
        artifacts=settings.max_artifacts,
        open_postings=settings.max_open_postings,
        kept=timedelta(hours=settings.posting_hours),
    )


def verify_after_post(request: Request, database: Database, run_id: str) -> None:
    """Have a run read that was just posted and, where the settings say so, played again."""
    settings: Settings = request.app.state.settings
    queue: JobQueue = request.app.state.jobs

    if database.committed(
        lambda session: verification.request_after_post(session, queue, settings, run_id), HUB
    ):
        wake_jobs(request)
