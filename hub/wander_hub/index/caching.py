"""How long answers of the index may be kept, and what keeps them harmless in a browser."""

from __future__ import annotations

from wander_hub.http.answers import IMMUTABLE, REVALIDATE
from wander_hub.index.namespaces import covers
from wander_hub.names import BUNDLED_OWNER

PAGE_HEADERS = {
    "Cache-Control": REVALIDATE,
    "Vary": "Accept, Accept-Encoding",
    "Content-Security-Policy": "sandbox; default-src 'none'",
}
"""pip and uv obey `Cache-Control` on pages: any age would hide what was just published."""


def file_caching(owner: str | None, project: str, *, private: bool = False) -> str:
    """Return the caching of a file, owner None for the combined index.

    Files never change, but for the hub's own packages, which are rebuilt under one version while they are
    developed.
    """
    if covers(BUNDLED_OWNER, project) if owner is None else owner == BUNDLED_OWNER:
        return REVALIDATE
    return IMMUTABLE.replace("public", "private") if private else IMMUTABLE
