"""Every decision on a run's level.

A level follows from the run's own rollouts and from the best evidence that the hub has about them. It never
depends on runs of other people, and a verification that did not finish decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.wire import RunManifest, RunSummary, VerificationLevel
from wander.wire.boards import LEVELS_UP
from wander.wire.verification import ReplayReport, TokenCheck

from wander_hub.runs.models import Run, RunExamination
from wander_hub.verification.models import Verification

Verdict = tuple[VerificationLevel, str]


def level_of(manifest: RunManifest, summary: RunSummary) -> Verdict:
    """Return the verification level that the rollouts alone support, and why it is not higher."""
    if manifest.kind == "training":
        return "claimed", "a training run: its metrics are as the trainer reported them"
    missing = summary.expected - summary.rollouts
    if missing or summary.failed:
        parts = [f"{n} {word}" for n, word in ((missing, "missing"), (summary.failed, "failed")) if n]
        return "claimed", " and ".join(parts).replace(" ", f" of {summary.expected} rollouts ", 1)
    if manifest.environment.wheel_sha256 is None:
        return "claimed", "the manifest does not say which wheel was used"
    return "complete", "every expected rollout is here; the hub computed all aggregates from them"


def level_from(
    rollouts: Verdict, reports: Sequence[tuple[ReplayReport, bool]], tokens: TokenCheck | None = None
) -> Verdict:
    """Return a run's level from the best evidence so far, and why.

    - `rollouts`: what the rollouts alone support (`level_of`). A run that is only claimed by that stays so.
    - `reports`: those of every verification that ended, the oldest first, each with whether it was a `whole`
      one: of all rollouts, for the highest level. Anyone may ask for less, which lowers nothing unless a
      replay finds a difference: a rubric may need the state that only playing leaves.

    Replays in which every rollout was the same raise the level. A replay that found a difference, and found
    it again, lowers it; after that it takes as many replays without one. A rescoring does not answer what a
    replay found: the environment may have said something else. A replay that could not finish or compare
    makes a run `unverifiable` only if no other replay says more.
    """
    if rollouts[0] != "complete":
        return rollouts
    if tokens is not None and tokens.understated:
        return "claimed", f"it understates its tokens, so it ranks nowhere: {tokens.told}"
    against: list[Verdict] = []
    proofs: list[Verdict] = []
    undecided: Verdict | None = None
    replay_differed = False
    for report, whole in reports:
        if (objection := _objection(report)) is not None:
            if report.method == "rescore" and not whole:
                continue
            against.append(("claimed", objection))
            proofs = []
            replay_differed = replay_differed or report.method == "replay"
        elif replay_differed and report.method == "rescore":
            continue
        elif (proof := _proof(report)) is not None:
            proofs.append(proof)
        elif whole and not report.sampled:
            undecided = "unverifiable", f"could not be verified: {_obstacle(report)}"
    if len(against) > len(proofs):
        return against[-1]
    if proofs:
        return max(proofs, key=lambda verdict: LEVELS_UP.index(verdict[0]))
    return undecided or rollouts


def _objection(report: ReplayReport) -> str | None:
    """Return what a replay found that the run says otherwise, or None."""
    if report.contradicted:
        return f"the hub could not replay it: {report.refused}"
    if report.differing:
        again = "scored" if report.method == "rescore" else "replayed"
        return (
            f"{report.differing} of {report.replayed} rollouts came out otherwise when the hub {again} them"
        )
    return None


def _proof(report: ReplayReport) -> Verdict | None:
    """Return the level that a replay of every rollout proves, and how; None if it proves none."""
    if not report.agrees:
        return None
    count = f"all {report.replayed:,} rollouts" if report.replayed > 1 else "its one rollout"
    did = f"the hub replayed {count}: the same messages, metrics and rewards"
    if report.method == "rescore":
        did = f"the hub scored the transcripts of {count}: the same rewards"
    if report.answered:
        return "complete", f"{did}; {report.taken_as_recorded}"
    if report.method == "rescore":
        return "rescored", f"{did}; what tools answered is as its submitter states it"
    return "replayed", did


def _obstacle(report: ReplayReport) -> str:
    """Return why a replay decided nothing."""
    if report.refused is not None:
        return report.refused
    if report.undecided:
        failed = f"{report.undecided} of {report.expected} rollouts failed in the replay"
        return f"{failed}: {report.undecided_reason}"
    return f"{report.expected - report.same} of {report.expected} rollouts could not be compared"


def settle_level(session: Session, run: Run) -> None:
    """Give a run the level that its rollouts and all evidence so far support; the caller locked it.

    A withdrawn run keeps its level.
    """
    if run.withdrawn_at is not None:
        return
    examined = session.get(RunExamination, run.run_id)
    ended = select(Verification).where(Verification.run_id == run.run_id, Verification.report.is_not(None))
    reports = _read_reports(session.scalars(ended.order_by(Verification.id)))
    summary = RunSummary.model_validate(run.summary)
    rollouts = level_of(run.parsed_manifest, summary)
    run.level, run.level_reason = level_from(rollouts, reports, examined.token_check if examined else None)
    if run.level in LEVELS_UP and (cut_short := summary.stated_endings):
        told = "ended for their time or the model's context, as the submitter states"
        run.level_reason += f"; {cut_short:,} of its {summary.rollouts:,} rollouts {told}"
    if run.level in LEVELS_UP and (others := run.brief_manifest.stated_players):
        run.level_reason += f"; who played {' and '.join(others)} is as its submitter states"


def _read_reports(verifications: Iterable[Verification]) -> list[tuple[ReplayReport, bool]]:
    return [
        (ReplayReport.model_validate(one.report), one.sample is None and one.level == "highest")
        for one in verifications
    ]
