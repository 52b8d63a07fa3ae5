"""Ask for verifications, tell of them, and keep what came out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, func, insert, literal, select
from sqlalchemy.orm import Session, contains_eager, joinedload
from wander.types import EnvironmentInfo
from wander.wire import RunSummary
from wander.wire.events import VerificationEvent
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
from wander_hub.environments.repository import KEPT_STATEMENTS
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.jobs import OPEN, Job, TableQueue
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.rights import rights
from wander_hub.runs import service as runs
from wander_hub.runs.events import tell_of_run
from wander_hub.runs.models import Run
from wander_hub.runs.repository import lock_run, readable_run, readable_run_by
from wander_hub.settings import Settings
from wander_hub.verification import evidence
from wander_hub.verification.aggregates import add_bounds
from wander_hub.verification.levels import settle_level
from wander_hub.verification.models import Verification, VerificationDivergence

KIND = "replay"
"""Of the jobs that play a run again."""
SHOWN_DIVERGENCES = 100
"""Divergences in the report itself; all of them have a page of their own."""
_LEAST_SECONDS = 60.0
_NEWEST = 200
_LOOKED_AT = 20
"""Of the last verifications of a version, some of which may have failed."""


def visible(session: Session) -> Select[Verification]:
    """Return the statement every read builds on: the verifications of runs that the caller may see."""
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
    """Ask for a run to be played again; returns the verification and whether it is a new one.

    While one of the same size and level waits or runs, that one is returned.
    """
    run = runs.find(session, run_id)
    if (refused := find_refusal(run, settings, caller)) is not None:
        raise refused
    same = (Verification.run_id == run.run_id) & (Verification.level == wanted.level)
    of_size = Verification.sample.is_not_distinct_from(wanted.sample)
    waiting = visible(session).join(Verification.job).where(same, of_size, Job.state.in_(OPEN))
    under_way = session.scalar(waiting.order_by(Verification.id.desc()).limit(1))
    if under_way is not None:
        audit.nothing_done(session)
        return info_of(under_way), False
    mine = select(func.count()).select_from(Verification).join(Verification.job)
    mine = mine.where(Verification.requested_by_id == caller.user_id, Job.state.in_(OPEN))
    if session.scalars(mine).one() >= settings.max_waiting_verifications:
        raise HubProblem(
            429,
            "too_many_verifications",
            f"{settings.max_waiting_verifications} verifications of yours wait already",
            hint="wait for one of them, or call one off",
        )
    number = _submit(session, queue, settings, run, wanted, caller.user_id)
    owner = run.environment.owner.name
    audit.about(session, owner=owner, number=number, **wanted.model_dump(exclude_none=True))
    return info_of(find(session, number)), True


def find_refusal(run: Run, settings: Settings, caller: Identity) -> HubProblem | None:
    """Return why the caller can have no replay of a run here, whatever waits already; None where they can."""
    if not rights.may(caller, "results", run.environment):
        return rights.refusal(caller, "results", run.environment)
    if settings.verification == "off":
        hint = f"do it yourself: `wander runs replay {run.run_id}`"
        return HubProblem(503, "verification_off", "this hub plays no runs again", hint=hint)
    if (why := unplayable(run)) is not None:
        return HubProblem(422, "not_replayable", f"`{run.run_id}` cannot be played again: {why}")
    return None


def request_after_post(session: Session, queue: TableQueue, settings: Settings, run_id: str) -> None:
    """Have a posted run read and, where that can raise its level, played again; once, however often asked.

    This belongs in the transaction that makes the run. Reading it runs no code of an environment, so that
    also happens on a hub that plays nothing again.
    """
    run = runs.find(session, run_id)
    if run.kind != "evaluation" or run.rollouts_sha256 is None:
        return
    evidence.submit(session, queue, run_id, run.posted_by_id)
    wanted = settings.verify_posts and settings.verification != "off"
    # Whether the environment is deterministic is not asked here: the manifest may say what it likes.
    if wanted and run.level == "complete" and unplayable(run) is None and not _count(session, run_id):
        _submit(session, queue, settings, run, VerificationRequest(), None)


def list_jobless(session: Session, settings: Settings) -> Sequence[str]:
    """Return the runs, oldest first, for which `request_after_post` has something to do."""
    read = select(Job.id).where(Job.key == literal(evidence.KEY) + Run.run_id)
    lacks = ~read.exists()
    if settings.verify_posts and settings.verification != "off":
        played = select(Verification.id).where(Verification.run_id == Run.run_id)
        lacks |= (Run.level == "complete") & Version.deleted_at.is_(None) & ~played.exists()
    query = (
        select(Run.run_id)
        .join(Version, Version.id == Run.version_id)
        .where(lacks, Run.kind == "evaluation", Run.rollouts_sha256.is_not(None), Run.withdrawn_at.is_(None))
    )
    return session.scalars(query.order_by(Run.posted_at, Run.run_id)).all()


def unplayable(run: Run) -> str | None:
    """Return why a run cannot be played again, or None."""
    if run.kind != "evaluation":
        return "it is a training run"
    if run.rollouts_sha256 is None:
        return "it holds no rollouts"
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
    """Return the seconds that a replay may take: three times those of the run's environment, and a minute."""
    return min(most, _LEAST_SECONDS + 3 * run.own_seconds)


