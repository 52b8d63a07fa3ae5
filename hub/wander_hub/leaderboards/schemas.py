"""What identifies a board."""

from __future__ import annotations

import hashlib
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

    @property
    def name(self) -> str:
        """What a user chooses it by among the boards of its version."""
        return hashlib.sha256(f"{self.task_set_sha256}{self.protocol_sha256}".encode()).hexdigest()[:8]
