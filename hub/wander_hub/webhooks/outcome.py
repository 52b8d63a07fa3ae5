"""How an attempt to deliver ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    status: int | None = None
    answer: str | None = None
    error: str | None = None
    """Why it was in vain; None where the receiver took the message."""
    seconds: float = 0.0
