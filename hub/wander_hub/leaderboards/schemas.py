"""The filters and the order that a reader may ask for, and the end of a page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wander.wire import VerificationLevel
from wander.wire.boards import TIERS

from wander_hub.http.problems import HubProblem

BoardSort = Literal["reward", "posted", "tokens", "cost"]
Showing = Literal["best", "mean", "all"]


@dataclass(frozen=True)
class BoardFilter:
    """Which rows of a board, and in what order; none of it changes a rank."""

    showing: Showing = "best"
    sort: BoardSort = "reward"
    """Best reward, newest, fewest tokens or lowest cost first; unknown ones last."""
    level: VerificationLevel = "unverifiable"
    """At least."""
    model: str = ""
    """Part of the name, in any case."""
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True)
class BoardPosition:
    """Where a page ended: the sort key of its last row."""

    sort: BoardSort
    tier: int
    value: float
    """Zero when sorted by time."""
    posted_at: datetime
    run_id: str

    def cursor(self) -> str:
        """Return the opaque form."""
        parts = [self.sort, self.tier, self.value, self.posted_at.isoformat(), self.run_id]
        return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()

    @classmethod
    def from_cursor(cls, cursor: str, sort: BoardSort) -> BoardPosition:
        """Read the opaque form; raise a 422 for anything else, and for a cursor of another order."""
        try:
            found, tier, value, posted_at, run_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            moment = datetime.fromisoformat(posted_at)
            right = found == sort and isinstance(run_id, str) and type(value) in (int, float)
            right = right and type(tier) is int and 0 <= tier < len(TIERS)
            if not right or not math.isfinite(value) or moment.tzinfo is None:
                raise ValueError("not of this order")
        except (binascii.Error, ValueError, TypeError) as error:
            hint = "pass `next` of the previous page unchanged, with the same `sort`"
            raise HubProblem(422, "bad_cursor", "the cursor is not one of this board's", hint=hint) from error
        return cls(sort, tier, float(value), moment, run_id)


def board_name(task_set_sha256: str, protocol_sha256: str) -> str:
    """Return what a user chooses a board by among those of its version."""
    return hashlib.sha256(f"{task_set_sha256}{protocol_sha256}".encode()).hexdigest()[:8]
