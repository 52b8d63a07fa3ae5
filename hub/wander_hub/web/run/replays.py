"""The hub's replays of a run, as the run's page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session
from wander.wire.verification import LEVELS_SOUGHT, VerificationInfo

from wander_hub.identity import Identity
from wander_hub.jobs import OPEN
from wander_hub.runs.models import Run
from wander_hub.settings import Settings
from wander_hub.verification import service as verification


@dataclass(frozen=True)
class Replays:
    """Data about the hub's replays of a run."""

    run_id: str
    data: list[VerificationInfo]
    may_ask: bool
    """Whether the reader may request another replay."""
    may_cancel: frozenset[int]
    """IDs of the replays that the reader may cancel."""
    levels: tuple[str, ...] = LEVELS_SOUGHT

    @property
    def under_way(self) -> bool:
        """Whether a replay is queued or running."""
        return any(one.state in OPEN for one in self.data)


def list_replays(session: Session, settings: Settings, run: Run, caller: Identity | None) -> Replays:
    """Return the replays of a run, and the reader's rights to request or cancel them."""
    data = verification.list_page(session, run).data
    return Replays(
        run.run_id,
        data,
        may_ask=caller is not None and verification.find_refusal(run, settings, caller) is None,
        may_cancel=frozenset(
            one.id
            for one in data
            if caller is not None
            and one.state in OPEN
            and verification.may_cancel(caller, one.requested_by, run.environment)
        ),
    )
