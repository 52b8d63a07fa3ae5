"""What the hub knows of a run beside its own replays: whose copy it is, what it repeats, who repeated it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager
from wander.errors import RunError
from wander.evals.stats.agreement import agreement
from wander.evals.store.jsonl import split_lines
from wander.types import Rollout, canonical_json
from wander.wire import RunManifest
from wander.wire.verification import Agreement, Rerun, RunEvidence

from wander_hub.database import Database, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobRefused
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.storage import Storage
from wander_hub.verification import duplicates
from wander_hub.verification.levels import level_of_copy
from wander_hub.verification.models import RunExamination

KIND = "examine"
"""Of the jobs that read a posted run."""
_PROVEN = ("rescored", "replayed", "rerun")
"""Levels of a run that may be evidence for another one: the hub derived its rewards itself."""
TELLING = 1000
"""Letters and digits in distinct completions below which equal ones may well be a coincidence."""


class Examiner:
    """The handler of examination jobs: reads a run once, beside the requests.

    No code of an environment runs here, so this needs no sandbox.
    """

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Read a run; return what keeps what was found."""
        run_id = str(context.lease.payload["run_id"])
        try:
            with self._database.read(HUB) as session:
                run = runs.find(session, run_id)
                digest = completions_digest(self._rollouts(session, run, context))
                found = self._agreement(session, run, context)
        except HubProblem as problem:
            raise JobRefused(problem.detail) from problem
        return lambda session: keep_examination(session, run_id, digest, found)

    def _agreement(self, session: Session, run: Run, context: JobContext) -> Agreement | None:
        """Compare a run with the one that it repeats, where that can be done."""
        manifest = runs.manifest_of(run)
        original = original_of(session, run, manifest)
        if original is None:
            return None
        try:
            return agreement(
                runs.manifest_of(original),
                self._rollouts(session, original, context),
                manifest,
                self._rollouts(session, run, context),
            )
        except RunError:
            return None  # they share no example

    def _rollouts(self, session: Session, run: Run, context: JobContext) -> Iterator[Rollout]:
        for block in runs.rollout_lines(session, self._storage, run):
            context.check()
            for line in split_lines([block]):
                yield Rollout.model_validate_json(line)


def completions_digest(rollouts: Iterable[Rollout]) -> str | None:
    """Return a digest of all completions of a run, None where they are too short to tell runs apart.

    Only letters and digits count, so that a space more or another case makes no other run of it. Neither
    model, rewards, times nor token counts do: those are what whoever copies a run changes.
    """
    whole = hashlib.sha256()
    seen: set[bytes] = set()
    telling = 0
    for rollout in rollouts:
        whole.update(canonical_json([rollout.example_id, rollout.index]).encode())
        for turn in rollout.turns:
            said = canonical_json([turn.message.get("content"), turn.message.get("tool_calls")])
            letters = "".join(each for each in said.casefold() if each.isalnum()).encode()
            digest = hashlib.sha256(letters).digest()
            whole.update(digest)
            if digest not in seen and telling < TELLING:
                seen.add(digest)
                telling += len(letters)
    return whole.hexdigest() if telling >= TELLING else None


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
        if original is not None:
            alike = "its completions are those of an earlier run, letter by letter, as a copy's would be"
            if run.posted_by_id == original.posted_by_id:
                one.note = "posted by who posted the run that it repeats"
            elif one.duplicate_of is not None:
                one.note = alike
            one.independent = not one.note
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


def _mark_copies(session: Session, run: Run, digest: str) -> None:
    """Mark every run that has the completions of an earlier one of another model or another user.

    All of them are looked at, since the earlier one may have been read later.
    """
    query = (
        select(Run, RunExamination)
        .join(RunExamination, RunExamination.run_id == Run.run_id)
        .join(Run.posted_by)
        .where(RunExamination.completions_sha256 == digest, Run.environment_id == run.environment_id)
        # What is private or withdrawn accuses nobody.
        .where(Run.private.is_(False), Run.withdrawn_at.is_(None))
        .options(contains_eager(Run.posted_by))
        .order_by(Run.posted_at, Run.run_id)
    )
    alike = session.execute(query).all()
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
            one.level, one.level_reason = level_of_copy(earlier[0])
    session.flush()
