"""Writes zip and tar archives field by field, so that every field can be wrong."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

STEM = "good_env-1.0"
INFO = f"{STEM}.dist-info"
DATA = f"{STEM}.data"
WHEEL_NAME = f"{STEM}-py3-none-any.whl"
SDIST_NAME = f"{STEM}.tar.gz"
MODULE = b"def load_environment(**arguments):\n    return arguments\n"
WHEEL_FILE = b"Wheel-Version: 1.0\nGenerator: forge\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY_POINTS = b"[wander.environments]\ngood-env = good_env:load_environment\n"
PROJECT = (
    b'[build-system]\nrequires = []\n[project.entry-points."wander.environments"]\ngood-env = "good_env"\n'
)


def metadata(*lines: str, version: str = "2.4", body: str = "Good.\n") -> bytes:
    """Return core metadata with further header lines."""
    head = [f"Metadata-Version: {version}", "Name: good-env", "Version: 1.0", "Summary: Good.", *lines]
    return ("\n".join(head) + "\n\n" + body).encode()


@dataclass
class Entry:
    """One zip member, as described by its two headers."""

    name: str | bytes
    body: bytes = b""
    method: int = 8
    packed: bytes | None = None
    mode: int = 0o100644
    extra: bytes = b""
    central_extra: bytes = b""
    comment: bytes = b""
    before: bytes = b""
    """Stray bytes in front of the local header."""
    local: dict[str, Any] = field(default_factory=dict)
    """Fields of the local header that differ from the truth, and of the central one unless said there."""
    central: dict[str, Any] = field(default_factory=dict)

    @property
    def raw_name(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()


def deflated(body: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(body) + packer.flush()


def zip_of(
    entries: Sequence[Entry],
    *,
    prefix: bytes = b"",
    before_directory: bytes = b"",
    before_end: bytes = b"",
    suffix: bytes = b"",
    comment: bytes = b"",
    end: dict[str, int] | None = None,
    central_order: Callable[[list[bytes]], list[bytes]] | None = None,
) -> bytes:
    """Return a zip archive, valid unless options change it."""
    out, directory = bytearray(prefix), []
    for entry in entries:
        out += entry.before
        packed = entry.packed
        if packed is None:
            packed = deflated(entry.body) if entry.method == 8 else entry.body
        name = entry.raw_name
        truth: dict[str, Any] = {
            "needed": 20,
            "flags": 0 if name.isascii() else 0x800,
            "method": entry.method,
            "time": 0,
            "date": 0x5042,
            "crc": zlib.crc32(entry.body),
            "packed": len(packed),
            "size": len(entry.body),
            "name": name,
        }
        local = truth | entry.local
        central = local | {"disk": 0, "external": entry.mode << 16, "offset": len(out)} | entry.central
        keys = ("needed", "flags", "method", "time", "date", "crc", "packed", "size")
        out += b"PK\x03\x04" + struct.pack(
            "<5H3L2H", *(local[key] for key in keys), len(local["name"]), len(entry.extra)
        )
        out += local["name"] + entry.extra + packed
        directory.append(
            b"PK\x01\x02"
            + struct.pack("<6H3L", 0x0314, *(central[key] for key in keys))
            + struct.pack("<3H", len(central["name"]), len(entry.central_extra), len(entry.comment))
            + struct.pack("<2H2L", central["disk"], 0, central["external"], central["offset"])
            + central["name"]
            + entry.central_extra
            + entry.comment
        )
    out += before_directory
    start = len(out)
    out += b"".join(central_order(directory) if central_order else directory)
    length = len(out) - start
    out += before_end
    said = {"disk": 0, "first": 0, "here": len(entries), "total": len(entries), "size": length}
    said |= {"offset": start} | (end or {})
    out += b"PK\x05\x06" + struct.pack(
        "<4H2LH",
        *(said[key] for key in ("disk", "first", "here", "total", "size", "offset")),
        len(comment),
    )
    return bytes(out + comment + suffix)


def digest(body: bytes, algorithm: str = "sha256") -> str:
    """Return a digest in the format of RECORD, with its algorithm."""
    text = base64.urlsafe_b64encode(hashlib.new(algorithm, body).digest()).rstrip(b"=").decode()
    return f"{algorithm}={text}"


def entries_of(
    files: dict[str, bytes] | None = None,
    *,
    info: dict[str, bytes] | None = None,
    without: Sequence[str] = (),
    record: Callable[[list[str]], list[str]] | bytes | None = None,
) -> list[Entry]:
    """Return the members of a wheel: with `files`, with `info` in its dist-info, and edited RECORD rows."""
    members = {"good_env.py": MODULE, **(files or {})}
    inside = {"METADATA": metadata(), "WHEEL": WHEEL_FILE, "entry_points.txt": ENTRY_POINTS, **(info or {})}
    members |= {f"{INFO}/{name}": body for name, body in inside.items()}
    members = {name: body for name, body in members.items() if name.removeprefix(f"{INFO}/") not in without}
    rows = [f"{name},{digest(body)},{len(body)}" for name, body in members.items() if not name.endswith("/")]
    rows.append(f"{INFO}/RECORD,,")
    if "RECORD" not in without:
        text = record if isinstance(record, bytes) else "\n".join(record(rows) if record else rows).encode()
        members[f"{INFO}/RECORD"] = text + b"\n"
    return [Entry(name, body) for name, body in members.items()]


def wheel_of(
    files: dict[str, bytes] | None = None,
    *,
    edit: Callable[[list[Entry]], list[Entry] | None] | None = None,
    info: dict[str, bytes] | None = None,
    without: Sequence[str] = (),
    record: Callable[[list[str]], list[str]] | bytes | None = None,
    **options: Any,
) -> bytes:
    """Return a wheel, valid unless options change it; `edit` changes the members after RECORD is written."""
    entries = entries_of(files, info=info, without=without, record=record)
    if edit is not None:
        entries = edit(entries) or entries
    return zip_of(entries, **options)


@dataclass
class TarEntry:
    """One tar member, or raw bytes in its place."""

    name: str
    body: bytes = b""
    type: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    size: int | None = None
    """What the header says, if not the truth."""
    header: Callable[[bytearray], None] | None = None
    """Changes the header before its checksum is made."""
    checksum: bool = True

    def blocks(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.type, info.linkname, info.mode = self.type, self.link, self.mode
        info.size = len(self.body) if self.size is None else self.size
        block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[-512:])
        if self.header is not None:
            self.header(block)
        block[148:156] = b" " * 8
        total = sum(block) if self.checksum else 7
        block[148:156] = f"{total:06o}\0 ".encode()
        return bytes(block) + self.body + b"\0" * (-len(self.body) % 512)


def pax(*records: tuple[str, str], kind: bytes = tarfile.XHDTYPE) -> TarEntry:
    """Return a pax header with these records."""
    text = b""
    for key, value in records:
        line = f" {key}={value}\n".encode()
        length = len(line) + 1
        while len(str(length)) + len(line) != length:
            length += 1
        text += str(length).encode() + line
    return TarEntry("pax", text, kind)


def tar_of(entries: Sequence[TarEntry | bytes], *, end: bytes = b"\0" * 1024) -> bytes:
    return b"".join(one if isinstance(one, bytes) else one.blocks() for one in entries) + end


def sdist_of(
    *extra: TarEntry | bytes,
    files: dict[str, bytes] | None = None,
    end: bytes = b"\0" * 1024,
    before: Sequence[TarEntry | bytes] = (),
) -> bytes:
    """Return a source archive, valid unless options change it."""
    members = {"PKG-INFO": metadata(), "pyproject.toml": PROJECT} if files is None else files
    inside = [TarEntry(f"{STEM}/{name}", body) for name, body in members.items()]
    return packed(tar_of([*before, *inside, *extra], end=end))


def packed(tar: bytes) -> bytes:
    """Return a reproducible gzip stream."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(tar)
    return buffer.getvalue()
