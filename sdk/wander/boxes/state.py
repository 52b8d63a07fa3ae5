"""The changes that a box's processes have made, as data that can be applied to a fresh box.

A state holds names, kinds, executable bits, links and contents, and neither times nor owners, so the same
commands give the same digest everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import zstandard

from wander.boxes.base import ChangedFile, FinalState
from wander.errors import SandboxError
from wander.types import canonical_json

MOST_PATH = 1024
"""Maximum length of a recorded path; longer ones are left out."""
MOST_FILES = 10_000
"""Maximum number of changes in a state."""
MOST_READ_FILES, MOST_READ_BYTES = 500_000, 16 << 30
"""Maximum number of files below the recorded paths, and of their bytes."""
MOST_BYTES, MOST_COMPRESSED_BYTES = 8 << 20, 1 << 20
"""Maximum size of the contents of a state, plain and compressed. A larger state has no contents."""
_CHUNK = 1 << 20
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
}

Snapshot = dict[str, ChangedFile]
"""The files, folders and links below the recorded paths, by path and without contents."""


@dataclass
class Archive:
    """The content of a tar archive of the recorded paths."""

    files: Snapshot = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    """Contents of the files that differ from the start, until they are too large together."""


def outermost_paths(paths: Iterable[str]) -> list[str]:
    """Return normalized folders, without those inside another."""
    kept: list[str] = []
    for path in sorted({posixpath.normpath(path).replace("//", "/") for path in paths}, key=_parts):
        if not any(_is_below(path, folder) for folder in kept):
            kept.append(path)
    return kept


def read_archive(
    stream: BinaryIO, start: Snapshot | None = None, most_bytes: int = MOST_READ_BYTES
) -> Archive:
    """Read a tar archive of the recorded paths, whose names are absolute paths without the first slash.

    If `start` is given, the result also has the contents of the files that differ from `start`. Raises
    `SandboxError` if the archive has more than `MOST_READ_FILES` files or `most_bytes` bytes, or if it is not
    complete.
    """
    archive = Archive()
    kept = seen = 0
    is_complete = False
    with tarfile.open(fileobj=stream, mode="r|") as members:
        for member in members:
            is_complete = member.type == tarfile.FIFOTYPE  # the last member
            kind = _KINDS.get(member.type)
            path = "/" + _as_unicode(member.name.strip("/"))
            if kind is None or len(path) > MOST_PATH:
                continue  # pipes, sockets and devices hold no data
            seen += member.size
            if len(archive.files) >= MOST_READ_FILES or seen > most_bytes:
                raise SandboxError(
                    f"the recorded folders of the box hold more than {MOST_READ_FILES} files or "
                    f"{most_bytes >> 20} MiB, including holes in files"
                )
            if kind != "file":
                target = _as_unicode(member.linkname) if kind == "link" else None
                archive.files[path] = ChangedFile(path=path, kind=kind, target=target)  # type: ignore[arg-type]
                continue
            digest, parts = hashlib.sha256(), []
            is_kept = start is not None and kept + member.size <= MOST_BYTES
            content = members.extractfile(member)
            while content is not None and (data := content.read(_CHUNK)):
                digest.update(data)
                if is_kept:
                    parts.append(data)
            archive.files[path] = file = ChangedFile(
                path=path,
                kind="file",
                executable=bool(member.mode & 0o100),
                size=member.size,
                sha256=digest.hexdigest(),
            )
            if is_kept and start is not None and start.get(path) != file:
                archive.contents[path] = b"".join(parts)
                kept += member.size
    if not is_complete:
        raise SandboxError("the files of the box were not read completely")
    return archive


def compare(start: Snapshot, end: Archive) -> FinalState:
    """Return what has changed between two snapshots."""
    changes = [file for path, file in end.files.items() if start.get(path) != file]
    changes += [
        ChangedFile(path=path, kind="removed")
        for path in start
        if path not in end.files and not _is_implied(path, start, end.files)
    ]
    changes.sort(key=lambda change: _parts(change.path))
    too_large = len(changes) > MOST_FILES or any(
        change.kind == "file" and change.path not in end.contents for change in changes
    )
    if not too_large:
        packed = zstandard.compress(b"".join(end.contents.values()), 3)
        too_large = len(packed) > MOST_COMPRESSED_BYTES
    changes = changes[:MOST_FILES]
    digest = digest_changes(changes)
    if not too_large:
        changes = [
            change.model_copy(update=_encode(end.contents[change.path])) if change.kind == "file" else change
            for change in changes
        ]
    return FinalState(digest=digest, files=changes, too_large=too_large)


def digest_changes(changes: Iterable[ChangedFile]) -> str:
    """Return the digest of changes, which covers contents by their digests."""
    rows = [change.model_dump(mode="json", exclude={"text", "base64"}) for change in changes]
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


def check_state(state: FinalState, roots: Sequence[str]) -> Iterator[tuple[ChangedFile, bytes]]:
    """Yield the changes of a state with their contents, after checks of the whole state.

    Raises `ValueError` for a state that did not come from a box with these recorded paths, as an upload may
    contain.
    """
    if state.too_large:
        raise ValueError("the state is incomplete: it was too large to keep the contents of its files")
    if len(state.files) > MOST_FILES:
        raise ValueError(f"the state has more than {MOST_FILES} changes")
    contents = [_check_change(change, roots) for change in state.files]
    if sum(map(len, contents)) > MOST_BYTES:
        raise ValueError(f"the contents of the state have more than {MOST_BYTES >> 20} MiB")
    paths = [_parts(change.path) for change in state.files]
    if any(first >= second for first, second in itertools.pairwise(paths)):
        raise ValueError("the changes of the state are not sorted by their paths")
    ends = {change.path for change in state.files if change.kind != "folder"}
    for change in state.files:
        for parent in _parents(change.path):
            if parent in ends:
                raise ValueError(f"`{change.path}` is inside `{parent}`, which is not a folder")
    if digest_changes(state.files) != state.digest:
        raise ValueError("the digest of the state does not match its changes")
    return zip(state.files, contents, strict=True)


def _check_change(change: ChangedFile, roots: Sequence[str]) -> bytes:
    """Return the content of a valid change."""
    path = change.path
    if posixpath.normpath(path) != path or "\0" in path or path.startswith("//"):
        raise ValueError(f"`{path}` is not a normal absolute path")
    if not any(_is_below(path, root) and path != root for root in roots):
        raise ValueError(f"`{path}` is outside of the recorded folders {', '.join(roots)}")
    if (change.kind == "link") != (change.target is not None) or "\0" in (change.target or ""):
        raise ValueError(f"`{path}` has no valid link target")
    if change.kind != "file":
        if change.text is not None or change.base64 is not None or change.sha256 is not None:
            raise ValueError(f"`{path}` has a content, but is not a file")
        return b""
    if (change.text is None) == (change.base64 is None):
        raise ValueError(f"`{path}` needs one content")
    content = (
        base64.b64decode(change.base64, validate=True) if change.base64 else (change.text or "").encode()
    )
    if len(content) != change.size or hashlib.sha256(content).hexdigest() != change.sha256:
        raise ValueError(f"the content of `{path}` does not match its digest")
    return content


def _encode(content: bytes) -> dict[str, str]:
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _is_implied(path: str, start: Mapping[str, ChangedFile], end: Mapping[str, ChangedFile]) -> bool:
    """Return whether a path is gone because a folder above it is gone or has become something else."""
    return any(
        parent in start and (parent not in end or end[parent].kind != "folder") for parent in _parents(path)
    )


def _parents(path: str) -> Iterator[str]:
    while (parent := posixpath.dirname(path)) != path:
        yield parent
        path = parent


def _parts(path: str) -> list[str]:
    return path.split("/")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _as_unicode(name: str) -> str:
    """Return a name that can be stored: bytes that are not UTF-8 become escape sequences."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
