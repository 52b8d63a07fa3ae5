"""Verifications: request them, describe them and store their results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, func, insert, literal, select
from sqlalchemy.orm import Session, contains_eager, joinedload
from wander.types import BOX_KINDS, EnvironmentInfo
from wander.wire import RunManifest, RunSummary
from wander.wire.events import VerificationEvent
from wander.wire.untrusted_text import MANIFEST_HEAD, read_record
from wander.wire.verification import (
    Divergence,
    DivergencePage,
    ReplayReport,
    VerificationInfo,
    VerificationList,
    VerificationRequest,
    VerifiedWith,
)

from wander_hub import __version__, audit
from wander_hub.database import READER, fill, now
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import KEPT_STATEMENTS, ListedVersion
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.jobs import OPEN, Job, TableQueue
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.rights import rights
from wander_hub.runs import service as runs
from wander_hub.runs.events import emit_run_event
from wander_hub.runs.models import Run
from wander_hub.runs.repository import counts, lock_run, readable_run, readable_run_by, runs_readable_by
from wander_hub.settings import Settings
from wander_hub.verification import evidence
from wander_hub.verification.aggregates import add_bounds
from wander_hub.verification.levels import settle_level
from wander_hub.verification.models import Verification, VerificationDivergence

MOST_WAITING = 20
"""Maximum number of waiting verifications of one user."""
KIND = "replay"
"""Kind of the jobs that replay a run."""
SHOWN_DIVERGENCES = 100
"""Number of divergences in the report itself. All of them are listed on their own page."""
_LEAST_SECONDS = 60.0
_NEWEST = 200
_LOOKED_AT = 20
"""Number of recent verifications of a version to search, because some may have failed."""


def visible(session: Session) -> Select[Verification]:
    """Return the base statement of every read: verifications of runs that the caller may see."""
    query = select(Verification).join(Verification.run).join(Run.environment).join(Environment.owner)
    run = contains_eager(Verification.run).contains_eager(Run.environment)
    return query.where(readable_run(session)).options(
        run.contains_eager(Environment.owner),
        joinedload(Verification.job),
        joinedload(Verification.requested_by),
    )


def request(
    session: Session,
    queue: TableQueue,
    settings: Settings,
    run_id: str,
    caller: Identity,
    wanted: VerificationRequest,
) -> tuple[VerificationInfo, bool]:
    """Request a verification of a run; return it and whether it is new.

    If a verification of the same size and level is queued or running, that one is returned.
    """
    run = runs.find(session, run_id)
    if (problem := find_refusal(run, settings, caller)) is not None:
        raise problem
    same = (Verification.run_id == run.run_id) & (Verification.level == wanted.level)
    of_size = Verification.sample.is_not_distinct_from(wanted.sample)
    waiting = visible(session).join(Verification.job).where(same, of_size, Job.state.in_(OPEN))
    under_way = session.scalar(waiting.order_by(Verification.id.desc()).limit(1))
    if under_way is not None:
        audit.nothing_done(session)
        return info_of(under_way), False
    mine = select(func.count()).select_from(Verification).join(Verification.job)
    mine = mine.where(Verification.requested_by_id == caller.user_id, Job.state.in_(OPEN))
    if session.scalars(mine).one() >= MOST_WAITING:
        raise HubProblem(
            429,
            "too_many_verifications",
            f"{MOST_WAITING} of your verifications are already queued or running",
            hint="wait for one of them, or cancel one",
        )
    number = _submit(session, queue, settings, run, wanted, caller.user_id)
    owner = run.environment.owner.name
    audit.about(session, owner=owner, number=number, **wanted.model_dump(exclude_none=True))
    return info_of(find(session, number)), True


def find_refusal(run: Run, settings: Settings, caller: Identity) -> HubProblem | None:
    """Return why the caller cannot request a verification of a run, regardless of the queue; otherwise
    None."""
    if not rights.may(caller, "results", run.environment):
        return rights.refusal(caller, "results", run.environment)
    if settings.verification == "off":
        hint = f"replay it yourself: `wander runs replay {run.run_id}`"
        return HubProblem(503, "verification_off", "this hub does not replay runs", hint=hint)
    if _needs_boxes(settings, run):
        hint = f"replay it yourself: `wander runs replay {run.run_id}`"
        return HubProblem(503, "boxes_off", "this hub does not start the boxes that the run needs", hint=hint)
    if (why := unreplayable_reason(run)) is not None:
        return HubProblem(422, "not_replayable", f"`{run.run_id}` cannot be replayed: {why}")
    return None


def request_after_post(session: Session, queue: TableQueue, settings: Settings, run_id: str) -> None:
    """Submit the examination of a posted run and, if it can raise the level, its replay; repeated calls do
    nothing.

    This runs in the transaction that creates the run. The examination runs no environment code, so it also
    happens on a hub that does not replay runs.
    """
    run = runs.find(session, run_id)
    if run.kind != "evaluation" or run.rollouts_sha256 is None:
        return
    evidence.submit(session, queue, run_id, run.posted_by_id)
    wanted = settings.verify_posts and settings.verification != "off"
    # The manifest's claim about determinism is not used here, because a submitter can change it.
    if (
        wanted
        and run.level == "complete"
        and unreplayable_reason(run) is None
        and not _needs_boxes(settings, run)
        and not _count(session, run_id)
    ):
        _submit(session, queue, settings, run, VerificationRequest(), None)


def list_jobless(session: Session, settings: Settings) -> Sequence[str]:
    """Return the runs for which `request_after_post` would submit something, oldest first."""
    read = select(Job.id).where(Job.key == literal(evidence.KEY) + Run.run_id)
    lacks = ~read.exists()
    if settings.verify_posts and settings.verification != "off":
        played = select(Verification.id).where(Verification.run_id == Run.run_id)
        playable = (Run.level == "complete") & Version.deleted_at.is_(None) & ~played.exists()
        if settings.boxes == "off":
            playable &= func.coalesce(Version.environment_kind, "").not_in(BOX_KINDS)
        lacks |= playable
    query = (
        select(Run.run_id)
        .join(Version, Version.id == Run.version_id)
        .where(lacks, Run.kind == "evaluation", Run.rollouts_sha256.is_not(None), Run.withdrawn_at.is_(None))
    )
    return session.scalars(query.order_by(Run.posted_at, Run.run_id)).all()


def _needs_boxes(settings: Settings, run: Run) -> bool:
    """Return whether a run can only be replayed in boxes, and this hub does not start any."""
    return settings.boxes == "off" and run.version.environment_kind in BOX_KINDS


def unreplayable_reason(run: Run) -> str | None:
    """Return why a run cannot be replayed, or None."""
    if run.kind != "evaluation":
        return "it is a training run"
    if run.rollouts_sha256 is None:
        return "it has no rollouts"
    if run.withdrawn_at is not None:
        return "it was withdrawn"
    if run.version.deleted_at is not None:
        return "its environment version was deleted"
    return None


def _submit(
    session: Session,
    queue: TableQueue,
    settings: Settings,
    run: Run,
    wanted: VerificationRequest,
    user_id: int | None,
) -> int:
    number = _count(session, run.run_id) + 1
    job_id = queue.submit(
        session,
        KIND,
        f"{KIND} {run.run_id} {number}",
        {"run_id": run.run_id, **wanted.model_dump()},
        created_by=user_id if user_id is not None else run.posted_by_id,
        cost=time_limit_of(run, settings.verification_seconds) / _LEAST_SECONDS,
    )
    added = Verification(
        run_id=run.run_id,
        job_id=job_id,
        sample=wanted.sample,
        level=wanted.level,
        requested_by_id=user_id,
        created_at=now(),
    )
    session.add(added)
    session.flush()
    return added.id


def time_limit_of(run: Run, most: float) -> float:
    """Return the maximum seconds of a replay: three times the environment's recorded time, plus a minute."""
    return min(most, _LEAST_SECONDS + 3 * run.own_seconds)


