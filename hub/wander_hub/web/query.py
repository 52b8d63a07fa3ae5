"""The query of an address, of what is set."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode


def query_string(**values: Any) -> str:
    """Return the values that are set as a query; of a list each one."""
    given = {key: value for key, value in values.items() if value not in (None, "", 0, [])}
    return f"?{urlencode(given, doseq=True)}" if given else ""
