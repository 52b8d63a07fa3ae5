"""The level that a replay gives a run."""

from __future__ import annotations

from wander.wire import VerificationLevel
from wander.wire.verification import ReplayReport


def level_after(level: VerificationLevel, reason: str, report: ReplayReport) -> tuple[VerificationLevel, str]:
    """Return a run's level after a replay, and why.

    Only playing, or scoring, every rollout raises it; a single rollout that comes out otherwise takes all
    evidence away, also when only a sample was looked at.
    """
    if report.contradicted:
        return "claimed", f"the hub could not play it again: {report.refused}"
    if report.refused is not None:
        return level, reason
    again = "scored them" if report.method == "rescore" else "played them"
    if report.differing:
        found = f"{report.differing} of {report.replayed} rollouts came out otherwise"
        return "claimed", f"{found} when the hub {again} again"
    if report.level in ("rescored", "replayed") and level in _BELOW[report.level]:
        count = f"{report.replayed:,} rollouts" if report.replayed > 1 else "rollout"
        if report.level == "rescored":
            return "rescored", f"the hub scored the transcripts of all {count} again: the same rewards"
        return "replayed", f"the hub played all {count} again: the same messages, metrics and rewards"
    return level, reason


_BELOW: dict[str, tuple[VerificationLevel, ...]] = {
    "rescored": ("complete", "rescored"),
    "replayed": ("complete", "rescored", "replayed"),
}
"""From which levels a report raises a run; what is only claimed stays so."""
