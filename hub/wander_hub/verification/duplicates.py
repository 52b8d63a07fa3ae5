"""The mark of a duplicate: finding runs that are alike, giving it, and taking it off where it is wrong.

Two models that answer alike look like a copy. Who manages the environment may say that one
is none, with a reason that everybody can read; nobody may say so of a run of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, delete, false, func, insert, or_, select
from sqlalchemy.orm import Session, joinedload
from wander.wire import RunSummary, VerificationLevel
from wander.wire.verification import Clearance

from wander_hub.database import now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.leaderboards.curation import find_managed_run
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.verification.levels import (
    level_by,
    level_of,
    level_of_copy,
    level_of_understated,
    level_of_unread,
)
from wander_hub.verification.models import ClearedCopy, RunExamination, RunSketch, SketchKey, Verification

_FEWEST_SHARED = 2
"""Hashes that two sketches share before the runs are compared."""
_MOST_LIKE = 8
"""Runs that a run is compared with, the most like first."""


def sketch_key(session: Session, run_id: str) -> bytes:
    """Return the key of the sketches of an environment's runs, which nobody outside the hub knows."""
    environment_id = runs.find(session, run_id).environment_id
    found = session.get(SketchKey, environment_id)
    if found is None:
        found = SketchKey(environment_id=environment_id, key=secrets.token_hex(32))
        session.add(found)
        session.flush()
    return bytes.fromhex(found.key)


def keep_sketch(session: Session, run_id: str, values: Sequence[int]) -> None:
    """Keep the sketch of what a run says."""
    environment_id = runs.find(session, run_id).environment_id
    session.execute(delete(RunSketch).where(RunSketch.run_id == run_id))
    rows = [{"environment_id": environment_id, "value": one, "run_id": run_id} for one in values]
    if rows:
        session.execute(insert(RunSketch), rows)


def age(run: Run) -> tuple[datetime, str]:
    """Return what orders runs by age."""
    return run.posted_at, run.run_id


def runs_like(session: Session, run: Run) -> Sequence[Run]:
    """Return the public runs of another model or user whose sketch has most in common with that of a run."""
    values = select(RunSketch.value).where(RunSketch.run_id == run.run_id).scalar_subquery()
    shared = (
        select(RunSketch.run_id, func.count().label("count"))
        .where(RunSketch.environment_id == run.environment_id, RunSketch.value.in_(values))
        .group_by(RunSketch.run_id)
        .having(func.count() >= _FEWEST_SHARED)
        .subquery()
    )
    query = _suspects(session, run).join(shared, shared.c.run_id == Run.run_id)
    if run.model.startswith("scripted:"):  # two scripts for one environment may well share their words
        query = query.where(or_(Run.model == run.model, ~Run.model.startswith("scripted:")))
    return session.scalars(query.order_by(shared.c.count.desc(), Run.posted_at).limit(_MOST_LIKE)).all()


def mark_copies(session: Session, run: Run, digest: str | None, repeats: Sequence[str]) -> Sequence[Run]:
    """Mark a run that repeats an earlier one, and later ones that repeat it, since those may be read first.

    Returns the runs that are marked now.
    """
    marked = []
    same = RunExamination.completions_sha256 == digest if digest is not None else false()
    query = _suspects(session, run).join(RunExamination, RunExamination.run_id == Run.run_id)
    alike = sorted(session.scalars(query.where(or_(same, Run.run_id.in_(repeats)))), key=age)
    for one in [run, *alike]:
        examined = session.get_one(RunExamination, one.run_id)
        first = alike[0] if one is run and alike else run
        known = run_repository.run_named(session, examined.duplicate_of) if examined.duplicate_of else None
        if age(first) >= age(one) or (known is not None and age(known) <= age(first)):
            continue
        examined.duplicate_of = first.run_id
        examined.independent, examined.note = False, f"a copy of `{first.run_id}`"
        if clearance_of(session, one.run_id) is None:
            one.level, one.level_reason = level_of_copy(first)
        marked.append(one)
    session.flush()
    return marked


def keep_fault(session: Session, run_id: str, fault: str) -> None:
    """Keep that a run could not be examined: whether it is a copy nobody knows, so it does not rank."""
    run = runs.find(session, run_id)
    run_repository.lock_run(session, run)
    one = session.get(RunExamination, run_id) or RunExamination(run_id=run_id)
    one.fault, one.examined_at, one.independent = fault, now(), False
    session.add(one)
    run.level, run.level_reason = level_of_unread(fault)
    session.flush()
    refresh_results(session, run.environment)


def level_of_examined(session: Session, run: Run, one: RunExamination) -> tuple[VerificationLevel, str]:
    """Return the level of a run after another examination: it may have been found to be a copy before."""
    first = run_repository.run_named(session, one.duplicate_of) if one.duplicate_of is not None else None
    if first is not None and clearance_of(session, run.run_id) is None:
        return level_of_copy(first)
    return supported_level(session, run)


def supported_level(session: Session, run: Run) -> tuple[VerificationLevel, str]:
    """Return the level that a run's rollouts and the hub's replays of it support, and why."""
    examined = session.get(RunExamination, run.run_id)
    if examined is not None and (check := examined.token_check) is not None and check.understated:
        return level_of_understated(check)
    level, reason = level_of(run.parsed_manifest, RunSummary.model_validate(run.summary))
    verified = select(Verification).where(Verification.run_id == run.run_id)
    verified = verified.options(joinedload(Verification.job)).order_by(Verification.id)
    for one in session.scalars(verified):
        level, reason = level_by(one, level, reason)
    return level, reason


def _suspects(session: Session, run: Run) -> Select[Run]:
    """Return the statement on the runs that a run may be a copy of, or they of it."""
    query = run_repository.visible(session).where(Run.environment_id == run.environment_id)
    # What is private or withdrawn neither accuses nor is accused.
    query = query.where(run_repository.counts(), Run.run_id != run.run_id, Run.kind == run.kind)
    if run.private or run.withdrawn_at is not None:
        query = query.where(false())
    return query.where(or_(Run.model != run.model, Run.posted_by_id != run.posted_by_id))


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
    run.level, run.level_reason = supported_level(session, run)


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
