"""Archive files: an uncompressed tar of rows and objects, whose content is already compressed where that
helps.

An archive is read member by member, and no member's name becomes a path. A member is the file of rows or an
object with a name of the expected format; everything else is rejected.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from wander.system.plain_files import require_replaceable

from wander_hub.http.problems import HubProblem
from wander_hub.operation.backup import ROWS, bad_copy
from wander_hub.storage import CHUNK, Storage, copy_pieces, object_key

_OBJECT = re.compile(r"objects/sha256/([0-9a-f]{2})/([0-9a-f]{62})")


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for exclusive writing; it gets its final name when it is complete."""
    if not path.parent.is_dir():  # an error that named the partial file would confuse
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    require_replaceable(path)
    part = path.with_name(f".{path.name}.part")
    with _locked(part, path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(0)  # remove the content of an interrupted export
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _locked(part: Path, path: Path) -> IO[bytes]:
    """Open and lock the partial file; try again if another process renamed it before it was locked."""
    while True:
        file = part.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(part.stat(), os.fstat(file.fileno())):
                return file
        except BlockingIOError:
            file.close()
            raise HubProblem(409, "busy", f"another export is writing `{path}`", hint="wait for it") from None
        except FileNotFoundError:
            pass
        file.close()


def write(file: IO[bytes], rows: IO[bytes], storage: Storage, objects: Mapping[str, int | None]) -> None:
    """Write an archive of rows and objects. Raises a problem if an object is missing or damaged."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        size = rows.seek(0, os.SEEK_END)
        rows.seek(0)
        _add(tar, ROWS, rows, size)
        for sha256 in sorted(objects):
            with tempfile.TemporaryFile() as content:
                try:
                    actual = copy_pieces(storage.pieces(sha256), content)
                except FileNotFoundError:
                    raise _lacking(sha256, "is missing") from None
                if actual != sha256:
                    raise _lacking(sha256, "does not match its digest")
                size = content.tell()
                content.seek(0)
                _add(tar, f"objects/{object_key(sha256)}", content, size)


def read_rows(file: IO[bytes], into: IO[bytes]) -> None:
    """Copy the rows, which come first, from an archive to a file."""
    name, size = _next(file) or ("", 0)
    if name != ROWS:
        raise bad_copy(f"it does not start with `{ROWS}`")
    copy_pieces(_content(file, size), into)


def store_objects(file: IO[bytes], storage: Storage, needed: Mapping[str, int | None]) -> None:
    """Store the objects that follow the rows after checking their digests; reject objects that no row
    needs."""
    left = set(needed)
    while (member := _next(file)) is not None:
        name, size = member
        key = _OBJECT.fullmatch(name)
        sha256 = key[1] + key[2] if key else ""
        if sha256 not in needed:
            raise bad_copy(f"it contains `{name[:100]}`, which no row refers to")
        if needed[sha256] not in (None, size):
            raise bad_copy(f"`{name}` has {size:,} bytes instead of {needed[sha256]:,}")
        with tempfile.TemporaryFile() as content:
            if copy_pieces(_content(file, size), content) != sha256:
                raise bad_copy(f"`{name}` does not match its digest")
            storage.keep(content, sha256, size)
        left.discard(sha256)
    if left:
        raise bad_copy(f"{len(left):,} objects are missing, such as `{min(left)}`")


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    tar.addfile(info, content)


def _next(file: IO[bytes]) -> tuple[str, int] | None:
    """Return name and size of the next member, or None at the end; reject everything except plain files."""
    block = file.read(tarfile.BLOCKSIZE)
    if block == bytes(tarfile.BLOCKSIZE):
        return None
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeError):
        raise bad_copy("it is truncated or not an archive") from None
    if info.type != tarfile.REGTYPE or info.size < 0:
        raise bad_copy(f"`{info.name[:100]}` is not a plain file")
    return info.name, info.size


def _content(file: IO[bytes], size: int) -> Iterator[bytes]:
    if file.tell() + size > os.fstat(file.fileno()).st_size:
        raise bad_copy("it is truncated")
    for start in range(0, size, CHUNK):
        yield file.read(min(CHUNK, size - start))
    file.read(-size % tarfile.BLOCKSIZE)


def _lacking(sha256: str, fault: str) -> HubProblem:
    hint = "try again; if that does not help, run `wander-hub fsck` to see what needs the object"
    return HubProblem(500, "object_damaged", f"the object `{sha256}` {fault}", hint=hint)
