"""What was proved of a run, level by level, from the hub's replays of it."""

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

Found = tuple[Proof, str]
_METHODS: dict[str, VerificationLevel] = {"rescore": "rescored", "replay": "replayed"}


def prove(session: Session, run: Run) -> list[LevelProof]:
    """Return for each level that says something whether it was proved, and what came out."""
    asked = select(Verification).where(Verification.run_id == run.run_id)
    asked = asked.options(joinedload(Verification.job)).order_by(Verification.id)
    every = session.scalars(asked).all()
    reports = [ReplayReport.model_validate(one.report) for one in every if one.report]
    found: dict[VerificationLevel, Found] = {"complete": _count(run)}
    for method, level in _METHODS.items():
        found[level] = _play(every, [one for one in reports if one.method == method], level)
    played = any(one.method == "replay" and one.level in ("rescored", "replayed") for one in reports)
    if found["rescored"][0] == "open" and played:
        found["rescored"] = "proved", "playing it again ran the rubric too"
    if found["replayed"][0] == "open" and not run.brief_manifest.environment.info.deterministic:
        found["replayed"] = (
            "open",
            "its environment declares that it is not deterministic: nobody can play a rollout twice",
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


def _count(run: Run) -> Found:
    """Tell whether all of it is there, and its own."""
    summary = RunSummary.model_validate(run.summary)
    level, reason = level_of(run.brief_manifest, summary)
    if level == "complete":
        return "proved", f"{summary.rollouts:,} of {summary.expected:,} rollouts, and none failed"
    return "contradicted", reason


def _play(every: Sequence[Verification], reports: Sequence[ReplayReport], level: VerificationLevel) -> Found:
    """Return the result of the last replay, or rescoring, that decided something; else of the last one."""
    if reports:
        told = [_tell(one, level) for one in reports]
        decided = [one for one in told if one[0] != "open"]
        return (decided or told)[-1]
    sought = ("highest", level)
    if any(one.level in sought and one.job.state in OPEN for one in every):
        return "open", "waits for the hub"
    failed = [one for one in every if one.level in sought and one.job.state == "failed"]
    if failed:
        return "open", f"could not be done: {failed[-1].job.error or 'the verification failed'}"
    return "open", "nobody has asked for it"


def _tell(report: ReplayReport, level: VerificationLevel) -> Found:
    done = "scored" if report.method == "rescore" else "played"
    if report.contradicted:
        return "contradicted", str(report.refused)
    if report.refused is not None:
        return "open", f"could not be compared: {report.refused}"
    if report.differing:
        return (
            "contradicted",
            f"{report.differing:,} of {report.replayed:,} rollouts came out otherwise when {done} again",
        )
    told = f"{report.same:,} of {report.expected:,} rollouts {done} again, and all of them the same"
    if report.twice:
        told += f"; {report.twice:,} of them twice, in other surroundings"
    if report.undecided:
        told += f"; {report.undecided:,} failed in the replay: {report.undecided_reason}"
    if report.answered:
        told += f"; in {report.answered:,} of them {report.taken_as_recorded}"
    if report.level == level:
        return "proved", told
    return "open", f"a sample: {told}" if report.sampled else told
