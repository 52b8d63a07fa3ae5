"""Pages compressed once, when they are written."""

from __future__ import annotations

import gzip

import zstandard

_SMALL = 1024
"""Below this a page fits into one packet anyhow."""
_GZIP_LEVEL, _ZSTD_LEVEL = 2, 1
"""A page is mostly digests: higher levels take twice the time, with every upload, to save a tenth."""


def compressed(body: bytes) -> tuple[bytes | None, bytes | None]:
    """Return a page under gzip and under zstd, the same bytes for the same page; None for a small one."""
    if len(body) < _SMALL:
        return None, None
    zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return gzip.compress(body, _GZIP_LEVEL, mtime=0), zstd
