"""Examination of a run without a replay: its token counts, and whether it repeats another run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.orm import Session
from wander.errors import RunError
from wander.evals.stats.agreement import agreement
from wander.evals.store.jsonl import split_lines
from wander.types import Rollout
from wander.wire.verification import STATED, STATED_BUT_COUNTED, Agreement, Rerun, RunEvidence, TokenCheck

from wander_hub.database import Database, fill, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobRefused, TableQueue
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.leaderboards.repetitions import is_at_least, repeated_by
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run, RunExamination
from wander_hub.storage import Storage
from wander_hub.verification.levels import settle_level
from wander_hub.verification.proofs import prove
from wander_hub.verification.tokens import count_tokens, find_tokenizer, written

logger = logging.getLogger("wander_hub")

KIND = "examine"
"""Kind of the jobs that examine a posted run."""
KEY = f"{KIND} "
"""Prefix of the key of such a job; the run's id follows."""
_MOST_REPETITIONS = 100


def submit(session: Session, queue: TableQueue, run_id: str, poster_id: int) -> None:
    """Submit the examination of a run. It takes a moment, so it does not count against the user's turns."""
    payload = {"run_id": run_id}
    queue.submit(session, KIND, f"{KEY}{run_id}", payload, priority=2, created_by=poster_id, cost=0)


class Examination(NamedTuple):
    """Results of an examination."""

    tokens: TokenCheck | None
    agreement: Agreement | None
    """Agreement with the run that this one repeats by its manifest."""


class Examiner:
    """Job handler that reads a run, and the run that it repeats.

    It runs no environment code, so it needs no sandbox.
    """

    def __init__(self, database: Database, storage: Storage, tokenizers: Path | None = None) -> None:
        self._database = database
        self._storage = storage
        self._tokenizers = tokenizers

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Examine a run; return a function that stores the findings."""
        run_id = str(context.lease.payload["run_id"])
        try:
            with self._database.read(HUB) as session:
                run = runs.find(session, run_id)
                findings = Examination(
                    self._count(session, run, context), self._compare_with_original(session, run, context)
                )
        except HubProblem as problem:
            raise JobRefused(problem.detail) from problem
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            logger.exception("cannot read run %s", run_id)
            raise JobRefused(type(error).__name__) from error  # trying again would fail in the same way
        except Exception:
            with self._database.read(HUB) as session:
                if runs.find(session, run_id).withdrawn_at is None:
                    raise
            return lambda session: None  # the run was withdrawn while it was read
        return lambda session: keep_examination(session, run_id, findings)

    def _count(self, session: Session, run: Run, context: JobContext) -> TokenCheck | None:
        """Count the tokens of a run that states any, if the tokenizer of its model is available."""
        path = find_tokenizer(self._tokenizers, run.model)
        if path is None or not run.summary["usage"]["completion_tokens"]:
            return None
        texts = (text for rollout in self._rollouts(session, run, context) for text in written(rollout))
        letters = sum(map(len, texts))
        rollouts = self._rollouts(session, run, context)
        return count_tokens(path, run.model, rollouts, letters, context.check)

    def _compare_with_original(self, session: Session, run: Run, context: JobContext) -> Agreement | None:
        """Compare a run with the run that it repeats; return None if they cannot be compared."""
        original = original_of(session, run)
        if original is None:
            return None
        try:
            return agreement(
                original.parsed_manifest,
                self._rollouts(session, original, context),
                run.parsed_manifest,
                self._rollouts(session, run, context),
            )
        except RunError:
            return None  # the runs have no example in common

    def _rollouts(self, session: Session, run: Run, context: JobContext) -> Iterator[Rollout]:
        for block in runs.rollout_lines(session, self._storage, run):
            context.check()
            for line in split_lines([block]):
                yield Rollout.model_validate_json(line)


def original_of(session: Session, run: Run) -> Run | None:
    """Return the run that this run repeats, if it was posted for the same environment version; otherwise
    None."""
    named = run.brief_manifest.rerun_of
    if named is None or named in (run.run_id, run.brief_manifest.run_id):
        return None
    original = run_repository.run_named(session, named)
    if original is None or original.version_id != run.version_id or original.kind != "evaluation":
        return None
    return original if original.withdrawn_at is None else None


def keep_examination(session: Session, run_id: str, findings: Examination) -> None:
    """Store the findings about a run, and update its level."""
    run = runs.find(session, run_id)
    run_repository.lock_run(session, run)
    tokens, agreement = findings.tokens, findings.agreement
    examination = session.get(RunExamination, run_id) or RunExamination(run_id=run_id)
    examination.tokens = tokens.model_dump(mode="json") if tokens is not None else None
    original = original_of(session, run)
    examination.rerun_of = original.run_id if original is not None else run.brief_manifest.rerun_of
    examination.agreement = agreement.model_dump(mode="json") if agreement is not None else None
    examination.agrees = agreement is not None and agreement.verdict == "agrees" and not agreement.differing
    examination.examined_at = now()
    session.add(examination)
    session.flush()
    settle_level(session, run)
    refresh_results(session, run.environment)


def evidence_of(session: Session, run: Run) -> RunEvidence:
    """Return the evidence for a run's level."""
    run_id = run.run_id
    examination = session.get(RunExamination, run_id)
    reruns = session.scalars(
        run_repository.visible(session)
        .join(RunExamination, RunExamination.run_id == Run.run_id)
        .where(RunExamination.rerun_of == run_id)
        .order_by(Run.posted_at.desc())
        .limit(_MOST_REPETITIONS)
    ).all()
    tokens = examination.token_check if examination else None
    return RunEvidence(
        run_id=run_id,
        level=run.level,
        level_reason=run.level_reason,
        examined_at=examination.examined_at if examination else None,
        rerun_of=_repeated_id(session, run, examination) if examination else None,
        reruns=[_rerun(session, rerun, run) for rerun in reruns],
        repeated_by=repeated_by(session, [run_id]).get(run_id, []),
        proofs=prove(session, run) if run.kind == "evaluation" else [],
        tokens=tokens,
        stated=STATED if tokens is None or tokens.understated else STATED_BUT_COUNTED,
    )


def _repeated_id(session: Session, run: Run, examination: RunExamination) -> str | None:
    """Return the hub's id of the run that a run repeats, or the id in its manifest if the reader may not see
    that run. The response therefore does not tell whether a private run exists.
    """
    repeated = examination.rerun_of
    is_seen = repeated is not None and run_repository.run_named(session, repeated) is not None
    return repeated if is_seen else run.brief_manifest.rerun_of


def _rerun(session: Session, run: Run, original: Run) -> Rerun:
    examination = session.get_one(RunExamination, run.run_id)
    agreement = Agreement.model_validate(examination.agreement) if examination.agreement else None
    return fill(
        Rerun,
        examination,
        posted_by=run.posted_by.name,
        level=run.level,
        agreement=agreement,
        note=_objection(run, original, agreement),
    )


def _objection(run: Run, original: Run, agreement: Agreement | None) -> str:
    """Return why a repetition does not count, or an empty text."""
    if run.posted_by_id == original.posted_by_id:
        return "the same user posted both runs"
    if run.private:
        return "it is private"
    if agreement is None:
        return "the two runs cannot be compared"
    if agreement.verdict != "agrees":
        verdict = "differs" if agreement.verdict == "differs" else "is inconclusive"
        return f"it {verdict}: {agreement.told}"
    if agreement.differing:
        return f"the manifests differ in {', '.join(agreement.differing)}"
    if not is_at_least(run.level, original.level):
        return f"it is {run.level}, and the run that it repeats is {original.level}"
    return ""
