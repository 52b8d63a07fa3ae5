"""The query of an address, of what is set."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode


def query_of(asked: dict[str, Any]) -> str:
    """Return as the end of an address what is asked for; of a list each one."""
    return f"?{urlencode(asked, doseq=True)}" if asked else ""


def query_string(**values: Any) -> str:
    """Return the values that are set as a query."""
    return query_of({key: value for key, value in values.items() if value not in (None, "", 0, [])})
