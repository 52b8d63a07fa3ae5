"""Every decision on a run's level: by its rollouts alone, as a copy, after a replay."""

from __future__ import annotations

from wander.wire import RunManifest, RunSummary, VerificationLevel
from wander.wire.verification import ReplayReport, TokenCheck

from wander_hub.runs.models import Run
from wander_hub.verification.models import Verification


def level_of(manifest: RunManifest, summary: RunSummary) -> tuple[VerificationLevel, str]:
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


def level_of_copy(first: Run) -> tuple[VerificationLevel, str]:
    """Return the level of a run that repeats the completions of an earlier one, and why."""
    whose = f"of `{first.model}`, posted by {first.posted_by.name}"
    return (
        "claimed",
        f"duplicate of `{first.run_id}` {whose}: its completions repeat that run's, so it ranks nowhere",
    )


def level_of_unread(fault: str) -> tuple[VerificationLevel, str]:
    """Return the level of a run that the hub could not examine, and why."""
    return "claimed", f"the hub could not examine it for copies ({fault}), so it ranks nowhere"


def level_of_understated(check: TokenCheck) -> tuple[VerificationLevel, str]:
    """Return the level of a run that states fewer completion tokens than its texts have, and why."""
    return "claimed", f"it understates its tokens, so it ranks nowhere: {check.told}"


def level_by(one: Verification, level: VerificationLevel, reason: str) -> tuple[VerificationLevel, str]:
    """Return a run's level after a verification of it that has ended, and why.

    Who asks for less than the hub does by itself, or calls off what they asked for, lowers nothing.
    """
    whole = one.sample is None and one.level == "highest"
    if one.report is not None:
        return level_after(level, reason, ReplayReport.model_validate(one.report), whole=whole)
    if whole and one.job.state == "failed":
        return _unverified(level, reason, one.job.error or "the verification failed")
    if one.job.state == "cancelled" and one.requested_by_id is None:
        return _unverified(level, reason, "its verification was called off")
    return level, reason


def level_after(
    level: VerificationLevel, reason: str, report: ReplayReport, *, whole: bool = True
) -> tuple[VerificationLevel, str]:
    """Return a run's level after a replay, and why.

    Only playing, or scoring, every rollout raises it; a single rollout that comes out otherwise takes all
    evidence away, also when only a sample was looked at. A `whole` replay that tells neither makes a run that
    nothing else verified unverifiable.
    """
    if report.contradicted:
        return "claimed", f"the hub could not play it again: {report.refused}"
    if report.refused is not None:
        return _unverified(level, reason, report.refused) if whole else (level, reason)
    again = "scored them" if report.method == "rescore" else "played them"
    if report.differing:
        found = f"{report.differing} of {report.replayed} rollouts came out otherwise"
        return "claimed", f"{found} when the hub {again} again"
    if report.judged is not None and report.judged.doubtful and level != "claimed":
        return "unverifiable", f"could not be verified: {report.judged.told}"
    if report.level in ("rescored", "replayed") and level in _BELOW[report.level]:
        count = f"all {report.replayed:,} rollouts" if report.replayed > 1 else "its one rollout"
        if report.method == "rescore":
            scored = f"the hub scored the transcripts of {count} again: the same rewards"
            others = "what tools and judges answered"
            told = f"; {report.judged.told}" if report.judged is not None and report.judged.asked else ""
            return "rescored", f"{scored}; {others} is as its submitter states it{told}"
        if report.level == "rescored":
            played = f"the hub played {count} again: the same messages, metrics and rewards"
            others = f"what judges or other models answered in {report.answered:,} of them"
            return "rescored", f"{played}; {others} is as its submitter states it"
        return "replayed", f"the hub played {count} again: the same messages, metrics and rewards"
    if whole and not report.sampled:
        left = f"{report.expected - report.same} of {report.expected} rollouts could not be compared"
        return _unverified(level, reason, ": ".join(filter(None, (left, report.unscored_reason))))
    return level, reason


def _unverified(level: VerificationLevel, reason: str, why: str) -> tuple[VerificationLevel, str]:
    """Return the level of a run that a verification said nothing about; what others proved stays."""
    if level not in ("complete", "unverifiable"):
        return level, reason
    return "unverifiable", f"could not be verified: {why}"


_BELOW: dict[str, tuple[VerificationLevel, ...]] = {
    "rescored": ("complete", "unverifiable", "rescored"),
    "replayed": ("complete", "unverifiable", "rescored", "replayed"),
}
"""From which levels a report raises a run; what is only claimed stays so."""
