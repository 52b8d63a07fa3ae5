"""Reads a file once from start to end, hashing every byte and tracking the position."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

CHUNK = 256 * 1024
"""Bytes in memory at a time, packed or unpacked."""

DIGESTS: dict[str, Callable[[], Any]] = {
    "sha256_digest": hashlib.sha256,
    "blake2_256_digest": lambda: hashlib.blake2b(digest_size=32),
    "md5_digest": lambda: hashlib.md5(usedforsecurity=False),
}
"""Digests that an upload form may give, by field name."""


class Truncated(Exception):
    """The file ends before all announced bytes were read."""


class ByteStream:
    """The bytes of an upload."""

    def __init__(self, body: BinaryIO, digests: Iterable[str] = (), *, start: int = 0) -> None:
        body.seek(start)
        self._body = body
        self._digests = {name: DIGESTS[name]() for name in digests}
        self.offset = start

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, or none at the end."""
        chunk = self._body.read(size)
        for digest in self._digests.values():
            digest.update(chunk)
        self.offset += len(chunk)
        return chunk

    def exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes, which must be at most a chunk or a record."""
        chunk = self.read(size)
        if len(chunk) != size:
            raise Truncated(f"at byte {self.offset:,}, where {size - len(chunk):,} more bytes should follow")
        return chunk

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield exactly `size` bytes in chunks."""
        while size:
            chunk = self.exactly(min(size, CHUNK))
            size -= len(chunk)
            yield chunk

    def digests(self) -> dict[str, str]:
        """Read the rest of the file, and return the digests of the whole file in hexadecimal."""
        self._body.seek(self.offset)  # another reader may have moved the position
        while self.read(CHUNK):
            pass
        return {name: digest.hexdigest() for name, digest in self._digests.items()}
