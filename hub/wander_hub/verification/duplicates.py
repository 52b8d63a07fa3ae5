"""The mark of a duplicate: taking it off where it says something wrong, and giving it back.

Two models that answer alike, letter by letter, look like a copy. Who manages the environment may say that one
is none, with a reason that everybody can read; nobody may say so of a run of their own.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload
from wander.wire import RunSummary
from wander.wire.verification import Clearance, ReplayReport

from wander_hub.database import now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.leaderboards.curation import find_managed_run
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.verification.levels import level_after, level_of, level_of_copy
from wander_hub.verification.models import ClearedCopy, RunExamination, Verification


def clear(session: Session, caller: Identity, run_id: str, reason: str) -> None:
    """Give a marked run the level that its rollouts and the hub's replays of it support."""
    run = find_managed_run(session, caller, run_id)
    _original(session, run)
    if run.posted_by_id == caller.user_id and not caller.administers:
        hint = "ask somebody else who manages the environment, or the hub's administrators"
        raise HubProblem(403, "own_run", "nobody clears a run of their own", hint=hint)
    known = session.get(ClearedCopy, run_id) or ClearedCopy(run_id=run_id)
    known.reason, known.cleared_at, known.cleared_by_id = reason, now(), caller.user_id
    session.add(known)
    session.flush()
    session.expire(known, ["cleared_by"])
    run.level, run.level_reason = level_of(runs.manifest_of(run), RunSummary.model_validate(run.summary))
    reports = select(Verification.report).where(Verification.run_id == run_id).order_by(Verification.id)
    for report in session.scalars(reports):
        if report is not None:
            found = ReplayReport.model_validate(report)
            run.level, run.level_reason = level_after(run.level, run.level_reason, found)


def take_back(session: Session, caller: Identity, run_id: str) -> None:
    """Give a cleared run its mark again."""
    run = find_managed_run(session, caller, run_id)
    known = session.get(ClearedCopy, run_id)
    if known is None:
        raise HubProblem(404, "not_cleared", f"nobody cleared the run `{run_id}`")
    first = run_repository.run_named(session, _original(session, run))
    session.delete(known)
    if first is not None:
        run.level, run.level_reason = level_of_copy(first)


def clearance_of(session: Session, run_id: str) -> Clearance | None:
    """Return who cleared a run, when and why; None where nobody did."""
    query = select(ClearedCopy).where(ClearedCopy.run_id == run_id)
    found = session.scalar(query.options(joinedload(ClearedCopy.cleared_by)))
    if found is None:
        return None
    return Clearance(reason=found.reason, cleared_by=found.cleared_by.name, cleared_at=found.cleared_at)


def _original(session: Session, run: Run) -> str:
    """Return the run whose duplicate this one is marked as; raise a 422 where it is none."""
    examined = session.get(RunExamination, run.run_id)
    if examined is None or examined.duplicate_of is None:
        raise HubProblem(422, "no_duplicate", f"the run `{run.run_id}` is not marked as a duplicate")
    return examined.duplicate_of
