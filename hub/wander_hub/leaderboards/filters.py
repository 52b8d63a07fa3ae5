"""Filters and orders of boards, and positions of pages."""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wander.wire import VerificationLevel
from wander.wire.boards import TIERS

from wander_hub.http.problems import HubProblem

BoardSort = Literal["reward", "posted", "tokens", "cost"]
Showing = Literal["best", "all"]


@dataclass(frozen=True)
class BoardFilter:
    """Filter and order of a board's rows. They do not change ranks."""

    showing: Showing = "best"
    sort: BoardSort = "reward"
    """Order: best reward, newest, or by rank and, at equal rank, fewest tokens or lowest cost first. Unknown
    values come last."""
    level: VerificationLevel = "unverifiable"
    """Minimum level."""
    model: str = ""
    """Part of the model's name, in any letter case."""
    since: datetime | None = None
    until: datetime | None = None
    """End of the period, exclusive."""
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True)
class BoardPosition:
    """The end of a page: the sort key of its last row."""

    sort: BoardSort
    tier: int
    rank: int
    """Rank when sorted by tokens or cost, otherwise 0."""
    value: float
    """Sort value; zero when sorted by time."""
    posted_at: datetime
    run_id: str

    def cursor(self) -> str:
        """Return the position as an opaque cursor."""
        parts = [self.sort, self.tier, self.rank, self.value, self.posted_at.isoformat(), self.run_id]
        return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()

    @classmethod
    def from_cursor(cls, cursor: str, sort: BoardSort) -> BoardPosition:
        """Parse a cursor; raise a 422 problem if it is invalid or belongs to another order."""
        try:
            cursor_sort, tier, rank, value, posted_at, run_id = json.loads(
                base64.urlsafe_b64decode(cursor.encode())
            )
            moment = datetime.fromisoformat(posted_at)
            right = cursor_sort == sort and isinstance(run_id, str) and type(value) in (int, float)
            right = right and type(tier) is int and 0 <= tier < len(TIERS)
            right = right and type(rank) is int and -1 <= rank < 2**31
            if not right or not math.isfinite(value) or moment.tzinfo is None:
                raise ValueError("cursor of another order")
        except (binascii.Error, ValueError, TypeError) as error:
            hint = "pass `next` of the previous page unchanged, with the same `sort`"
            raise HubProblem(
                422, "bad_cursor", "the cursor does not belong to this board", hint=hint
            ) from error
        return cls(sort, tier, rank, float(value), moment, run_id)
