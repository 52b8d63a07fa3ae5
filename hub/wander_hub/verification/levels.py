"""All decisions on a run's verification level.

A level follows from the run's own rollouts and from the best evidence that the hub has about them. It never
depends on other people's runs, and a verification that did not finish decides nothing.
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
    """Return the level that the rollouts support by themselves, and why it is not higher."""
    if manifest.kind == "training":
        return "claimed", "the trainer reported these metrics"
    missing = summary.expected - summary.rollouts
    if missing or summary.failed:
        parts = [f"{n} {word}" for n, word in ((missing, "missing"), (summary.failed, "failed")) if n]
        return "claimed", " and ".join(parts).replace(" ", f" of {summary.expected} rollouts ", 1)
    if manifest.environment.wheel_sha256 is None:
        return "claimed", "the manifest does not name the wheel that was used"
    return "complete", "all expected rollouts were posted; the hub computed all aggregates from them"


def level_from(
    rollouts: Verdict, reports: Sequence[tuple[ReplayReport, bool]], tokens: TokenCheck | None = None
) -> Verdict:
    """Return a run's level from the best evidence so far, and the reason.
    - `rollouts`: the level that the rollouts support by themselves (`level_of`). If that is
      `claimed`, no evidence raises it.
    - `reports`: the reports of all finished verifications, oldest first, each with whether it was `whole`: of
      all rollouts and for the highest level. Anyone may request less. That lowers the level only if a replay
      finds a difference, because a rubric may need state that only a replay recreates.

    A replay that reproduces every rollout raises the level. A replay that found a difference twice
    lowers it. Afterwards, raising it again takes the same number of replays without a difference. A rescoring
    does not settle a difference that a replay found, because the environment may have sent other messages. A
    replay that could not finish or compare makes a run `unverifiable` only if no other verification says
    more.
    """
    if rollouts[0] != "complete":
        return rollouts
    if tokens is not None and tokens.understated:
        return "claimed", f"it understates its tokens, so it is not ranked: {tokens.told}"
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
    """Return what a verification found that contradicts the run, or None."""
    if report.contradicted:
        return f"the hub could not replay it: {report.refused}"
    if report.differing:
        verb = "rescored" if report.method == "rescore" else "replayed"
        return (
            f"{report.differing} of {report.replayed} rollouts "
            f"produced different results when the hub {verb} them"
        )
    return None


def _proof(report: ReplayReport) -> Verdict | None:
    """Return the level that a verification of every rollout proves, and how; None if it proves none."""
    if not report.agrees:
        return None
    count = f"all {report.replayed:,} rollouts" if report.replayed > 1 else "its one rollout"
    did = f"the hub replayed {count}, with the same messages, metrics and rewards"
    if report.method == "rescore":
        did = f"the hub rescored the transcripts of {count}, with the same rewards"
    if report.answered:
        return "complete", f"{did}; {report.taken_as_recorded}"
    if report.method == "rescore":
        return "rescored", f"{did}; the answers of tools are self-reported"
    if report.rescored:
        did = f"the hub ran the commands of {count} again and compared the files that they left"
        return "rescored", f"{did}; {report.rescored:,} left other files, and were only rescored"
    if report.other_output:
        did = f"the hub ran the commands of {count} again, which left the same files with the same rewards"
        return "replayed", f"{did}; {report.other_output:,} printed something else"
    return "replayed", did


def _obstacle(report: ReplayReport) -> str:
    """Return why a verification decided nothing."""
    if report.refused is not None:
        return report.refused
    if report.undecided:
        failed = f"{report.undecided} of {report.expected} rollouts failed in the replay"
        return f"{failed}: {report.undecided_reason}"
    return f"{report.expected - report.same} of {report.expected} rollouts could not be compared"


def settle_level(session: Session, run: Run) -> None:
    """Set the level that a run's rollouts and all evidence support. The caller must have locked the run.

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
        cause = "ended because of time or the model's context, according to the submitter"
        run.level_reason += f"; {cut_short:,} of its {summary.rollouts:,} rollouts {cause}"
    if run.level in LEVELS_UP and (others := run.brief_manifest.stated_players):
        run.level_reason += f"; the identity of {' and '.join(others)} is self-reported"


def _read_reports(verifications: Iterable[Verification]) -> list[tuple[ReplayReport, bool]]:
    return [
        (ReplayReport.model_validate(row.report), row.sample is None and row.level == "highest")
        for row in verifications
    ]
