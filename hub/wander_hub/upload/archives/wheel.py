"""Checks of a wheel: one pass over its bytes that unpacks, hashes and measures every member.

pip and uv check neither path collisions nor the digests in RECORD; only an index can check them.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from typing import BinaryIO

from packaging.tags import InvalidTag, TooManyTagsError, parse_tag
from wander.wire.transfers import DATA_FOLDERS

from wander_hub import names
from wander_hub.settings import Settings
from wander_hub.upload.archives import entry_points
from wander_hub.upload.archives.entry_points import LoaderSearch
from wander_hub.upload.archives.headers import parse
from wander_hub.upload.archives.members import (
    ArchiveBudget,
    MemberNames,
    check_metadata_size,
    clip,
    is_code,
    note_startup,
    read_member,
)
from wander_hub.upload.archives.stream import ByteStream
from wander_hub.upload.archives.zip_archive import ZipArchive, ZipMember, unpack_again
from wander_hub.upload.findings import Findings, refusal
from wander_hub.upload.schemas import Contents, FileName

_NEEDED = ("METADATA", "WHEEL", "RECORD")
_READ = (*_NEEDED, "entry_points.txt")
_LIBRARIES = ("purelib", "platlib")
_SCHEMES = (*_LIBRARIES, "scripts", "data", "headers")
_INFO_FOLDERS = (".dist-info", ".egg-info")
_IMPORTABLE = (".py", ".pyc", ".so", ".pyd")
_EXEMPT = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""Files that need no digest in RECORD."""
_STRONGER = ("sha384", "sha512")
_MAX_TAGS = 500
"""A compressed tag set expands to a product; real wheels have a few dozen tags at most."""
_VERSION = re.compile(r"1\.\d{1,3}")


@dataclass
class _Pass:
    """The state of a pass over an archive's members."""

    filename: FileName
    findings: Findings
    names: MemberNames
    loaders: LoaderSearch = field(default_factory=LoaderSearch)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    """SHA-256 in RECORD notation, and size."""
    code: list[tuple[str, bytes]] = field(default_factory=list)
    members: dict[str, ZipMember] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    """Contents of the metadata files, by name."""
    modules: set[str] = field(default_factory=set)
    scripts: list[str] = field(default_factory=list)
    folder: str = ""
    """The `.dist-info` folder."""
    data: str = ""
    """The `.data` folder."""


def read(
    stream: ByteStream, body: BinaryIO, filename: FileName, settings: Settings, size: int, findings: Findings
) -> Contents:
    """Check the archive and return its contents; `body` is for reading a member a second time."""
    state = _Pass(filename, findings, MemberNames())
    for member, content in ZipArchive(stream, ArchiveBudget(settings.max_unpacked_bytes, size)).walk():
        _take(state, member, content)
    _check_folders(state)
    _check_record(state, body)
    _check_wheel_file(state.texts["WHEEL"], filename)
    target = None
    entry_points.check_scripts(state.scripts)
    if "entry_points.txt" in state.texts:
        target = entry_points.read(state.texts["entry_points.txt"], state.scripts)
    licenses = f"{state.folder}/licenses/"
    return Contents(
        metadata=state.texts["METADATA"],
        entry_point=target,
        has_loader=state.loaders.found,
        license_files=frozenset(
            path.removeprefix(licenses) for path in state.files if path.startswith(licenses)
        ),
        modules=frozenset(state.modules),
        code=tuple(state.code),
    )


def _take(state: _Pass, member: ZipMember, content: Iterator[bytes]) -> None:
    """Record a member: its installed path, its digest, and its bytes if they are needed."""
    path = member.name
    installed = _place_of(state, member)
    state.names.add(path, is_folder=member.is_folder, installed=installed)
    if member.is_folder:
        return
    name = path.rpartition("/")[2]
    is_metadata = path.count("/") == 1 and path.startswith(f"{state.folder}/") and name in _READ
    if is_metadata:
        check_metadata_size(path, member.size)
    is_loader = state.loaders.wants(path, member.size)
    sha256, text = read_member(path, content, state.findings, keep=is_metadata or is_loader)
    state.files[path] = (spell(sha256), member.size)
    if is_code(path):
        below = path.split("/", 2)[-1] if path.startswith(f"{state.data}/") else path
        state.code.append((below, sha256))
    state.members[path] = member
    if is_metadata:
        state.texts[name] = text
    elif is_loader:
        state.loaders.look(text)


