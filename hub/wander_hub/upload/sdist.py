"""Checks on a source archive: PEP 625 name, one top folder, safe plain members, bounded size."""

from __future__ import annotations

import gzip
import tarfile
import tomllib
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from wander_hub.storage import CHUNK
from wander_hub.upload.members import (
    ENTRY_POINT_GROUP,
    MemberNames,
    checked_entry_point,
    defines_loader,
)
from wander_hub.upload.schemas import Contents, FileName, Limits, refused

_PROJECT_BYTES = 8 * 1024 * 1024
_HEADER_BYTES = 4096


def read(body: BinaryIO, filename: FileName, limits: Limits) -> Contents:
    """Check the archive in one forward pass and return what it holds."""
    body.seek(0)
    wanted = {f"{filename.stem}/PKG-INFO": b"", f"{filename.stem}/pyproject.toml": b""}
    loader = False
    plain = _Bounded(body, limits)
    try:
        with tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in _checked_members(archive, filename, limits):
                text = _text(archive, member)
                if member.name in wanted:
                    wanted[member.name] = text
                loader = loader or (_module(member.name) and defines_loader(text))
        plain.finish()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise refused("not_an_sdist", f"the file is no sound .tar.gz archive: {error}") from error
    metadata, project = wanted.values()
    if not metadata:
        raise refused("missing_metadata", f"the archive has no `{filename.stem}/PKG-INFO`")
    return Contents(metadata, _entry_point(project), loader)


class _Bounded(gzip.GzipFile):
    """The plain bytes of a gzip stream, headers and padding included, up to the limit."""

    def __init__(self, body: BinaryIO, limits: Limits) -> None:
        super().__init__(fileobj=body, mode="rb")
        self._left = limits.unpacked_bytes + limits.members * _HEADER_BYTES

    def read(self, size: int | None = CHUNK) -> bytes:
        """Return the next bytes; refuse a stream over the limit."""
        chunk = super().read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise refused("too_large_unpacked", "the archive unpacks to more than the limit", status=413)
        return chunk

    def finish(self) -> None:
        """Read to the end, which checks the stream's length and CRC."""
        while self.read():
            pass


def _checked_members(
    archive: tarfile.TarFile, filename: FileName, limits: Limits
) -> Iterator[tarfile.TarInfo]:
    seen, unpacked = MemberNames(), 0
    for count, member in enumerate(archive, 1):
        seen.add(member.name)
        unpacked += member.size
        if count > limits.members:
            raise refused("too_many_members", f"the archive has more than {limits.members:,} members")
        if unpacked > limits.unpacked_bytes:
            raise refused(
                "too_large_unpacked",
                f"the members add up to over {limits.unpacked_bytes:,} bytes",
                status=413,
            )
        if member.name.split("/")[0] != filename.stem:
            raise refused("bad_top_folder", f"`{member.name}` lies outside the folder `{filename.stem}`")
        if member.issparse() or not (member.isfile() or member.isdir()):
            raise refused("special_member", f"the member `{member.name}` is neither a file nor a folder")
        yield member


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    wanted = member.name.endswith((".py", "/PKG-INFO", "/pyproject.toml"))
    if not wanted or not member.isfile() or member.size > _PROJECT_BYTES:
        return b""
    file = archive.extractfile(member)
    return file.read() if file else b""


def _module(path: str) -> bool:
    parts = path.split("/")[1:]
    if parts and parts[0] == "src":
        parts = parts[1:]
    return (len(parts) == 1 and parts[0].endswith(".py")) or (len(parts) == 2 and parts[1] == "__init__.py")


def _entry_point(project: bytes) -> str | None:
    try:
        table = tomllib.loads(project.decode())["project"]["entry-points"][ENTRY_POINT_GROUP]
        name, value = next(iter(table.items()))
    except (KeyError, TypeError, AttributeError, StopIteration, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    return checked_entry_point(str(name), str(value))
