"""Reads a zip archive from first byte to last, accepting only archives with a single interpretation.

Zip readers disagree: some trust the central directory at the end, others the local header in front of each
member, and a crafted file can show them different contents (CVE-2025-54368). Here both must agree, every byte
must belong to a record, and each member is unpacked and measured on the way. The rules include all that
PyPI has enforced since August 2025, and features that no build backend writes are refused: data descriptors,
comments, ZIP64 beyond the local size field, any compression except deflate.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from wander_hub.upload.archives.members import ArchiveBudget, clip
from wander_hub.upload.archives.stream import CHUNK, ByteStream, Truncated
from wander_hub.upload.findings import refusal

_LOCAL = struct.Struct("<5H3L2H")
_CENTRAL = struct.Struct("<6H3L5H2L")
_END = struct.Struct("<4H2LH")
_LOCAL_SIGNATURE, _CENTRAL_SIGNATURE, _END_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_ZIP64_SIGNATURES = (b"PK\x06\x06", b"PK\x06\x07")

STORED, DEFLATED = 0, 8
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_DESCRIPTOR = 0x0008
_UTF8 = 0x0800
_HARMLESS = 0x0006 | _UTF8
"""Flags for the effort of deflate, and for UTF-8 names."""
_ZIP64 = 0x0001
_HARMLESS_EXTRAS = {0x5455, 0x7875, 0x5855, 0x000A}
"""Extra fields for times and numeric owners, as Unix and NTFS tools write them."""
_NO_SIZE = 0xFFFFFFFF
_DOS_FOLDER = 0x10


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A member as its local header describes it."""

    name: str
    """Path without the final slash of a folder."""
    is_folder: bool
    raw_name: bytes
    needed: int
    flags: int
    method: int
    modified: tuple[int, int]
    crc: int
    packed: int
    size: int
    header_offset: int
    data_offset: int


