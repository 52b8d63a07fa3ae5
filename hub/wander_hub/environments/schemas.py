"""Filters, orders and cursors of listings."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from wander_hub.http.problems import HubProblem

_LARGEST = 2**31
KINDS = (
    "single_turn",
    "multi_turn",
    "tool",
    "stateful_tool",
    "mcp",
    "rlm",
    "shell",
    "agent",
    "group",
    "environment",
)
"""Kinds of the SDK's classes. Other classes may report other kinds."""

Sort = Literal["relevance", "updated", "newest", "runs", "downloads"]


@dataclass(frozen=True)
class EnvironmentFilter:
    """Filter and order of a listing."""

    q: str = ""
    """Words that must all occur in name, tags, summary or README."""
    owner: str | None = None
    tag: str | None = None
    limit: int = 50
    cursor: str | None = None
    kind: str | None = None
    deterministic: bool | None = None
    checked: bool | None = None
    license: str | None = None
    sort: Sort | None = None
    """Order; None means relevance for a text search, otherwise the last update."""

    def __post_init__(self) -> None:
        # Accept `single-turn` from commands and pages, and `single_turn` from environments.
        if self.kind is not None:
            object.__setattr__(self, "kind", self.kind.strip().lower().replace("-", "_"))

    @property
    def order(self) -> Sort:
        """Effective order."""
        return self.sort or ("relevance" if self.q.strip() else "updated")

    def marks(self) -> list[str]:
        """Return the marks that an environment must have."""
        named = {
            "kind": self.kind,
            "deterministic": self.deterministic,
            "license": self.license,
        }
        marks = [
            mark(name, value)
            for name, value in {**named, "checked": self.checked}.items()
            if value is not None
        ]
        return marks if self.tag is None else [f"#{self.tag.lower()}", *marks]


def mark(name: str, value: str | bool) -> str:
    """Return the mark of a fact about an environment."""
    word = ("yes" if value else "no") if isinstance(value, bool) else "-".join(value.lower().split())
    return f"{name}:{word}"


@dataclass(frozen=True)
class Position:
    """The end of a page: the sort key of its last row."""

    moment: datetime
    row: str

    def cursor(self) -> str:
        """Return the position as an opaque cursor."""
        return base64.urlsafe_b64encode(f"{self.moment.isoformat()} {self.row}".encode()).decode()

    @classmethod
    def from_cursor(cls, cursor: str) -> Position:
        """Parse a cursor; raise a 422 problem if it is invalid."""
        try:
            moment, _, row = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
            aware = datetime.fromisoformat(moment)
            if aware.tzinfo is None or not row:
                raise ValueError("truncated")
            aware.astimezone(UTC)
        except (binascii.Error, ValueError, OverflowError) as error:
            raise _refuse_cursor() from error
        return cls(aware, row)


@dataclass(frozen=True)
class ListPosition:
    """The end of a page of environments."""

    sort: Sort
    value: str | int
    row: int
    """Id of the last row; in search results, its index."""

    def cursor(self) -> str:
        """Return the position as an opaque cursor."""
        return base64.urlsafe_b64encode(json.dumps([self.sort, self.value, self.row]).encode()).decode()

    @classmethod
    def from_cursor(cls, cursor: str, sort: Sort) -> ListPosition:
        """Parse a cursor; raise a 422 problem if it is invalid or belongs to another order."""
        try:
            cursor_sort, value, row = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            numbers = [row] if isinstance(value, str) else [row, value]
            if cursor_sort != sort or not all(type(n) is int and 0 <= n < _LARGEST for n in numbers):
                raise ValueError("cursor of another listing")
            if isinstance(value, str) != (sort in ("updated", "newest")):
                raise ValueError("cursor of another order")
            if isinstance(value, str):
                if (moment := datetime.fromisoformat(value)).tzinfo is None:
                    raise ValueError("truncated")
                moment.astimezone(UTC)
        except (binascii.Error, ValueError, TypeError, OverflowError) as error:
            raise _refuse_cursor() from error
        return cls(sort, value, row)


def _refuse_cursor() -> HubProblem:
    hint = "pass `next` of the previous page unchanged"
    return HubProblem(422, "bad_cursor", "the cursor is not valid", hint=hint)
