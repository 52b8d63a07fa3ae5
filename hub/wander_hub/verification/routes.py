"""The API of verifications."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.encoders import jsonable_encoder
from starlette.responses import JSONResponse, Response
from wander.wire.verification import (
    Difficulty,
    DivergencePage,
    HubCheck,
    HubLearning,
    RunEvidence,
    VerificationInfo,
    VerificationList,
    VerificationRequest,
)

from wander_hub.http.boundary import (
    ForPoster,
    HubStorage,
    Number,
    ReadSession,
    audited,
    wake_jobs,
)
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.jobs import TableQueue
from wander_hub.runs import service as runs
from wander_hub.verification import difficulty, evidence, service, version_checks

router = HubRouter(prefix="/api/v1", tags=["verification"])

RunId = Annotated[str, Path(max_length=64)]


@router.get("/runs/{run_id}/verifications", responses=refusals(404, 422))
def list_verifications(session: ReadSession, run_id: RunId) -> VerificationList:
    """List the verifications of a run, newest first."""
    return service.list_page(session, runs.find(session, run_id))


@router.post(
    "/runs/{run_id}/verifications",
    status_code=201,
    response_model=VerificationInfo,
    responses={
        200: {
            "model": VerificationInfo,
            "description": "A verification of the same size and level is already queued or running",
        },
        **refusals(400, 401, 403, 404, 422, 429, 503),
    },
)
@audited("verification.request")
def request_verification(
    request: Request, context: ForPoster, run_id: RunId, body: VerificationRequest
) -> Response:
    """Request a replay of a run in a sandbox, which compares every rollout.

    For a sample, the hub draws the rollouts when it starts, so that nobody can predict them. The report
    includes the seed.
    """
    queue: TableQueue = request.app.state.jobs
    verification, created = context.commit(
        lambda session: service.request(session, queue, context.settings, run_id, context.caller, body)
    )
    wake_jobs(request)
    return JSONResponse(jsonable_encoder(verification), 201 if created else 200)


@router.get("/runs/{run_id}/evidence", responses=refusals(404, 422))
def get_evidence(session: ReadSession, run_id: RunId) -> RunEvidence:
    """Show the evidence for a run's level: the proof of each level, and who repeated the run."""
    return evidence.evidence_of(session, runs.find(session, run_id))


@router.get("/environments/{owner}/{name}/versions/{version}/check", responses=refusals(404, 422))
def get_check(session: ReadSession, owner: str, name: str, version: str) -> HubCheck:
    """Show the result of the hub's own checks of a version, next to the publisher's statement."""
    return version_checks.check_of(session, owner, name, version)


@router.get("/environments/{owner}/{name}/versions/{version}/learning", responses=refusals(404, 422))
def get_learning(session: ReadSession, owner: str, name: str, version: str) -> HubLearning:
    """Show whether a tiny policy learns on a version by the fixed recipe, as this hub computed it."""
    return version_checks.learning_of(session, owner, name, version)


@router.get("/environments/{owner}/{name}/versions/{version}/difficulty", responses=refusals(404, 422))
def get_difficulty(
    session: ReadSession, storage: HubStorage, owner: str, name: str, version: str
) -> Difficulty:
    """Show the solve rates of a version's examples, in the evaluations that the caller may see."""
    return difficulty.difficulty_of(session, storage, owner, name, version)


@router.get("/verifications/{number}", responses=refusals(404, 422))
def get_verification(session: ReadSession, number: Number) -> VerificationInfo:
    """Show the progress of a verification, or its result."""
    return service.info_of(service.find(session, number))


@router.get("/verifications/{number}/divergences", responses=refusals(404, 422))
def list_divergences(
    session: ReadSession,
    number: Number,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> DivergencePage:
    """List the rollouts that came out differently, each with its first difference."""
    return service.divergence_page(session, number, offset, limit)


@router.delete("/verifications/{number}", responses=refusals(401, 403, 404, 422))
@audited("verification.cancel")
def cancel_verification(request: Request, context: ForPoster, number: Number) -> VerificationInfo:
    """Cancel a verification. Its partial results are not kept."""
    queue: TableQueue = request.app.state.jobs
    return context.commit(lambda session: service.cancel(session, queue, number, context.caller))