class ZipArchive:
    """A single pass over an archive."""

    def __init__(self, stream: ByteStream, budget: ArchiveBudget) -> None:
        self._stream = stream
        self._budget = budget
        self._members: list[ZipMember] = []

    def walk(self) -> Iterator[tuple[ZipMember, Iterator[bytes]]]:
        """Yield each member with its unpacked bytes, which are read to the end even if the caller does not.

        After the last member, the rest of the file has been checked too: the directory agrees, nothing
        follows.
        """
        with _whole():
            while (signature := self._stream.exactly(4)) == _LOCAL_SIGNATURE:
                member = self._local_header()
                self._members.append(member)
                self._budget.spend(member.size, member.name)
                content = unpack(self._stream, member)
                yield member, content
                for _ in content:
                    pass
            if self._stream.offset == 4:
                raise refusal("not_a_wheel", "the file does not start like a zip archive")
            self._directory(signature)

    def _local_header(self) -> ZipMember:
        start = self._stream.offset - 4
        needed, flags, method, time, date, crc, packed, size, name_length, extra_length = _LOCAL.unpack(
            self._stream.exactly(_LOCAL.size)
        )
        raw_name = self._stream.exactly(name_length)
        name = _decode(raw_name, flags)
        _check_flags(name, flags, method)
        extras = _extras(self._stream.exactly(extra_length), name, allow_zip64=True)
        if _ZIP64 in extras:
            packed, size = _long_sizes(extras[_ZIP64], packed, size, name)
        elif _NO_SIZE in (packed, size):
            raise refusal(
                "zip64",
                f"the header of `{clip(name)}` refers to a ZIP64 field for its size, which is missing",
            )
        if method == STORED and packed != size:
            raise refusal("size_mismatch", f"the uncompressed member `{clip(name)}` has two different sizes")
        is_folder = name.endswith("/")
        if is_folder and size:
            raise refusal("special_member", f"the folder `{clip(name)}` has content")
        return ZipMember(
            *(name.removesuffix("/"), is_folder, raw_name, needed, flags, method, (time, date)),
            *(crc, packed, size, start, self._stream.offset),
        )

    def _directory(self, signature: bytes) -> None:
        """Compare the central directory with the local headers, and the end record with both."""
        start = self._stream.offset - 4
        for member in self._members:
            if signature != _CENTRAL_SIGNATURE:
                raise self._stray(signature, f"where the directory entry for `{clip(member.name)}` should be")
            self._central_header(member)
            signature = self._stream.exactly(4)
        length = self._stream.offset - 4 - start
        if signature != _END_SIGNATURE:
            raise self._stray(signature, "where the end record should be")
        disk, first_disk, here, total, size, offset, comment = _END.unpack(self._stream.exactly(_END.size))
        if comment:
            raise refusal("zip_comment", "the archive has a comment")
        stated = (disk, first_disk, here, total, size, offset)
        if stated != (0, 0, len(self._members), len(self._members), length, start):
            detail = f"the end record says {total} members and {size} bytes of directory at {offset}, "
            raise refusal(
                "zip_framing", f"{detail}but there are {len(self._members)} and {length} at {start}"
            )
        if self._stream.read(1):
            detail = f"bytes follow the end record at {self._stream.offset - 1:,}"
            raise refusal("zip_framing", detail)

    def _central_header(self, member: ZipMember) -> None:
        fields = _CENTRAL.unpack(self._stream.exactly(_CENTRAL.size))
        _made_by, needed, flags, method, time, date, crc, packed, size = fields[:9]
        name_length, extra_length, comment_length, disk, _internal, external, offset = fields[9:]
        raw_name = self._stream.exactly(name_length)
        pairs = {
            "name": (member.raw_name, raw_name),
            "flags": (member.flags, flags),
            "version": (member.needed, needed),
            "method": (member.method, method),
            "time": (member.modified, (time, date)),
            "CRC-32": (member.crc, crc),
            "packed size": (member.packed, packed),
            "size": (member.size, size),
            "offset": (member.header_offset, offset),
            "disk": (0, disk),
        }
        for what, (local, central) in pairs.items():
            if local != central:
                detail = f"`{clip(member.name)}`: {what} is {local!r} in the local header but {central!r}"
                raise refusal("zip_mismatch", f"{detail:.400} in the directory")
        _extras(self._stream.exactly(extra_length), member.name, allow_zip64=False)
        if comment_length:
            raise refusal("zip_comment", f"the member `{clip(member.name)}` has a comment")
        _check_kind(member, external)

    def _stray(self, signature: bytes, place: str) -> Exception:
        at = self._stream.offset - 4
        if signature in _ZIP64_SIGNATURES:
            return refusal("zip64", f"the archive has a ZIP64 end record at byte {at:,}")
        return refusal("zip_framing", f"there is {signature!r} at byte {at:,}, {place}")


@contextmanager
def _whole() -> Iterator[None]:
    """Refuse a truncated file, wherever it is read."""
    try:
        yield
    except Truncated as error:
        raise refusal("not_a_wheel", f"the archive ends {error}") from error


def unpack(stream: ByteStream, member: ZipMember) -> Iterator[bytes]:
    """Yield a member's bytes; raise an error if their number or checksum differs from its header."""
    crc = size = 0
    with _whole():
        for piece in _pieces(stream, member):
            size += len(piece)
            if size > member.size:
                detail = f"`{clip(member.name)}` unpacks to more than {member.size:,} bytes"
                raise refusal("size_mismatch", detail)
            crc = zlib.crc32(piece, crc)
            yield piece
    if size != member.size:
        detail = f"`{clip(member.name)}` unpacks to {size:,} bytes, but its header says {member.size:,}"
        raise refusal("size_mismatch", detail)
    if crc != member.crc:
        detail = f"`{clip(member.name)}` has the CRC-32 {crc:08x}, but its header says {member.crc:08x}"
        raise refusal("bad_checksum", detail)


def unpack_again(body: BinaryIO, member: ZipMember) -> Iterator[bytes]:
    """Yield the bytes of a member a second time."""
    return unpack(ByteStream(body, start=member.data_offset), member)


