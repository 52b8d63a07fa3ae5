"""What playing runs again came to: the report of a replay, and how the hub tells of its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from wander.types import Record
from wander.wire import Body, EnvironmentPin, Platform


class Divergence(Record):
    """One rollout that came out otherwise."""

    example_id: str
    index: int
    difference: str
    """What differs first, with both values."""


class ReplayReport(Record):
    """What playing a run again came to."""

    run_id: str
    expected: int
    """Rollouts that a complete run holds."""
    recorded: int
    """Rollouts on record."""
    replayed: int
    """Rollouts that were played again and compared."""
    same: int
    differing: int
    failed: int
    """Recorded as failed, so not compared."""
    sampled: bool = False
    """True when only a random sample was played again."""
    divergences: list[Divergence] = Field(default_factory=list)
    """The first ones, in the order of the record."""
    refused: str | None = None
    """Why nothing could be compared; None when it was."""
    contradicted: bool = False
    """True when what the manifest says of the environment is not so, its examples included."""
    seconds: float = 0.0

    @property
    def level(self) -> Literal["claimed", "complete", "replayed"]:
        """The verification level that this report supports; a sample gives no more than `complete`."""
        if self.recorded < self.expected or self.failed or self.contradicted or self.differing:
            return "claimed"
        whole = not self.sampled and self.refused is None
        return "replayed" if whole and self.replayed == self.expected else "complete"


class VerifiedWith(Record):
    """What a run was played again with."""

    environment: EnvironmentPin
    """With the lock it ran with and the sandbox that confined it."""
    platform: Platform


class VerificationInfo(Record):
    """One time that the hub played a run again, or is about to."""

    id: int
    run_id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    sample: int | None = None
    """How many rollouts are drawn; None means all."""
    requested_by: str | None = None
    """None where the hub asked itself, after a post."""
    created_at: datetime
    finished_at: datetime | None = None
    progress: dict[str, Any] = Field(default_factory=dict)
    """`done`, `differing` and `total` rollouts, once it is under way."""
    error: str | None = None
    """Why it failed."""
    report: ReplayReport | None = None
    made_with: VerifiedWith | None = None


class VerificationList(Record):
    """Every verification of a run, the newest first."""

    data: list[VerificationInfo]


class VerificationRequest(Body):
    """What to play again."""

    sample: int | None = Field(default=None, ge=1, le=1_000_000)
    """Play only so many rollouts, drawn at random; None means all."""
