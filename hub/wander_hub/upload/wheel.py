"""Checks on a wheel: one pass that reads every member once, so CRC and RECORD hashes are verified too.

pip and uv verify neither path collisions nor RECORD hashes; an index is the only place that can.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import zipfile
import zlib
from typing import BinaryIO

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from wander_hub.storage import CHUNK
from wander_hub.upload.members import MODULE_BYTES, MemberNames, defines_loader, entry_point
from wander_hub.upload.schemas import Contents, FileName, Limits, refused

_UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_ALGORITHMS = {"sha256", "sha384", "sha512"}
_METADATA_BYTES = 8 * 1024 * 1024


def read(body: BinaryIO, filename: FileName, limits: Limits) -> Contents:
    """Check the archive and return what it holds."""
    body.seek(0)
    try:
        with zipfile.ZipFile(body) as archive:
            check_members(archive, limits)
            folder = check_dist_info(archive, filename)
            check_record(archive, folder)
            return _contents(archive, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        hint = "build it again with `python -m build --wheel` or `wander publish`"
        raise refused("not_a_wheel", f"the file is no sound zip archive: {error}", hint=hint) from error


def check_members(archive: zipfile.ZipFile, limits: Limits) -> None:
    """Count, sizes, paths, kinds: judged from the directory alone, before anything is unpacked."""
    members = archive.infolist()
    if len(members) > limits.members:
        raise refused("too_many_members", f"the archive has {len(members):,} members")
    unpacked = sum(member.file_size for member in members)
    if unpacked > limits.unpacked_bytes:
        raise refused("too_large_unpacked", f"the members add up to {unpacked:,} bytes", status=413)
    seen = MemberNames()
    for member in members:
        seen.add(member.orig_filename)
        if member.flag_bits & 0x1:
            raise refused("encrypted_member", f"the member `{member.filename}` is encrypted")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise refused("symlink_member", f"the member `{member.filename}` is a symbolic link")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise refused("bad_compression", f"the member `{member.filename}` is not stored or deflated")


def check_dist_info(archive: zipfile.ZipFile, filename: FileName) -> str:
    """Exactly one `.dist-info`, that of the file's own name and version, with its three files."""
    folders = {name.split("/")[0] for name in archive.namelist() if name.split("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise refused("bad_dist_info", f"a wheel has exactly one .dist-info folder, this has {len(folders)}")
    folder = folders.pop()
    if _identity(folder) != (filename.name, filename.version):
        raise refused("bad_dist_info", f"the folder `{folder}` is not that of `{filename.stem}`")
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if f"{folder}/{needed}" not in archive.NameToInfo:
            raise refused("missing_metadata", f"the wheel has no `{folder}/{needed}`")
    return folder


def check_record(archive: zipfile.ZipFile, folder: str) -> None:
    """RECORD names exactly the members, with the digests they really have."""
    recorded = _record_rows(_small(archive, f"{folder}/RECORD"))
    exempt = {f"{folder}/{name}" for name in _UNRECORDED}
    members = {one.filename for one in archive.infolist() if not one.is_dir()}
    if unrecorded := sorted(members - set(recorded) - exempt):
        raise refused("record_mismatch", f"RECORD does not name `{unrecorded[0]}`")
    if absent := sorted(set(recorded) - members):
        raise refused("record_mismatch", f"RECORD names `{absent[0]}`, which is not there")
    for path in sorted(members):
        if path in exempt:
            archive_member_digest(archive, path, "sha256")
            continue
        algorithm, _, expected = recorded[path].partition("=")
        if algorithm not in _ALGORITHMS:
            raise refused("record_mismatch", f"RECORD has no sha256 or better for `{path}`")
        if archive_member_digest(archive, path, algorithm) != expected:
            raise refused("record_mismatch", f"the digest that RECORD gives for `{path}` is wrong")


def archive_member_digest(archive: zipfile.ZipFile, path: str, algorithm: str) -> str:
    """Read a member to its end, which also checks its CRC, and return its digest as RECORD writes it."""
    digest = hashlib.new(algorithm)
    with archive.open(path) as member:
        while chunk := member.read(CHUNK):
            digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _contents(archive: zipfile.ZipFile, folder: str) -> Contents:
    target = None
    if f"{folder}/entry_points.txt" in archive.NameToInfo:
        text = _small(archive, f"{folder}/entry_points.txt")
        target = entry_point(text.decode("utf-8", "replace"))
    modules = (one for one in archive.infolist() if _top_level_module(one.filename))
    loader = any(defines_loader(archive.read(one)) for one in modules if one.file_size <= MODULE_BYTES)
    return Contents(_small(archive, f"{folder}/METADATA"), target, loader)


def _top_level_module(path: str) -> bool:
    parts = path.split("/")
    return (len(parts) == 1 and path.endswith(".py")) or (len(parts) == 2 and parts[1] == "__init__.py")


def _identity(folder: str) -> tuple[str, str] | None:
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    try:
        return canonicalize_name(name), str(Version(version))
    except InvalidVersion:
        return None


def _record_rows(text: bytes) -> dict[str, str]:
    try:
        rows = list(csv.reader(io.StringIO(text.decode())))
    except (UnicodeDecodeError, csv.Error) as error:
        raise refused("record_mismatch", f"RECORD cannot be read: {error}") from error
    if any(row and len(row) != 3 for row in rows):
        raise refused("record_mismatch", "RECORD has a row that is not of three columns")
    return {row[0]: row[1] for row in rows if row}


def _small(archive: zipfile.ZipFile, path: str) -> bytes:
    if archive.NameToInfo[path].file_size > _METADATA_BYTES:
        raise refused("too_large_metadata", f"`{path}` is over {_METADATA_BYTES:,} bytes")
    return archive.read(path)