def _place_of(state: _Pass, member: ZipMember) -> str | None:
    """Return where a member is installed, if not under its own path; check and report what that path
    means."""
    top, slash, rest = member.name.partition("/")
    lowered = top.lower()
    if lowered.endswith(_INFO_FOLDERS):
        _check_dist_info(state, top, is_folder=bool(slash) or member.is_folder)
        return None
    if lowered.endswith(".data"):
        return _place_of_data(state, member, top, rest)
    if not member.is_folder:
        _note_library(state, member.name)
    return None


def _place_of_data(state: _Pass, member: ZipMember, folder: str, rest: str) -> str | None:
    state.data = state.data or folder
    scheme, _, path = rest.partition("/")
    plain = member.is_folder and not path
    if folder != state.data or (scheme not in _SCHEMES and not (plain and not scheme)) or not (path or plain):
        detail = f"`{clip(member.name)}` is not in {', '.join(_SCHEMES)} of a single `.data` folder"
        raise refusal("bad_data_folder", detail)
    if plain:
        return None
    # The path is checked as the place where the file will be installed.
    parts = path.lower().split("/")
    if scheme != "scripts" and parts[0].endswith(_INFO_FOLDERS):
        detail = f"`{clip(member.name)}` would pose as another distribution's metadata"
        raise refusal("bad_dist_info", detail)
    top, below, _ = path.partition("/")
    if scheme == "data" and not (top in DATA_FOLDERS and (below or member.is_folder)):
        where = f"in a virtual environment it is not installed into {', '.join(DATA_FOLDERS)}"
        raise refusal(
            "bad_data_folder", f"`{clip(member.name)}` could replace files that Python needs: {where}"
        )
    if scheme in _LIBRARIES:
        if not member.is_folder:
            _note_library(state, path)
        return path
    if not member.is_folder:
        note_startup(path.rpartition("/")[2], state.findings)
        if scheme == "scripts":
            state.scripts.append(path)
        code = "data_scripts" if scheme == "scripts" else "data_files"
        state.findings.apply(code, f"`{clip(member.name)}` is installed outside the packages")
    return path if scheme == "data" else None  # `pip install --target` merges the schemes into one folder


def _note_library(state: _Pass, path: str) -> None:
    """Report the effects of a file installed into site-packages."""
    note_startup(path, state.findings)
    if path.endswith(_IMPORTABLE):
        state.modules.add(path.split("/")[0].split(".")[0])


def _check_dist_info(state: _Pass, folder: str, *, is_folder: bool) -> None:
    """Require a single `.dist-info` folder, named after the file's own name and version."""
    if not is_folder or not folder.endswith(".dist-info"):
        raise refusal("bad_dist_info", f"`{clip(folder)}` is not a correctly named `.dist-info` folder")
    if state.folder and folder != state.folder:
        detail = (
            f"the wheel has both `{clip(state.folder)}` and `{clip(folder)}`; only one such folder is allowed"
        )
        raise refusal("bad_dist_info", detail)
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    identity = None
    with suppress(ValueError):  # the comparison below refuses it
        identity = names.normalize_environment(name), names.normalize_version(version)
    if identity != (state.filename.name, state.filename.version):
        detail = f"the folder `{clip(folder)}` does not belong to `{state.filename.stem}`"
        raise refusal("bad_dist_info", detail)
    state.folder = folder


def _check_folders(state: _Pass) -> None:
    """Check the folders once all members are known."""
    if not state.folder:
        raise refusal("bad_dist_info", "the wheel does not contain a `.dist-info` folder")
    for needed in _NEEDED:
        if needed not in state.texts:
            raise refusal("missing_metadata", f"the wheel does not contain `{state.folder}/{needed}`")
    stem = state.folder.removesuffix(".dist-info")
    if state.data and state.data != f"{stem}.data":
        raise refusal("bad_data_folder", f"the folder `{clip(state.data)}` should be `{stem}.data`")


