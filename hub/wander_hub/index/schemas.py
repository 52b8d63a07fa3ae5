"""One stored page as a route sends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoredPage:
    """Bytes, their media type and their strong entity tag."""

    body: bytes
    media_type: str
    etag: str
