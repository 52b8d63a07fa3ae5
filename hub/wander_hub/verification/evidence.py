"""What the hub knows of a run beside its own replays: whose copy it is, what it repeats, who repeated it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager
from wander.wire import RunManifest
from wander.wire.verification import Agreement, Rerun, RunEvidence

from wander_hub.database import now
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.verification import duplicates
from wander_hub.verification.models import RunExamination

KIND = "examine"
"""Of the jobs that read a posted run."""
_PROVEN = ("rescored", "replayed", "rerun")
"""Levels of a run that may be evidence for another one: the hub derived its rewards itself."""


def request(session: Session, queue: TableQueue, run: Run) -> None:
    """Have a posted run read."""
    queue.submit(session, KIND, f"{KIND} {run.run_id}", {"run_id": run.run_id}, priority=2)


def original_of(session: Session, run: Run, manifest: RunManifest) -> Run | None:
    """Return the run that this one repeats, where the hub has it under the same environment version."""
    if manifest.rerun_of is None or manifest.rerun_of == run.run_id:
        return None
    found = run_repository.run_named(session, manifest.rerun_of)
    if found is None or found.version_id != run.version_id or found.kind != "evaluation":
        return None
    return found if found.withdrawn_at is None else None


def keep_examination(session: Session, run_id: str, digest: str | None, found: Agreement | None) -> None:
    """Keep what reading a run told, mark copies, and give the run that it repeats its level."""
    run = runs.find(session, run_id)
    manifest = runs.manifest_of(run)
    one = session.get(RunExamination, run_id) or RunExamination(run_id=run_id)
    one.completions_sha256 = digest
    one.rerun_of = manifest.rerun_of
    one.agreement = found.model_dump(mode="json") if found is not None else None
    one.examined_at = now()
    one.independent, one.note = False, ""
    session.add(one)
    session.flush()
    if digest is not None:
        _mark_copies(session, run, digest)
    if found is not None:
        original = original_of(session, run, manifest)
        one.independent = original is not None and _is_independent(run, original, one)
    session.flush()
    refresh_results(session, run.environment)
    count_rerun(session, run)


def count_rerun(session: Session, run: Run) -> None:
    """Give a run the level `rerun` when another one, which the hub has proven, repeats it and agrees."""
    one = session.get(RunExamination, run.run_id)
    if one is None or one.agreement is None or not one.independent or run.level not in _PROVEN:
        return
    found = Agreement.model_validate(one.agreement)
    original = original_of(session, run, runs.manifest_of(run))
    if original is None or found.verdict != "agrees" or found.differing:
        return
    if original.level in ("complete", "rescored", "replayed"):
        original.level = "rerun"
        original.level_reason = f"`{run.run_id}` by {run.posted_by.name} repeated it and agrees: {found.told}"
        session.flush()
        refresh_results(session, original.environment)


def settle(session: Session, run_id: str) -> RunEvidence:
    """Bring listings, and the runs that this one repeats, up to date after its level changed."""
    run = runs.find(session, run_id)
    session.flush()
    refresh_results(session, run.environment)
    count_rerun(session, run)
    return evidence_of(session, run_id)


def evidence_of(session: Session, run_id: str) -> RunEvidence:
    """Return what a run's level rests on beside the hub's replays."""
    run = runs.find(session, run_id)
    one = session.get(RunExamination, run_id)
    reruns = session.scalars(
        run_repository.visible(session)
        .join(RunExamination, RunExamination.run_id == Run.run_id)
        .where(RunExamination.rerun_of == run_id)
        .order_by(Run.posted_at.desc())
        .limit(100)
    ).all()
    return RunEvidence(
        run_id=run_id,
        level=run.level,
        level_reason=run.level_reason,
        examined_at=one.examined_at if one else None,
        duplicate_of=one.duplicate_of if one else None,
        cleared=duplicates.clearance_of(session, run_id),
        rerun_of=one.rerun_of if one else None,
        reruns=[_rerun(session, each) for each in reruns],
    )


def _rerun(session: Session, run: Run) -> Rerun:
    one = session.get_one(RunExamination, run.run_id)
    return Rerun(
        run_id=run.run_id,
        posted_by=run.posted_by.name,
        level=run.level,
        independent=one.independent,
        note=one.note,
        agreement=Agreement.model_validate(one.agreement) if one.agreement else None,
    )


def _is_independent(run: Run, original: Run, one: RunExamination) -> bool:
    if run.posted_by_id == original.posted_by_id:
        one.note = "posted by who posted the run that it repeats"
        return False
    if one.duplicate_of is not None:
        one.note = "its completions are those of an earlier run, letter by letter, as a copy's would be"
        return False
    return True


def _mark_copies(session: Session, run: Run, digest: str) -> None:
    """Mark every run that has the completions of an earlier one of another model or another user.

    All of them are looked at, since the earlier one may have been read later.
    """
    alike = _with_completions(session, run.environment_id, digest)
    for position, (one, examined) in enumerate(alike):
        earlier = [
            before
            for before, _ in alike[:position]
            if before.model != one.model or before.posted_by_id != one.posted_by_id
        ]
        if not earlier:
            continue
        examined.duplicate_of = earlier[0].run_id
        if duplicates.clearance_of(session, one.run_id) is None:
            duplicates.mark(one, earlier[0])
    session.flush()


def _with_completions(
    session: Session, environment_id: int, digest: str
) -> Sequence[tuple[Run, RunExamination]]:
    """Return the runs of an environment with these completions, in the order in which they were posted."""
    query = (
        select(Run, RunExamination)
        .join(RunExamination, RunExamination.run_id == Run.run_id)
        .join(Run.posted_by)
        .where(RunExamination.completions_sha256 == digest, Run.environment_id == environment_id)
        # What is private or withdrawn accuses nobody.
        .where(Run.private.is_(False), Run.withdrawn_at.is_(None))
        .options(contains_eager(Run.posted_by))
        .order_by(Run.posted_at, Run.run_id)
    )
    return [(one, examined) for one, examined in session.execute(query)]