def _check_record(state: _Pass, body: BinaryIO) -> None:
    """Require that RECORD lists exactly the files of the wheel, each with its digest and size."""
    rows = _read_record(state)
    exempt = {f"{state.folder}/{name}" for name in _EXEMPT}
    for path, (digest, size) in state.files.items():
        stated, stated_size, line = rows.get(path, ("", "", 0))
        if not stated and path in exempt:
            continue
        if not line:
            raise refusal("record_missing", f"RECORD does not list `{clip(path)}`")
        algorithm, _, expected = stated.partition("=")
        where = f"line {line} of RECORD"
        if algorithm in _STRONGER:  # rare, so the member is read a second time
            longer = hashlib.new(algorithm)
            for piece in unpack_again(body, state.members[path]):
                longer.update(piece)
            digest = spell(longer.digest())
        elif algorithm != "sha256":
            detail = f"{where} gives `{clip(algorithm) or 'no digest'}` for `{clip(path)}`"
            raise refusal("record_weak_digest", detail)
        if expected != digest:
            gives = f"{where} gives {algorithm} `{clip(expected)}`"
            raise refusal("record_digest", f"{gives} for `{clip(path)}`, which has `{digest}`")
        if stated_size != str(size):
            detail = f"{where} gives `{clip(stated_size)}` bytes for `{clip(path)}`, which has {size}"
            raise refusal("record_size", detail)


def spell(digest: bytes) -> str:
    """Return a digest in RECORD notation: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _read_record(state: _Pass) -> dict[str, tuple[str, str, int]]:
    """Return the entries of RECORD by file: digest, size and line number."""
    rows: dict[str, tuple[str, str, int]] = {}
    try:
        reader = csv.reader(io.StringIO(state.texts["RECORD"].decode(), newline=""), strict=True)
        for row in reader:
            line = f"line {reader.line_num} of RECORD"
            if len(row) != 3:
                raise refusal("bad_record", f"{line} has {len(row)} columns instead of 3")
            path, digest, size = row
            if path in rows:
                raise refusal("bad_record", f"{line} lists `{clip(path)}` a second time")
            if path not in state.files:
                raise refusal("record_extra", f"{line} lists `{clip(path)}`, which is not in the wheel")
            rows[path] = (digest, size, reader.line_num)
    except (UnicodeDecodeError, csv.Error) as error:
        raise refusal("bad_record", f"RECORD cannot be read: {error!s:.300}") from error
    return rows


def expand_tag(tag: str) -> frozenset[str]:
    """Return the single tags of a compressed tag set; raises `ValueError` for an invalid set."""
    try:
        return frozenset(str(single) for single in parse_tag(tag, limit=_MAX_TAGS))
    except (InvalidTag, TooManyTagsError) as error:
        raise ValueError(str(error)) from error


def _check_wheel_file(text: bytes, filename: FileName) -> None:
    """Require that WHEEL is complete and agrees with the file name."""
    fields = parse(text, "WHEEL", "bad_wheel_file")
    version = _single_field(fields, "Wheel-Version")
    if not _VERSION.fullmatch(version):
        raise refusal("bad_wheel_file", f"WHEEL has the Wheel-Version `{version[:50]}`, expected 1.0")
    purelib = _single_field(fields, "Root-Is-Purelib")
    if purelib.lower() not in ("true", "false"):
        raise refusal("bad_wheel_file", f"WHEEL has Root-Is-Purelib `{purelib[:50]}`, neither true nor false")
    build = _single_field(fields, "Build") if "Build" in fields else ""
    if build != filename.build:
        stated = f"`{build[:50]}`" if build else "no build number"
        named = f"`{filename.build}`" if filename.build else "no build number"
        raise refusal(
            "tag_mismatch", f"the build numbers differ: {stated} in WHEEL, {named} in the file name"
        )
    tags: set[str] = set()
    for value in fields.get_all("Tag", []):
        try:
            tags |= expand_tag(str(value).strip())
        except ValueError as error:
            raise refusal("bad_wheel_file", f"WHEEL has a bad tag: {error!s:.200}") from error
    if not tags:
        raise refusal("bad_wheel_file", "WHEEL does not have a Tag")
    if tags != filename.tags:
        odd = sorted(tags ^ filename.tags)[0]
        place = "WHEEL but not in the file name" if odd in tags else "the file name but not in WHEEL"
        raise refusal("tag_mismatch", f"the tag `{odd[:100]}` is in {place}")


def _single_field(fields: Message, name: str) -> str:
    values = [str(value).strip() for value in fields.get_all(name, [])]
    if len(values) != 1:
        raise refusal("bad_wheel_file", f"WHEEL has {len(values)} `{name}` fields instead of 1")
    return values[0]