def _count(session: Session, run_id: str) -> int:
    return session.query(Verification).filter_by(run_id=run_id).count()


def list_page(session: Session, run: Run) -> VerificationList:
    """Return all verifications of a run, newest first."""
    query = visible(session).where(Verification.run_id == run.run_id).order_by(Verification.id.desc())
    return VerificationList(data=[info_of(verification) for verification in session.scalars(query)])


def divergence_page(session: Session, number: int, offset: int, limit: int) -> DivergencePage:
    """Return a page of the rollouts with different results."""
    verification = find(session, number)
    kept = select(VerificationDivergence).where(VerificationDivergence.verification_id == number)
    position = VerificationDivergence.number  # dense, so a page is one range of the primary key
    rows = session.scalars(kept.where(position >= offset, position < offset + limit).order_by(position))
    return DivergencePage(
        data=[fill(Divergence, row) for row in rows],
        total=session.scalars(kept.with_only_columns(func.count())).one(),
        differing=verification.report["differing"] if verification.report else 0,
        offset=offset,
    )


def find(session: Session, number: int) -> Verification:
    """Return a verification; raise a 404 problem if it does not exist."""
    verification = session.scalar(visible(session).where(Verification.id == number))
    if verification is None:
        raise HubProblem(404, "verification_not_found", f"there is no verification {number}")
    return verification


def find_info(session: Session, version: Version | ListedVersion) -> EnvironmentInfo | None:
    """Return an environment's description of itself, as the last replay of a version's runs reported it.

    Only the newest runs are searched, so that the cost does not depend on their number. If the hub does not
    run environments, use the last run of the user who published the version, because runs of other users
    could describe the environment falsely.
    """
    reader = session.info.get(READER)
    for made_with in session.scalars(_made_with(reader), {"version_id": version.id}):
        if made_with is not None:
            return VerifiedWith.model_validate(made_with).environment.info
    values = {"version_id": version.id, "poster_id": version.uploaded_by_id}
    brief = session.scalar(_newest_brief(reader), values)
    return read_record(RunManifest, brief, MANIFEST_HEAD).environment.info if brief else None


