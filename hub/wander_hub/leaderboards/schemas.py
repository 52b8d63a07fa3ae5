"""What identifies a board."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Board:
    """Runs of one version that may be compared: one task set, one protocol."""

    version_id: int
    task_set_sha256: str
    protocol_sha256: str
    runs: int
    """Complete ones."""
    last_posted_at: datetime
