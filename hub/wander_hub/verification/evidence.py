"""What the hub knows of a run beside its own replays: whose copy it is, what it repeats, who repeated it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.errors import RunError
from wander.evals.stats.agreement import agreement
from wander.evals.store.jsonl import split_lines
from wander.types import Rollout
from wander.wire import RunManifest
from wander.wire.levels import STATED, STATED_BUT_COUNTED
from wander.wire.verification import Agreement, Rerun, RunEvidence, TokenCheck

from wander_hub.accounts.models import Membership, Owner
from wander_hub.database import Database, fill, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import OPEN, Job, JobContext, JobRefused, TableQueue
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.storage import Storage
from wander_hub.verification import duplicates, likeness
from wander_hub.verification.likeness import Likeness
from wander_hub.verification.models import RunExamination
from wander_hub.verification.proofs import prove
from wander_hub.verification.tokens import count_tokens, find_tokenizer, written

logger = logging.getLogger("wander_hub")

KIND = "examine"
"""Of the jobs that read a posted run."""
KEY = f"{KIND} 2 "
"""What a job's key is, with the run's id behind; hubs that kept no sketch left the number out."""
PROVEN = ("rescored", "replayed", "rerun")
"""Levels of a run whose rewards the hub derived itself: it may be evidence for another one."""
_COMPARED = 2000
"""Rollouts of a run, about, that are compared with those of another one; drawn anew each time."""
_LONGEST_FAULT = 80


def submit(session: Session, queue: TableQueue, run_id: str, again: str = "") -> None:
    """Have a run read once, and `again` for another reason."""
    queue.submit(session, KIND, f"{KEY}{run_id} {again}".rstrip(), {"run_id": run_id}, priority=2)


class Findings(NamedTuple):
    """What reading a run told."""

    digest: str | None
    repeats: Sequence[str]
    """Runs that it repeats, or that repeat it."""
    tokens: TokenCheck | None
    agreement: Agreement | None = None
    """With the run that it repeats by its manifest."""
    likeness: Likeness | None = None
    """How much of that run it repeats."""


class Examiner:
    """The handler of examination jobs: reads a run, and those that are like it, beside the requests.

    No code of an environment runs here, so this needs no sandbox.
    """

    def __init__(
        self,
        database: Database,
        storage: Storage,
        trusted: Collection[str] = (),
        tokenizers: Path | None = None,
    ) -> None:
        self._database = database
        self._storage = storage
        self._trusted = frozenset(trusted)
        self._tokenizers = tokenizers

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Read a run; return what keeps what was found."""
        run_id = str(context.lease.payload["run_id"])
        try:
            found = self._examine(run_id, context)
        except HubProblem as problem:
            raise JobRefused(problem.detail) from problem
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # No repetition helps, and what cannot be examined may not rank.
            logger.exception("the run %s cannot be examined", run_id)
            fault = type(error).__name__
            return lambda session: duplicates.keep_fault(session, run_id, fault)
        except Exception:
            with self._database.read(HUB) as session:
                if runs.find(session, run_id).withdrawn_at is None:
                    raise
            return lambda session: None  # its rollouts went while they were read, and nobody asks any more
        return lambda session: keep_examination(session, run_id, found, self._trusted)

    def _examine(self, run_id: str, context: JobContext) -> Findings:
        sketch_key = self._database.commit(lambda session: duplicates.sketch_key(session, run_id), HUB)
        read = likeness.Digest(sketch_key)
        with self._database.read(HUB) as session:
            run = runs.find(session, run_id)
            for rollout in self._rollouts(session, run, context):
                read.add(rollout)
            tokens = self._count(session, run, context)
        # Before others are looked for: of two that are examined at the same time, one sees the other.
        self._database.commit(lambda session: duplicates.keep_sketch(session, run_id, read.sketch()), HUB)
        with self._database.read(HUB) as session:
            run = runs.find(session, run_id)
            repeats, sources = [], []
            whole, draw = likeness.Likeness(), secrets.token_bytes(16)
            for other in duplicates.runs_like(session, run):
                earlier, later = sorted((run, other), key=duplicates.age)
                found = self._compare(session, earlier, later, draw, context)
                if found.copied:
                    repeats.append(other.run_id)
                if later is run and found.repeated:
                    whole.join(found)
                    sources.append(other.run_id)
            if whole.pieced:
                repeats += sources
            original = original_of(session, run, run.parsed_manifest)
            if original is None:
                return Findings(read.hexdigest(), repeats, tokens)
            like = self._compare(session, original, run, draw, context)
            agreed = self._agreement(session, original, run, context)
            return Findings(read.hexdigest(), repeats, tokens, agreed, like)

    def _count(self, session: Session, run: Run, context: JobContext) -> TokenCheck | None:
        """Count the tokens of a run that states some, where its model's tokenizer is here."""
        path = find_tokenizer(self._tokenizers, run.model)
        if path is None or not run.summary["usage"]["completion_tokens"]:
            return None
        texts = (text for one in self._rollouts(session, run, context) for text in written(one))
        letters = sum(map(len, texts))
        rollouts = self._rollouts(session, run, context)
        return count_tokens(path, run.model, rollouts, letters, context.check)

    def _compare(
        self, session: Session, earlier: Run, later: Run, draw: bytes, context: JobContext
    ) -> likeness.Likeness:
        """Compare what two runs say on examples that they share, as many as can be held.

        With one `draw` these are the same for every pair of runs, as far as they have them.
        """
        names = {*earlier.parsed_manifest.example_ids} & {*later.parsed_manifest.example_ids}
        most = max(1, _COMPARED // max(earlier.rollouts_per_example, later.rollouts_per_example))
        drawn = set(nsmallest(most, names, lambda one: blake2b(one.encode(), key=draw).digest()))
        return likeness.compare(
            *(
                (one for one in self._rollouts(session, run, context) if one.example_id in drawn)
                for run in (earlier, later)
            )
        )

    def _agreement(self, session: Session, original: Run, run: Run, context: JobContext) -> Agreement | None:
        """Compare a run with the one that it repeats, where that can be done."""
        try:
            return agreement(
                original.parsed_manifest,
                self._rollouts(session, original, context),
                run.parsed_manifest,
                self._rollouts(session, run, context),
            )
        except RunError:
            return None  # they share no example

    def _rollouts(self, session: Session, run: Run, context: JobContext) -> Iterator[Rollout]:
        for block in runs.rollout_lines(session, self._storage, run):
            context.check()
            for line in split_lines([block]):
                yield Rollout.model_validate_json(line)


def original_of(session: Session, run: Run, manifest: RunManifest) -> Run | None:
    """Return the run that this one repeats, where the hub has it under the same environment version."""
    if manifest.rerun_of is None or manifest.rerun_of == run.run_id:
        return None
    found = run_repository.run_named(session, manifest.rerun_of)
    if found is None or found.version_id != run.version_id or found.kind != "evaluation":
        return None
    return found if found.withdrawn_at is None else None


def keep_examination(
    session: Session, run_id: str, found: Findings, trusted: frozenset[str] = frozenset()
) -> None:
    """Keep what reading a run told, mark copies, and give the run that it repeats its level."""
    run = runs.find(session, run_id)
    run_repository.lock_run(session, run)
    manifest = run.parsed_manifest
    one = session.get(RunExamination, run_id) or RunExamination(run_id=run_id)
    anew = one.fault is not None or one.understated
    one.completions_sha256, one.fault = found.digest, None
    one.tokens = found.tokens.model_dump(mode="json") if found.tokens is not None else None
    one.rerun_of = manifest.rerun_of
    one.agreement = found.agreement.model_dump(mode="json") if found.agreement is not None else None
    one.examined_at = now()
    one.independent, one.note = False, ""
    session.add(one)
    session.flush()
    if anew or one.understated:
        run.level, run.level_reason = duplicates.level_of_examined(session, run, one)
    marked = duplicates.mark_copies(session, run, found.digest, found.repeats)
    original = original_of(session, run, manifest)
    if found.agreement is not None and original is not None:
        one.note = _objection(session, run, original, one, found.likeness, trusted)
        one.independent = not one.note
    session.flush()
    refresh_results(session, run.environment)
    for each in [run, *marked]:
        count_rerun(session, each)


def keep_failures(session: Session, job_ids: Sequence[int]) -> None:
    """Keep from ranking the runs whose examination ended without a result, such as with its worker."""
    jobs = session.scalars(select(Job).where(Job.id.in_(job_ids)).execution_options(populate_existing=True))
    ended = {str(job.payload["run_id"]): job for job in jobs}
    # Environments are locked in one order, lest two workers wait for each other. A run may be gone by now.
    query = select(Run.run_id).where(Run.run_id.in_(ended)).order_by(Run.environment_id, Run.run_id)
    for run_id in session.scalars(query).all():
        fault = (ended[run_id].error or "it was called off").partition(":")[0]
        duplicates.keep_fault(session, run_id, fault[:_LONGEST_FAULT])


def list_unread(session: Session) -> Sequence[tuple[str, str | None]]:
    """Return the runs whose examination ended without a result, with the fault that was kept of it.

    Those are left out of which another examination is under way.
    """
    run_id = Job.payload["run_id"].as_string()
    waiting = select(run_id).where(Job.kind == KIND, Job.state.in_(OPEN))
    ended = select(run_id).where(Job.kind == KIND, Job.state.in_(("failed", "cancelled")))
    lost = RunExamination.run_id.is_(None) & Run.run_id.in_(ended)
    query = select(Run.run_id, RunExamination.fault).outerjoin(RunExamination)
    query = query.where(lost | RunExamination.fault.is_not(None), Run.run_id.not_in(waiting))
    query = query.where(Run.withdrawn_at.is_(None)).order_by(Run.environment_id, Run.run_id)
    return [(run_id, fault) for run_id, fault in session.execute(query)]


def keep_unread(session: Session) -> None:
    """Keep from ranking the runs whose examination ended on a hub that did not see to that."""
    for run_id, fault in list_unread(session):
        if fault is None:
            duplicates.keep_fault(session, run_id, "its examination ended without a result")


def _objection(
    session: Session,
    run: Run,
    original: Run,
    one: RunExamination,
    like: Likeness | None,
    trusted: frozenset[str],
) -> str:
    """Return why a repetition is no independent evidence, or nothing.

    Of short answers no text tells a repetition from a copy. Then it takes somebody whom the operator trusts.
    """
    if run.posted_by_id == original.posted_by_id:
        return "posted by who posted the run that it repeats"
    if one.duplicate_of is not None:
        return f"a copy of `{one.duplicate_of}`"
    if trusted:
        owners = select(Owner.name).join(Membership, Membership.owner_id == Owner.id)
        known = session.scalars(owners.where(Membership.user_id == run.posted_by_id)).all()
        if trusted.isdisjoint([run.posted_by.name, *known]):
            return f"this hub counts repetitions by {', '.join(sorted(trusted))} alone"
    if like is not None and like.terse and not trusted and not like.dependent:
        return (
            "its completions are too short, or too alike, to tell a repetition from a copy; "
            "those of somebody whom this hub's operator trusts would count"
        )
    return like.dependent if like is not None else ""


def count_rerun(session: Session, run: Run) -> None:
    """Give a run the level `rerun` when another one, which the hub has proven, repeats it and agrees.

    Where the one that vouched turned out to be a copy since, take it away.
    """
    one = session.get(RunExamination, run.run_id)
    original = original_of(session, run, run.parsed_manifest) if one is not None else None
    if one is None or original is None:
        return
    counts = False
    if one.agreement is not None and one.independent and run.level in PROVEN and not run.private:
        found = Agreement.model_validate(one.agreement)
        counts = found.verdict == "agrees" and not found.differing
    if counts and original.level in ("complete", "rescored", "replayed"):
        original.own_level = original.level
        original.level, original.vouched_by = "rerun", run.posted_by.name
        original.level_reason = f"`{run.run_id}` by {run.posted_by.name} repeated it and agrees: {found.told}"
    elif not counts and original.level == "rerun" and f"`{run.run_id}`" in original.level_reason:
        original.level, original.level_reason = duplicates.supported_level(session, original)
        original.vouched_by = None
    else:
        return
    session.flush()
    refresh_results(session, original.environment)


def settle(session: Session, run_id: str) -> RunEvidence:
    """Bring listings, and the runs that this one repeats, up to date after its level changed."""
    run = runs.find(session, run_id)
    session.flush()
    refresh_results(session, run.environment)
    count_rerun(session, run)
    return evidence_of(session, run)


def evidence_of(session: Session, run: Run) -> RunEvidence:
    """Return what a run's level rests on beside the hub's replays."""
    run_id = run.run_id
    one = session.get(RunExamination, run_id)
    reruns = session.scalars(
        run_repository.visible(session)
        .join(RunExamination, RunExamination.run_id == Run.run_id)
        .where(RunExamination.rerun_of == run_id)
        .order_by(Run.posted_at.desc())
        .limit(100)
    ).all()
    repeated = [_rerun(session, each) for each in reruns]
    tokens = one.token_check if one else None
    return RunEvidence(
        run_id=run_id,
        level=run.level,
        level_reason=run.level_reason,
        examined_at=one.examined_at if one else None,
        duplicate_of=one.duplicate_of if one else None,
        cleared=duplicates.clearance_of(session, run_id),
        rerun_of=one.rerun_of if one else None,
        reruns=repeated,
        proofs=prove(session, run, repeated) if run.kind == "evaluation" else [],
        tokens=tokens,
        stated=STATED if tokens is None or tokens.understated else STATED_BUT_COUNTED,
    )


def _rerun(session: Session, run: Run) -> Rerun:
    one = session.get_one(RunExamination, run.run_id)
    agreement = Agreement.model_validate(one.agreement) if one.agreement else None
    return fill(Rerun, one, posted_by=run.posted_by.name, level=run.level, agreement=agreement)
