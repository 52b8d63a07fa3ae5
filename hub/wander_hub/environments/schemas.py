"""Filters and cursors of listings."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from wander_hub.http.problems import HubProblem

_LARGEST = 2**31
KINDS = ("single_turn", "multi_turn", "tool", "stateful_tool", "mcp", "rlm", "group", "environment")
"""The kinds of the SDK's classes; a class may call itself something else."""

Sort = Literal["relevance", "updated", "newest", "runs", "downloads", "stars"]


@dataclass(frozen=True)
class EnvironmentFilter:
    """What a listing asks for."""

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
    requires: str | None = None
    """Name of a distribution that the newest version requires."""
    sort: Sort | None = None
    """None for relevance where words are sought, else for the last update."""

    def __post_init__(self) -> None:
        # As `wander new` and the pages write a kind, or as environments say it of themselves.
        if self.kind is not None:
            object.__setattr__(self, "kind", self.kind.strip().lower().replace("-", "_"))

    @property
    def order(self) -> Sort:
        """The order of the answer."""
        return self.sort or ("relevance" if self.q.strip() else "updated")

    def marks(self) -> list[str]:
        """Return what must stand among an environment's marks."""
        named = {
            "kind": self.kind,
            "deterministic": self.deterministic,
            "license": self.license,
            "requires": self.requires,
        }
        found = [
            mark(name, value)
            for name, value in {**named, "checked": self.checked}.items()
            if value is not None
        ]
        return found if self.tag is None else [f"#{self.tag.lower()}", *found]


def mark(name: str, value: str | bool) -> str:
    """Return a fact as it stands among the marks of an environment."""
    said = ("yes" if value else "no") if isinstance(value, bool) else "-".join(value.lower().split())
    return f"{name}:{said}"


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
            aware.astimezone(UTC)
        except (binascii.Error, ValueError, OverflowError) as error:
            raise _refuse_cursor() from error
        return cls(aware, row)


@dataclass(frozen=True)
class ListPosition:
    """Where a page of a listing of environments ended."""

    sort: Sort
    value: str | int
    row: int
    """Id of the last row; of what a search found, its number."""

    def cursor(self) -> str:
        """Return the opaque form."""
        return base64.urlsafe_b64encode(json.dumps([self.sort, self.value, self.row]).encode()).decode()

    @classmethod
    def from_cursor(cls, cursor: str, sort: Sort) -> ListPosition:
        """Read the opaque form; raise a 422 for anything else, and for the cursor of another order."""
        try:
            given, value, row = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            whole = [row] if isinstance(value, str) else [row, value]
            if given != sort or not all(type(one) is int and 0 <= one < _LARGEST for one in whole):
                raise ValueError("it is of another listing")
            if isinstance(value, str) != (sort in ("updated", "newest")):
                raise ValueError("it is of another order")
            if isinstance(value, str):
                if (moment := datetime.fromisoformat(value)).tzinfo is None:
                    raise ValueError("it is cut short")
                moment.astimezone(UTC)
        except (binascii.Error, ValueError, TypeError, OverflowError) as error:
            raise _refuse_cursor() from error
        return cls(sort, value, row)


def _refuse_cursor() -> HubProblem:
    hint = "pass `next` of the previous page unchanged"
    return HubProblem(422, "bad_cursor", "the cursor is not one of this hub's", hint=hint)