def _pieces(stream: ByteStream, member: ZipMember) -> Iterator[bytes]:
    if member.method == STORED:
        yield from stream.chunks(member.packed)
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for chunk in stream.chunks(member.packed):
            if inflater.eof:
                raise zlib.error("its stream ends early")
            packed = chunk
            while packed and not inflater.eof:
                yield inflater.decompress(packed, CHUNK)
                packed = inflater.unconsumed_tail
        while not inflater.eof and (piece := inflater.decompress(b"", CHUNK)):
            yield piece
    except zlib.error as error:
        raise refusal("corrupt_member", f"`{clip(member.name)}` cannot be unpacked: {error}") from error
    if not inflater.eof or inflater.unused_data:
        fault = "is truncated" if not inflater.eof else "is followed by other bytes"
        raise refusal("corrupt_member", f"the compressed stream of `{clip(member.name)}` {fault}")


def _decode(raw_name: bytes, flags: int) -> str:
    try:
        return raw_name.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError as error:
        detail = f"the name {raw_name[:100]!r} is neither ASCII nor valid UTF-8 with the UTF-8 flag"
        raise refusal("bad_name_encoding", detail) from error


def _check_flags(name: str, flags: int, method: int) -> None:
    if flags & _ENCRYPTED:
        raise refusal("encrypted_member", f"the member `{clip(name)}` is encrypted")
    if flags & _DESCRIPTOR:
        raise refusal(
            "data_descriptor", f"the size of `{clip(name)}` follows its data instead of preceding it"
        )
    if flags & ~_HARMLESS:
        raise refusal("bad_flags", f"the member `{clip(name)}` has the flags {flags:#06x}")
    if method not in (STORED, DEFLATED):
        raise refusal("bad_compression", f"the member `{clip(name)}` has the compression method {method}")


def _extras(blob: bytes, name: str, *, allow_zip64: bool) -> dict[int, bytes]:
    """Return the extra fields by number."""
    fields: dict[int, bytes] = {}
    at = 0
    while at < len(blob):
        if len(blob) - at < 4:
            raise refusal("zip_extra_field", f"the last extra field of `{clip(name)}` is truncated")
        number, length = struct.unpack_from("<2H", blob, at)
        field = blob[at + 4 : at + 4 + length]
        at += 4 + length
        if len(field) != length or number in fields:
            fault = "occurs twice" if number in fields else "is truncated"
            raise refusal("zip_extra_field", f"the extra field {number:#06x} of `{clip(name)}` {fault}")
        if number == _ZIP64 and not allow_zip64:
            raise refusal("zip64", f"the directory entry for `{clip(name)}` has a ZIP64 field")
        if number not in _HARMLESS_EXTRAS | {_ZIP64}:
            raise refusal("zip_extra_field", f"the member `{clip(name)}` has the extra field {number:#06x}")
        fields[number] = field
    return fields


def _long_sizes(field: bytes, packed: int, size: int, name: str) -> tuple[int, int]:
    """Return the sizes in a local ZIP64 field, as written by tools that did not know the size beforehand.

    Some tools also write the sizes into the header itself; both must agree.
    """
    if len(field) != 16:
        raise refusal("zip64", f"the ZIP64 field of `{clip(name)}` does not contain exactly two sizes")
    long_size, long_packed = struct.unpack("<2Q", field)
    if max(long_size, long_packed) >= _NO_SIZE:
        raise refusal("zip64", f"the ZIP64 field of `{clip(name)}` gives a size of 4 GiB or more")
    if packed not in (_NO_SIZE, long_packed) or size not in (_NO_SIZE, long_size):
        raise refusal("zip64", f"the ZIP64 field of `{clip(name)}` contradicts its header")
    return long_packed, long_size


def _check_kind(member: ZipMember, external: int) -> None:
    """Require that a member is a plain file, or a folder if its name ends with a slash."""
    mode = external >> 16
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFLNK:
        raise refusal("link_member", f"the member `{clip(member.name)}` is a symbolic link")
    sets_user = kind != stat.S_IFDIR and mode & (stat.S_ISUID | stat.S_ISGID)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or sets_user:
        raise refusal("special_member", f"the member `{clip(member.name)}` has the mode {mode:o}")
    says_folder = kind == stat.S_IFDIR or bool(external & _DOS_FOLDER)
    if says_folder != member.is_folder and (says_folder or kind == stat.S_IFREG):
        raise refusal(
            "file_and_folder",
            f"the mode and the name of `{clip(member.name)}` disagree whether it is a folder",
        )
