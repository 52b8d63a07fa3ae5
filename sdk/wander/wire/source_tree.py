"""The digest of a source tree: one number for all files of a source archive, however they are packed.

A tree is a set of entries: a path, whether the file may be executed, and the SHA-256 of its content. Sorted
by the bytes of their paths, each is written in frames: the path's length as eight bytes, big-endian, the path
in UTF-8, one byte `x` or `f`, and the 32 bytes of the digest. The tree's digest is the SHA-256 of the frames
behind the line `wander.source-tree/1`. Lengths stand before what they measure: no two trees look alike.

Left out is what build backends write into an archive and no source folder holds: `PKG-INFO` at the top and
`*.egg-info` folders.
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
    """What a hub found out about the source archive of a version."""

    tree_sha256: Sha256
    """`tree_digest` of the files in the archive."""
    compared: list[Text] = Field(default_factory=list)
    """The wheels whose Python files are those of the archive, byte for byte, but for the generated ones."""
    generated: list[Text] = Field(default_factory=list)
    """Python files of these wheels that the archive does not hold, and declares as made by the build."""


class TreeEntry(NamedTuple):
    """One file of a source tree."""

    path: str
    """Relative to the top of the tree, with slashes."""
    executable: bool
    sha256: bytes
    """Digest of its content, 32 bytes."""


def is_source(path: str) -> bool:
    """Tell whether a file belongs to the tree, or was written into the archive by its build backend."""
    return path != "PKG-INFO" and not any(part.endswith(".egg-info") for part in path.split("/")[:-1])


def frame_entries(entries: Iterable[TreeEntry]) -> Iterator[bytes]:
    """Yield the bytes that are digested; raises `ValueError` where a path is there twice."""
    yield _HEADER
    before = None
    for path, executable, sha256 in sorted(
        (one.path.encode(), one.executable, one.sha256) for one in entries
    ):
        if path == before:
            raise ValueError(f"`{path.decode()}` is there twice")
        if len(sha256) != hashlib.sha256().digest_size:
            raise ValueError(f"the digest of `{path.decode()}` has {len(sha256)} bytes")
        before = path
        yield len(path).to_bytes(8, "big") + path + (b"x" if executable else b"f") + sha256


def tree_digest(entries: Iterable[TreeEntry]) -> str:
    """Return the digest of a tree in hexadecimal; the order of the entries makes no difference."""
    digest = hashlib.sha256()
    for frame in frame_entries(entries):
        digest.update(frame)
    return digest.hexdigest()