def _count(session: Session, run_id: str) -> int:
    return session.query(Verification).filter_by(run_id=run_id).count()


def list_page(session: Session, run: Run) -> VerificationList:
    """Return every verification of a run, the newest first."""
    found = visible(session).where(Verification.run_id == run.run_id).order_by(Verification.id.desc())
    return VerificationList(data=[info_of(one) for one in session.scalars(found)])


def list_states(session: Session, run_id: str) -> list[tuple[Any, ...]]:
    """Return what differs once the list says something else, at the cost of a look at the jobs alone."""
    query = select(Verification.id, Job.state, Job.progress, Job.error).join(Verification.job)
    query = query.join(Verification.run).join(Run.environment).join(Environment.owner)
    query = query.where(Verification.run_id == run_id, readable_run(session)).order_by(Verification.id)
    return [tuple(row) for row in session.execute(query)]


def divergence_page(session: Session, number: int, offset: int, limit: int) -> DivergencePage:
    """Return a page of the rollouts that came out otherwise."""
    found = find(session, number)
    kept = select(VerificationDivergence).where(VerificationDivergence.verification_id == number)
    place = VerificationDivergence.number  # dense, so the page is one range of the primary key
    rows = session.scalars(kept.where(place >= offset, place < offset + limit).order_by(place))
    return DivergencePage(
        data=[fill(Divergence, row) for row in rows],
        total=session.scalars(kept.with_only_columns(func.count())).one(),
        differing=found.report["differing"] if found.report else 0,
        offset=offset,
    )


def find(session: Session, number: int) -> Verification:
    """Return a verification or raise a 404."""
    found = session.scalar(visible(session).where(Verification.id == number))
    if found is None:
        raise HubProblem(404, "verification_not_found", f"there is no verification {number}")
    return found


def find_info(session: Session, version_id: int) -> EnvironmentInfo | None:
    """Return what a version's environment last said about itself when the hub played a run of it again.

    Its newest runs are looked at, so that a page costs the same however many there are.
    """
    for made_with in session.scalars(_made_with(session.info.get(READER)), {"version_id": version_id}):
        if made_with is not None:
            return VerifiedWith.model_validate(made_with).environment.info
    return None


@lru_cache(KEPT_STATEMENTS)
def _made_with(reader: Identity | None) -> Select[Any]:
    newest = select(Run.run_id).where(Run.version_id == bindparam("version_id"))
    recent = Verification.run_id.in_(newest.order_by(Run.posted_at.desc()).limit(_NEWEST))
    query = select(Verification.made_with).join(Verification.run).join(Run.environment)
    query = query.where(readable_run_by(reader), recent, Verification.gave.is_not(None))
    return query.order_by(Verification.id.desc()).limit(_LOOKED_AT)


