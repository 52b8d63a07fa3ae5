"""Checks of archive members that wheels and source archives share: paths, names, sizes, types."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator

from wander.wire.fields import fold, is_device

from wander_hub.upload.archives import limits
from wander_hub.upload.findings import Findings, printable, refusal

_MAX_DEPTH = 64
_PART_BYTES = 255
"""Longest name that common file systems allow."""
_SHOWN = 200
_NOT_ON_WINDOWS = frozenset('\\:*?"<>|')
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control, format (such as bidirectional overrides), surrogate and line separators."""
_SMALL_BYTES = 256 * 1024
"""Limit for WHEEL, entry_points.txt and pyproject.toml: the slowest of their parsers reads this in a
second."""
_STARTUP = re.compile(r"\.(pth|start)$", re.IGNORECASE)
_CODE = (".py", ".pyw", ".pth", ".start")
_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
_ZIP_FORMATS = (".npz", ".docx", ".xlsx", ".pptx", ".ods", ".odt", ".keras", ".pt", ".pth")
"""Data formats that are zip archives inside."""
_ARCHIVE_STARTS = (b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")
_ARCHIVE_NAMES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".egg", ".whl")


def check_path(path: str) -> None:
    """Require a path that stays inside the archive and means the same file on every system."""
    most = limits.MAX_PATH_CHARS
    if len(path) > most:
        raise refusal("path_too_long", f"the path `{clip(path)}` is longer than {most:,} characters")
    parts = path.split("/")
    if len(parts) > _MAX_DEPTH:
        raise refusal("path_too_long", f"the path `{clip(path)}` is more than {_MAX_DEPTH} folders deep")
    fault = _fault(path, parts)
    if fault is not None:
        raise refusal("unsafe_path", f"the member `{clip(path)}` {fault}")
    if any(len(part.encode()) > _PART_BYTES for part in parts):
        raise refusal("path_too_long", f"a part of `{clip(path)}` is longer than {_PART_BYTES} bytes")


def _fault(path: str, parts: list[str]) -> str | None:
    if not path:
        return "has no name"
    if path.startswith("/"):
        return "has an absolute path"
    if not _PLAIN.fullmatch(path):
        for character in path:
            if unicodedata.category(character) in _UNPRINTABLE:
                return f"has the character U+{ord(character):04X} in its path"
            if character in _NOT_ON_WINDOWS:
                return f"has the character `{character}` in its path"
    for part in parts:
        if part in ("", ".", ".."):
            return f"has the part `{part}` in its path"
        if part[-1] in " .":
            return "has a path part that ends with a dot or a space, which Windows drops"
        if is_device(part):
            return f"has the path part `{part}`, which Windows treats as a device"
    return None


def clip(path: str) -> str:
    """Return a path fit for an error message: printable and short."""
    return printable(path[:_SHOWN])


