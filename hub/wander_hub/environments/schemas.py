"""Filters and cursors of listings."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime

from wander_hub.http.problems import HubProblem


@dataclass(frozen=True)
class EnvironmentFilter:
    """What a listing asks for."""

    q: str = ""
    """Words that must all occur in owner, name, tags or summary."""
    owner: str | None = None
    tag: str | None = None
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True)
class Position:
    """Where a page of a listing ended: the sort key of its last row."""

    moment: datetime
    row: str

    def cursor(self) -> str:
        """Return the opaque form."""
        return base64.urlsafe_b64encode(f"{self.moment.isoformat()} {self.row}".encode()).decode()

    @classmethod
    def from_cursor(cls, cursor: str) -> Position:
        """Read the opaque form; raise a 422 for anything else."""
        try:
            moment, _, row = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
            aware = datetime.fromisoformat(moment)
            if aware.tzinfo is None or not row:
                raise ValueError("cut short")
        except (binascii.Error, ValueError) as error:
            hint = "pass `next` of the previous page unchanged"
            raise HubProblem(422, "bad_cursor", "the cursor is not one of this hub's", hint=hint) from error
        return cls(aware, row)
