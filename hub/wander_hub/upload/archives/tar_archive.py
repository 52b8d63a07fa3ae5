"""Reads a gzipped tar archive from first byte to last, accepting only archives with a single interpretation.

Tar readers disagree about duplicate sizes, folders with content, extended headers and data after the end
(CVE-2025-62518 is an example). Here a name and a size occur once, members are plain files or folders,
extended headers may only set a file's name, times and owners, and only zeros follow the end.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wander_hub.upload.archives import limits
from wander_hub.upload.archives.members import ArchiveBudget, clip
from wander_hub.upload.archives.stream import CHUNK, ByteStream, Truncated
from wander_hub.upload.findings import refusal

_BLOCK = tarfile.BLOCKSIZE
_EXTENSION_BYTES = 64 * 1024
"""An extended header holds a path and a few numbers."""
_OVERHEAD_BYTES = 2048
"""Average size of headers and padding per member in an archive with the maximum number of members."""
_PAX, _PAX_GLOBAL = tarfile.XHDTYPE, tarfile.XGLTYPE
_LINKS = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_LONGLINK)
_HARMLESS_PAX = {"path", "size", "mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"}
_TIME = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?")
_OWNER = re.compile(r"[0-9]{1,10}")
_NUMBERS = {"mtime": _TIME, "atime": _TIME, "ctime": _TIME, "uid": _OWNER, "gid": _OWNER}
_HARMLESS_PAX_PREFIXES = ("SCHILY.xattr.", "LIBARCHIVE.")
"""Attributes that tar on macOS adds and that no installer extracts."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file or folder in the archive."""

    name: str
    size: int
    is_folder: bool
    is_executable: bool = False


class _Gunzipped:
    """The unpacked bytes of a gzip member, produced as they are requested."""

    def __init__(self, source: ByteStream, overhead: int) -> None:
        self._source = source
        self._left = overhead + CHUNK
        self._inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._buffer = memoryview(b"")
        self.offset = 0

    def expect(self, size: int) -> None:
        """Allow for the content of a member, which has been counted already; everything else is overhead."""
        self._left += size

    def exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes, which must be at most a chunk or a header."""
        got = self._available(size)
        while len(got) < size:
            more = self._available(size - len(got))
            if not more:
                raise Truncated(f"in the tar archive at byte {self.offset:,}")
            got += more
        return got

    def _available(self, size: int) -> bytes:
        """Return up to `size` bytes, or none at the end of the gzip member, after checking its CRC."""
        while not self._buffer and not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._source.read(CHUNK)
            plain = self._inflater.decompress(packed, CHUNK)
            if not packed and not plain:
                raise Truncated(f"at byte {self._source.offset:,}, before the end of its gzip stream")
            self._left -= len(plain)
            if self._left < 0:
                detail = f"headers and padding before byte {self.offset:,} of the tar archive are too long"
                raise refusal("compression_bomb", detail)
            self._buffer = memoryview(plain)
        taken = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        self.offset += len(taken)
        return taken

    def finish(self) -> None:
        """Require that only zeros are left, and that nothing follows the gzip member."""
        while rest := self._available(CHUNK):
            if rest.strip(b"\0"):
                raise refusal(
                    "tar_framing", f"data follows the end of the tar archive at byte {self.offset:,}"
                )
        if self._inflater.unused_data or self._source.read(1):
            raise refusal("trailing_data", "bytes follow the end of the gzip stream")


class TarArchive:
    """A single pass over an archive."""

    def __init__(self, stream: ByteStream, budget: ArchiveBudget) -> None:
        self._plain = _Gunzipped(stream, limits.MAX_MEMBERS * _OVERHEAD_BYTES)
        self._budget = budget

    def walk(self) -> Iterator[tuple[TarMember, Iterator[bytes]]]:
        """Yield each member with its bytes, which are read to the end even if the caller does not."""
        with _sound():
            while (info := self._next_header()) is not None:
                member = self._member(info)
                self._budget.spend(member.size, member.name)
                self._plain.expect(member.size)
                content = self._content(member)
                yield member, content
                for _ in content:
                    pass
            self._plain.finish()

    def _next_header(self) -> tarfile.TarInfo | None:
        """Return the next member's header with its extended name, or None at the end."""
        pax: dict[str, str] = {}
        long_name: str | None = None
        while True:
            info = self._header()
            if info is None:
                if pax or long_name is not None:
                    raise refusal("tar_framing", "the archive ends after an extended header")
                return None
            if info.type == _PAX and not pax:
                pax = self._pax(info)
            elif info.type == _PAX_GLOBAL:
                records = self._pax(info)
                if set(records) - {"comment"}:
                    detail = f"a global pax header sets `{clip(min(records))}` for every member"
                    raise refusal("tar_extension", detail)
            elif info.type == tarfile.GNUTYPE_LONGNAME and long_name is None:
                try:
                    long_name = self._extension(info).removesuffix(b"\0").decode()
                except UnicodeDecodeError as error:
                    raise refusal("tar_extension", "a long file name is not valid UTF-8") from error
            elif info.type in (_PAX, tarfile.GNUTYPE_LONGNAME) or (pax and long_name is not None):
                raise refusal("tar_extension", f"`{clip(info.name)}` has more than one extended header")
            else:
                _apply(info, pax, long_name)
                return info

    def _header(self) -> tarfile.TarInfo | None:
        at = self._plain.offset
        block = self._plain.exactly(_BLOCK)
        if not block.strip(b"\0"):
            if at == 0 or self._plain.exactly(_BLOCK).strip(b"\0"):
                raise refusal(
                    "tar_framing", f"an empty block at byte {at:,} is not followed by the end of the archive"
                )
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError, OverflowError) as error:
            code = "not_an_sdist" if at == 0 else "tar_framing"
            raise refusal(code, f"the tar header at byte {at:,} is malformed: {error}") from error
        if block[156:157] == tarfile.AREGTYPE and info.type == tarfile.DIRTYPE:
            detail = f"`{clip(info.name)}` is a file by its type and a folder by its name"
            raise refusal("file_and_folder", detail)
        if info.size < 0:
            raise refusal("tar_framing", f"the tar header at byte {at:,} has the size {info.size}")
        return info

    def _member(self, info: tarfile.TarInfo) -> TarMember:
        name = info.name
        if info.type in _LINKS:
            raise refusal("link_member", f"the member `{clip(name)}` is a link to `{clip(info.linkname)}`")
        if info.type == tarfile.GNUTYPE_SPARSE:
            raise refusal("sparse_member", f"the member `{clip(name)}` is sparse")
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            raise refusal("special_member", f"the member `{clip(name)}` has the type {info.type!r}")
        is_folder = info.type == tarfile.DIRTYPE
        if is_folder and info.size:
            raise refusal("special_member", f"the folder `{clip(name)}` has content")
        if not is_folder and name.endswith("/"):
            raise refusal("file_and_folder", f"`{clip(name)}` is a file by its type and a folder by its name")
        if not is_folder and info.mode & 0o6000:
            raise refusal("special_member", f"the member `{clip(name)}` has the mode {info.mode:o}")
        path = name.removesuffix("/") if is_folder else name
        return TarMember(path, info.size, is_folder, is_executable=bool(info.mode & 0o100))

    def _content(self, member: TarMember) -> Iterator[bytes]:
        left = member.size
        with _sound():
            while left:
                piece = self._plain.exactly(min(left, CHUNK))
                left -= len(piece)
                yield piece
            self._plain.exactly(-member.size % _BLOCK)

    def _extension(self, info: tarfile.TarInfo) -> bytes:
        if info.size > _EXTENSION_BYTES:
            detail = f"an extended header of {info.size:,} bytes before byte {self._plain.offset:,}"
            raise refusal("tar_extension", detail)
        text = self._plain.exactly(info.size)
        self._plain.exactly(-info.size % _BLOCK)
        return text

    def _pax(self, info: tarfile.TarInfo) -> dict[str, str]:
        if info.size == 0:
            raise refusal("tar_extension", f"an empty pax header before byte {self._plain.offset:,}")
        try:
            return _pax_records(self._extension(info))
        except ValueError as error:
            detail = f"a pax header before byte {self._plain.offset:,} is malformed: {error}"
            raise refusal("tar_extension", detail) from error


