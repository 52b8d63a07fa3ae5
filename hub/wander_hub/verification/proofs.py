"""Proofs of a run, level by level, from the hub's verifications."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload
from wander.wire import RunSummary, VerificationLevel
from wander.wire.verification import LEVEL_FACTS, LevelProof, Proof, ReplayReport

from wander_hub.jobs import OPEN
from wander_hub.runs.models import Run
from wander_hub.verification.levels import level_of
from wander_hub.verification.models import Verification

Outcome = tuple[Proof, str]
_METHODS: dict[str, VerificationLevel] = {"rescore": "rescored", "replay": "replayed"}


def prove(session: Session, run: Run) -> list[LevelProof]:
    """Return for each level whether it was proved, and the result."""
    asked = select(Verification).where(Verification.run_id == run.run_id)
    asked = asked.options(joinedload(Verification.job)).order_by(Verification.id)
    verifications = session.scalars(asked).all()
    reports = [ReplayReport.model_validate(row.report) for row in verifications if row.report]
    found: dict[VerificationLevel, Outcome] = {"complete": _count(run)}
    for method, level in _METHODS.items():
        of_method = [report for report in reports if report.method == method]
        found[level] = _play(verifications, of_method, level)
    replays = [report for report in reports if report.method == "replay"]
    played = any(report.level in ("rescored", "replayed") for report in replays)
    if found["rescored"][0] == "open" and played:
        found["rescored"] = "proved", "included in the replay"
    info = run.brief_manifest.environment.info
    if found["replayed"][0] == "open" and not info.deterministic:
        found["replayed"] = (
            "open",
            (
                "its agent program may read the clock, so the hub did not run the program again"
                if info.kind == "agent"
                else "its environment declares that it is not deterministic, so a rollout cannot be repeated"
            ),
        )
    return [
        LevelProof(
            level=level,
            proof=proof,
            told=told,
            did=LEVEL_FACTS[level].did,
            unproven=LEVEL_FACTS[level].unproven,
        )
        for level, (proof, told) in found.items()
    ]


def _count(run: Run) -> Outcome:
    """Return whether the run has all rollouts."""
    summary = RunSummary.model_validate(run.summary)
    level, reason = level_of(run.brief_manifest, summary)
    if level == "complete":
        return "proved", f"{summary.rollouts:,} of {summary.expected:,} rollouts, and none failed"
    return "contradicted", reason


def _play(
    verifications: Sequence[Verification], reports: Sequence[ReplayReport], level: VerificationLevel
) -> Outcome:
    """Return the result of the last verification that decided something, or else of the last one."""
    if reports:
        outcomes = [_describe(report, level) for report in reports]
        decided = [outcome for outcome in outcomes if outcome[0] != "open"]
        return (decided or outcomes)[-1]
    sought = [row for row in verifications if row.level in ("highest", level)]
    if any(row.job.state in OPEN for row in sought):
        return "open", "waits for the hub"
    failed = [row for row in sought if row.job.state == "failed"]
    if failed:
        return "open", f"the verification failed: {failed[-1].job.error or 'without an error message'}"
    return "open", "not requested yet"


def _describe(report: ReplayReport, level: VerificationLevel) -> Outcome:
    verb = "rescored" if report.method == "rescore" else "replayed"
    if report.contradicted:
        return "contradicted", str(report.refused)
    if report.refused is not None:
        return "open", f"could not be compared: {report.refused}"
    if report.differing:
        count = f"{report.differing:,} of {report.replayed:,} rollouts"
        return "contradicted", f"{count} produced different results when {verb}"
    outcome = f"{report.same:,} of {report.expected:,} rollouts {verb}, all with the same results"
    if report.twice:
        outcome += f"; {report.twice:,} of them twice, under different conditions"
    if report.undecided:
        outcome += f"; {report.undecided:,} failed in the replay: {report.undecided_reason}"
    if report.answered:
        outcome += f"; in {report.answered:,} of them {report.taken_as_recorded}"
    if report.level == level:
        return "proved", outcome
    return "open", f"a sample: {outcome}" if report.sampled else outcome
