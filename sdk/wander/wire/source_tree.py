"""The digest of a source tree: a single hash of all files in a source archive, however they are packed.

A tree is a set of entries. Each entry has a path, an executable flag, and the SHA-256 of the file's content.
Entries are sorted by the bytes of their paths. Each entry is encoded as a frame: the path's length as eight
bytes (big-endian), the path in UTF-8, one byte `x` or `f`, and the 32 bytes of the digest. The tree's digest
is the SHA-256 of the line `wander.source-tree/1` followed by the frames. Because every path is preceded by
its length, two different trees never encode to the same bytes.

Files that build backends add to an archive are left out: `PKG-INFO` at the top, and `*.egg-info` folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import Field

from wander.types import Record
from wander.wire.fields import Sha256, Text

_HEADER = b"wander.source-tree/1\n"


class SourceInfo(Record):
    """Facts that a hub established about the source archive of a version."""

    tree_sha256: Sha256
    """`tree_digest` of the files in the archive."""
    compared: list[Text] = Field(default_factory=list)
    """Wheels whose Python files, except `generated`, equal those of the archive byte for byte."""
    generated: list[Text] = Field(default_factory=list)
    """Python files of these wheels that are not in the archive because the build generates them."""


class TreeEntry(NamedTuple):
    """One file of a source tree."""

    path: str
    """Path relative to the top of the tree, with slashes."""
    executable: bool
    sha256: bytes
    """SHA-256 of the file's content, 32 bytes."""


def is_source(path: str) -> bool:
    """Return whether a file belongs to the tree; files that the build backend added do not."""
    return path != "PKG-INFO" and not any(part.endswith(".egg-info") for part in path.split("/")[:-1])


def frame_entries(entries: Iterable[TreeEntry]) -> Iterator[bytes]:
    """Yield the bytes that are hashed; raises `ValueError` if a path occurs twice."""
    yield _HEADER
    previous = None
    for path, executable, sha256 in sorted(
        (entry.path.encode(), entry.executable, entry.sha256) for entry in entries
    ):
        if path == previous:
            raise ValueError(f"`{path.decode()}` occurs twice")
        if len(sha256) != hashlib.sha256().digest_size:
            raise ValueError(f"the digest of `{path.decode()}` has {len(sha256)} bytes, not 32")
        previous = path
        yield len(path).to_bytes(8, "big") + path + (b"x" if executable else b"f") + sha256


def tree_digest(entries: Iterable[TreeEntry]) -> str:
    """Return the digest of a tree in hexadecimal; the order of the entries does not matter."""
    digest = hashlib.sha256()
    for frame in frame_entries(entries):
        digest.update(frame)
    return digest.hexdigest()
