"""The outcome of a delivery attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeliveryOutcome:
    """The outcome of a delivery attempt."""

    status: int | None = None
    answer: str | None = None
    error: str | None = None
    """Reason of the failure; None if the receiver accepted the message."""
    seconds: float = 0.0