class MemberNames:
    """Remembers the paths seen; refuses a path that some file system would confuse with an earlier path."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._listed: set[str] = set()
        """Folders with their own entry in the archive."""
        self._count = 0

    def add(self, path: str, *, is_folder: bool = False, installed: str | None = None) -> None:
        """Check the next member; `installed` is the path where it is installed if that differs."""
        self._count += 1
        if self._count > limits.MAX_MEMBERS:
            raise refusal("too_many_members", f"the archive has more than {limits.MAX_MEMBERS:,} members")
        check_path(path)
        place = installed or path
        key = fold(place)
        if is_folder:
            self._add_folder(key, place, path)
            return
        if key in self._files:
            earlier = self._files[key]
            code = "duplicate_member" if earlier == path else "colliding_members"
            raise refusal(code, f"the members `{clip(earlier)}` and `{clip(path)}` are the same file")
        if key in self._folders:
            raise refusal("file_and_folder", f"`{clip(path)}` is both a file and a folder")
        self._files[key] = path
        self._add_parents(place, path)

    def _add_folder(self, key: str, place: str, path: str) -> None:
        if key in self._files:
            raise refusal("file_and_folder", f"`{clip(path)}` is both a file and a folder")
        if key in self._listed:
            raise refusal("duplicate_member", f"the archive lists the folder `{clip(path)}` twice")
        if self._folders.setdefault(key, place) != place:
            raise refusal("colliding_members", f"the folder `{clip(path)}` is spelled in two ways")
        self._listed.add(key)
        self._add_parents(place, path)

    def _add_parents(self, place: str, path: str) -> None:
        """Record every parent folder up to the first known one, so that the total cost is linear."""
        while "/" in place:
            place = place.rpartition("/")[0]
            key = fold(place)
            if key in self._files:
                raise refusal("file_and_folder", f"`{clip(self._files[key])}` is both a file and a folder")
            earlier = self._folders.get(key)
            if earlier == place:
                return
            if earlier is not None:
                detail = f"`{clip(path)}` spells the folder `{clip(earlier)}` differently"
                raise refusal("colliding_members", detail)
            self._folders[key] = place
            if len(self._folders) > limits.MAX_MEMBERS:
                raise refusal("too_many_members", f"the archive has more than {limits.MAX_MEMBERS:,} folders")


class ArchiveBudget:
    """Limit on the unpacked size of an archive: a fixed maximum, and a multiple of the archive's own size."""

    def __init__(self, max_unpacked_bytes: int, file_bytes: int) -> None:
        self._max_unpacked_bytes = max_unpacked_bytes
        self._most = max(limits.COMPRESSION_RATIO_FROM_BYTES, limits.MAX_COMPRESSION_RATIO * file_bytes)
        self._file_bytes = file_bytes
        self._spent = 0

    def spend(self, size: int, where: str) -> None:
        """Count bytes that a member announces or a stream yields, before they are unpacked or kept."""
        self._spent += size
        if self._spent > self._max_unpacked_bytes:
            detail = f"at `{clip(where)}` the members add up to more than {self._max_unpacked_bytes:,} bytes"
            raise refusal("too_large_unpacked", detail)
        if self._spent > self._most:
            detail = (
                f"at `{clip(where)}` the file's {self._file_bytes:,} bytes have unpacked to {self._spent:,}, "
                f"more than {limits.MAX_COMPRESSION_RATIO} times as many"
            )
            raise refusal("compression_bomb", detail)


def check_metadata_size(path: str, size: int) -> None:
    """Require that a metadata file, which is read into memory, is not too large."""
    large = path.endswith(("METADATA", "RECORD", "PKG-INFO"))
    most = limits.MAX_METADATA_BYTES if large else min(limits.MAX_METADATA_BYTES, _SMALL_BYTES)
    if size > most:
        raise refusal("too_large_metadata", f"`{clip(path)}` is larger than {most:,} bytes")


def is_code(path: str) -> bool:
    """Return whether Python runs a file: a module, or a file that Python reads when it starts."""
    return path.lower().endswith(_CODE)


def note_startup(path: str, findings: Findings) -> None:
    """Report a file that would run when Python starts; `path` is relative to site-packages."""
    if "/" not in path and _STARTUP.search(path):
        findings.apply("startup_file", f"`{clip(path)}` runs when Python starts")
    name = path.split("/")[0].split(".")[0]
    if name in ("sitecustomize", "usercustomize"):
        findings.apply("site_customization", f"`{clip(path)}` runs when Python starts")


def read_member(
    path: str, content: Iterator[bytes], findings: Findings, *, keep: bool
) -> tuple[bytes, bytes]:
    """Read a member to its end; return its SHA-256, and its bytes if `keep` is set.

    Reports content that reviewers cannot read: bytecode and archives inside the archive.
    """
    kept: list[bytes] = []
    digest, start = hashlib.sha256(), b""
    for piece in content:
        start = start or piece[:512]
        digest.update(piece)
        if keep:
            kept.append(piece)
    lowered = path.lower()
    if lowered.endswith((".pyc", ".pyo")):
        findings.apply("bytecode", f"`{clip(path)}` is compiled")
    packed = start.startswith(_ARCHIVE_STARTS) and not lowered.endswith(_ZIP_FORMATS)
    if packed or start[257:262] == b"ustar" or lowered.endswith(_ARCHIVE_NAMES):
        findings.apply("nested_archive", f"`{clip(path)}` is an archive")
    return digest.digest(), b"".join(kept)