@lru_cache(KEPT_STATEMENTS)
def _newest_brief(reader: Identity | None) -> Select[str]:
    query = runs_readable_by(reader).with_only_columns(Run.brief, maintain_column_froms=True)
    query = query.where(Run.version_id == bindparam("version_id"), counts())
    query = query.where(Run.posted_by_id == bindparam("poster_id"))
    return query.order_by(Run.posted_at.desc(), Run.run_id).limit(1)


@lru_cache(KEPT_STATEMENTS)
def _made_with(reader: Identity | None) -> Select[Any]:
    newest = select(Run.run_id).where(Run.version_id == bindparam("version_id"))
    recent = Verification.run_id.in_(newest.order_by(Run.posted_at.desc()).limit(_NEWEST))
    query = select(Verification.made_with).join(Verification.run).join(Run.environment)
    query = query.where(readable_run_by(reader), recent, Verification.gave.is_not(None))
    return query.order_by(Verification.id.desc()).limit(_LOOKED_AT)


def cancel(session: Session, queue: TableQueue, number: int, caller: Identity) -> VerificationInfo:
    """Cancel a verification for its requester, or postpone it for a manager of the environment.

    A manager can postpone a verification only once. This stops the current attempt, and moves the
    verification behind the jobs of other users in the queue.
    """
    verification = find(session, number)
    requester = verification.requested_by.name if verification.requested_by else None
    environment = verification.run.environment
    if not may_cancel(caller, requester, environment):
        raise rights.refusal(caller, "manage", environment)
    audit.about(session, owner=environment.owner.name, run=verification.run_id)
    if requester == caller.user:
        queue.cancel(session, verification.job_id)
    elif verification.job.state == "running" and not queue.put_off(session, verification.job_id):
        hint = "it ends when its time limit is reached"
        raise HubProblem(409, "put_off_before", f"verification {number} was already postponed", hint=hint)
    session.refresh(verification.job)
    return info_of(verification)


def may_cancel(caller: Identity, requested_by: str | None, environment: Environment) -> bool:
    """Return whether the caller may cancel, or put off, a verification that a user requested."""
    return requested_by == caller.user or rights.may(caller, "manage", environment)


def store_report(
    session: Session,
    job_id: int,
    report: ReplayReport,
    made_with: VerifiedWith | None,
    summary: RunSummary | None = None,
) -> None:
    """Store the report of a replay, and update the run's level.

    `summary` replaces the run's aggregates if the environment's bounds change them.
    """
    verification = session.query(Verification).filter_by(job_id=job_id).one()
    rows = [
        {"verification_id": verification.id, "number": number, **divergence.model_dump()}
        for number, divergence in enumerate(report.divergences)
    ]
    if rows:
        session.execute(insert(VerificationDivergence), rows)
    shown = report.model_copy(update={"divergences": report.divergences[:SHOWN_DIVERGENCES]})
    verification.report = shown.model_dump(mode="json")
    if made_with is not None:
        by_this_hub = made_with.model_copy(update={"hub": __version__})
        verification.made_with = by_this_hub.model_dump(mode="json")
    _give_level(session, verification, summary)


def declared_info(session: Session, run: Run) -> EnvironmentInfo:
    """Return a run's statements about its environment, with the bounds that the newest replay reported."""
    stated = run.brief_manifest.environment.info
    met = select(Verification.made_with).where(Verification.run_id == run.run_id)
    met = met.where(Verification.report.is_not(None)).order_by(Verification.id.desc())
    newest = next((made_with for made_with in session.scalars(met) if made_with), None)
    if newest is None:
        return stated
    return add_bounds(stated, VerifiedWith.model_validate(newest).environment.info)


def keep_failures(session: Session, job_ids: Sequence[int]) -> None:
    """Record verifications that ended without a report; they do not change any level."""
    failed = visible(session).where(Verification.job_id.in_(job_ids))
    # Lock environments in a fixed order, so that two workers do not wait for each other.
    in_order = failed.order_by(Run.environment_id, Verification.id).execution_options(populate_existing=True)
    for verification in session.scalars(in_order).all():
        _give_level(session, verification)


def _give_level(session: Session, ended: Verification, summary: RunSummary | None = None) -> None:
    run = runs.find(session, ended.run_id)
    lock_run(session, run)
    if summary is not None:
        run.summary, run.reward_mean = summary.model_dump(mode="json"), summary.reward_mean
        run.board_level = ""  # forces a new placement
    session.flush()
    settle_level(session, run)
    ended.gave = run.level
    session.flush()
    refresh_results(session, run.environment)
    details = {"verification": ended.id, "reported": ended.report is not None}
    emit_run_event(session, run.environment, run, "run.verified", VerificationEvent, **details)


def info_of(verification: Verification) -> VerificationInfo:
    """Return a verification as the API shows it."""
    report, made_with = verification.report, verification.made_with
    return fill(
        VerificationInfo,
        verification,
        state=verification.job.state,
        sought=verification.level,
        requested_by=verification.requested_by.name if verification.requested_by else None,
        finished_at=verification.job.finished_at,
        progress=verification.job.progress,
        error=verification.job.error,
        report=ReplayReport.model_validate(report) if report else None,
        made_with=VerifiedWith.model_validate(made_with) if made_with else None,
    )