@contextmanager
def _sound() -> Iterator[None]:
    """Refuse a gzip stream that is damaged or truncated, wherever it is read."""
    try:
        yield
    except (Truncated, zlib.error) as error:
        detail = f"the file ends {error}" if isinstance(error, Truncated) else str(error)
        raise refusal("not_an_sdist", f"the file is not a valid .tar.gz archive: {detail}") from error


def _pax_records(text: bytes) -> dict[str, str]:
    """Return the records of a pax header, each made of `length key=value` and a line break."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        length, space, _ = text[at : at + 8].partition(b" ")
        if not space or not length.isdigit() or length.startswith(b"0"):
            raise ValueError("a record does not start with its length")
        end = at + int(length)
        line = text[at + len(length) + 1 : end]
        if end > len(text) or not line.endswith(b"\n"):
            raise ValueError("a record does not have the length that it gives")
        key, equals, value = line[:-1].partition(b"=")
        if not equals or not key:
            raise ValueError("a record does not have the form `key=value`")
        name = key.decode()
        if name in pairs:
            raise ValueError(f"`{clip(name)}` occurs twice")
        pairs[name] = "" if name.startswith(_HARMLESS_PAX_PREFIXES) else value.decode()
        at = end
    return pairs


def _apply(info: tarfile.TarInfo, pax: dict[str, str], long_name: str | None) -> None:
    """Give a member the name in its extended header; refuse anything else that would change the member."""
    for key, value in pax.items():
        if key.startswith("GNU.sparse."):
            raise refusal("sparse_member", f"the member `{clip(info.name)}` is sparse")
        if key not in _HARMLESS_PAX and not key.startswith(_HARMLESS_PAX_PREFIXES):
            raise refusal("tar_extension", f"the pax header of `{clip(info.name)}` sets `{clip(key)}`")
        if key in _NUMBERS and not _NUMBERS[key].fullmatch(value):
            raise refusal(
                "tar_extension", f"in the pax header of `{clip(info.name)}`, `{key}` is not a number"
            )
        if key == "size" and value != str(info.size):
            detail = f"`{clip(info.name)}` has {info.size} bytes, but its pax header says `{clip(value)}`"
            raise refusal("tar_extension", detail)
    name = pax.get("path", long_name)
    if name is not None:
        if "\0" in name:
            raise refusal("unsafe_path", f"the path of the member `{clip(name)}` contains a NUL")
        info.name = name