def cancel(session: Session, queue: TableQueue, number: int, caller: Identity) -> VerificationInfo:
    """Call a verification off for good, as its requester may, or put it off.

    Anyone else who manages the environment ends the attempt that is under way, once: the verification waits
    again, behind the jobs of other users.
    """
    found = find(session, number)
    requested_by = found.requested_by.name if found.requested_by else None
    if not may_cancel(caller, requested_by, found.run.environment):
        raise rights.refusal(caller, "manage", found.run.environment)
    audit.about(session, owner=found.run.environment.owner.name, run=found.run_id)
    if requested_by == caller.user:
        queue.cancel(session, found.job_id)
    elif found.job.state == "running" and not queue.put_off(session, found.job_id):
        hint = "it ends by itself when its time is over"
        raise HubProblem(409, "put_off_before", f"verification {number} was put off before", hint=hint)
    session.refresh(found.job)
    return info_of(found)


def may_cancel(caller: Identity, requested_by: str | None, environment: Environment) -> bool:
    """Tell whether the caller may call off, or put off, a verification that this user asked for."""
    return requested_by == caller.user or rights.may(caller, "manage", environment)


def keep(
    session: Session,
    job_id: int,
    report: ReplayReport,
    made_with: VerifiedWith | None,
    summary: RunSummary | None = None,
) -> None:
    """Keep what a replay came to, and give the run the level that it supports.

    `summary`: the run's aggregates, where they are others than the run's own words gave.
    """
    found = session.query(Verification).filter_by(job_id=job_id).one()
    rows = [
        {"verification_id": found.id, "number": number, **one.model_dump()}
        for number, one in enumerate(report.divergences)
    ]
    if rows:
        session.execute(insert(VerificationDivergence), rows)
    shown = report.model_copy(update={"divergences": report.divergences[:SHOWN_DIVERGENCES]})
    found.report = shown.model_dump(mode="json")
    if made_with is not None:
        by_this_hub = made_with.model_copy(update={"hub": __version__})
        found.made_with = by_this_hub.model_dump(mode="json")
    _give_level(session, found, summary)


def declared_info(session: Session, run: Run) -> EnvironmentInfo:
    """Return what a run states of its environment, with the bounds that the newest replay met."""
    stated = run.brief_manifest.environment.info
    met = select(Verification.made_with).where(Verification.run_id == run.run_id)
    met = met.where(Verification.report.is_not(None)).order_by(Verification.id.desc())
    found = next((one for one in session.scalars(met) if one), None)
    if found is None:
        return stated
    return add_bounds(stated, VerifiedWith.model_validate(found).environment.info)


def keep_failures(session: Session, job_ids: Sequence[int]) -> None:
    """Tell of verifications that ended without a report; they change no level."""
    failed = visible(session).where(Verification.job_id.in_(job_ids))
    # Environments are locked in one order, lest two workers wait for each other.
    in_order = failed.order_by(Run.environment_id, Verification.id).execution_options(populate_existing=True)
    for one in session.scalars(in_order).all():
        _give_level(session, one)


def _give_level(session: Session, ended: Verification, summary: RunSummary | None = None) -> None:
    run = runs.find(session, ended.run_id)
    lock_run(session, run)
    if summary is not None:
        run.summary, run.reward_mean = summary.model_dump(mode="json"), summary.reward_mean
        run.board_level = ""  # so that it is placed anew
    session.flush()
    settle_level(session, run)
    ended.gave = run.level
    session.flush()
    refresh_results(session, run.environment)
    told = {"verification": ended.id, "reported": ended.report is not None}
    tell_of_run(session, run.environment, run, "run.verified", VerificationEvent, **told)


def info_of(one: Verification) -> VerificationInfo:
    """Return a verification as the API shows it."""
    return fill(
        VerificationInfo,
        one,
        state=one.job.state,
        sought=one.level,
        requested_by=one.requested_by.name if one.requested_by else None,
        finished_at=one.job.finished_at,
        progress=one.job.progress,
        error=one.job.error,
        report=ReplayReport.model_validate(one.report) if one.report else None,
        made_with=VerifiedWith.model_validate(one.made_with) if one.made_with else None,
    )
