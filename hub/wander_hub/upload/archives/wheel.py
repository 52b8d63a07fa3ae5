"""Checks on a wheel: one pass over its bytes, in which every member is unpacked, hashed and measured.

pip and uv verify neither path collisions nor the digests of RECORD; an index is the only place that can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from wander_hub.upload.archives import entry_points, record, wheel_file
from wander_hub.upload.archives.loaders import LoaderSearch
from wander_hub.upload.archives.members import (
    Budget,
    MemberNames,
    check_metadata_size,
    is_code,
    note_hidden,
    note_startup,
    shown,
)
from wander_hub.upload.archives.stream import ByteStream
from wander_hub.upload.archives.zip_archive import Member, ZipArchive, unpack_again
from wander_hub.upload.schemas import Contents, FileName, Findings, Limits, refusal

_NEEDED = ("METADATA", "WHEEL", "RECORD")
_READ = (*_NEEDED, "entry_points.txt")
_LIBRARIES = ("purelib", "platlib")
_SCHEMES = (*_LIBRARIES, "scripts", "data", "headers")
_INFO_FOLDERS = (".dist-info", ".egg-info")
_IMPORTABLE = (".py", ".pyc", ".so", ".pyd")


@dataclass
class _Pass:
    """The state of the walk over an archive's members."""

    filename: FileName
    limits: Limits
    findings: Findings
    names: MemberNames
    loaders: LoaderSearch = field(default_factory=LoaderSearch)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    """SHA-256 as RECORD spells it, and size."""
    code: list[tuple[str, bytes]] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    """The metadata files, by name."""
    modules: set[str] = field(default_factory=set)
    scripts: list[str] = field(default_factory=list)
    folder: str = ""
    """The `.dist-info` folder."""
    data: str = ""
    """The `.data` folder."""


def read(
    stream: ByteStream, body: BinaryIO, filename: FileName, limits: Limits, size: int, findings: Findings
) -> Contents:
    """Check the archive and return what it holds; `body` is for reading a member once more."""
    state = _Pass(filename, limits, findings, MemberNames(limits))
    for member, content in ZipArchive(stream, Budget(limits, size)).walk():
        _take(state, member, content)
    _check_folders(state)
    record.check(
        state.texts["RECORD"],
        state.folder,
        state.files,
        lambda path: unpack_again(body, state.members[path]),
    )
    wheel_file.check(state.texts["WHEEL"], filename)
    target = None
    entry_points.check_scripts(state.scripts)
    if "entry_points.txt" in state.texts:
        target = entry_points.read(state.texts["entry_points.txt"], state.scripts)
    licences = f"{state.folder}/licenses/"
    return Contents(
        metadata=state.texts["METADATA"],
        entry_point=target,
        has_loader=state.loaders.found,
        licence_files=frozenset(
            path.removeprefix(licences) for path in state.files if path.startswith(licences)
        ),
        modules=frozenset(state.modules),
        code=tuple(state.code),
    )


def _take(state: _Pass, member: Member, content: Iterator[bytes]) -> None:
    """Take one member in: where it goes, its digest, and its bytes where they are needed."""
    path = member.name
    installed = _place_of(state, member)
    state.names.add(path, is_folder=member.is_folder, installed=installed)
    if member.is_folder:
        return
    name = path.rpartition("/")[2]
    is_metadata = path.count("/") == 1 and path.startswith(f"{state.folder}/") and name in _READ
    if is_metadata:
        check_metadata_size(path, member.size, state.limits)
    parts = path.split("/")
    is_top = (len(parts) == 1 and path.endswith(".py")) or (len(parts) == 2 and parts[1] == "__init__.py")
    is_loader = is_top and state.loaders.wants(member.size)
    kept: list[bytes] = []
    digest, start = hashlib.sha256(), b""
    for piece in content:
        start = start or piece[:512]
        digest.update(piece)
        if is_metadata or is_loader:
            kept.append(piece)
    state.files[path] = (record.spelt(digest.digest()), member.size)
    if is_code(path):
        below = path.split("/", 2)[-1] if path.startswith(f"{state.data}/") else path
        state.code.append((below, digest.digest()))
    state.members[path] = member
    note_hidden(path, start, state.findings)
    if is_metadata:
        state.texts[name] = b"".join(kept)
    elif is_loader:
        state.loaders.look(b"".join(kept))


def _place_of(state: _Pass, member: Member) -> str | None:
    """Say where a member is installed if not under its own path; check and note what that place means."""
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


def _place_of_data(state: _Pass, member: Member, folder: str, rest: str) -> str | None:
    state.data = state.data or folder
    scheme, _, path = rest.partition("/")
    plain = member.is_folder and not path
    if folder != state.data or (scheme not in _SCHEMES and not (plain and not scheme)) or not (path or plain):
        detail = f"`{shown(member.name)}` is not below one of {', '.join(_SCHEMES)} of one `.data` folder"
        raise refusal("bad_data_folder", detail)
    if plain:
        return None
    _check_data_path(member.name, scheme, path)
    if scheme in _LIBRARIES:
        if not member.is_folder:
            _note_library(state, path)
        return path
    if not member.is_folder:
        note_startup(path.rpartition("/")[2], state.findings)
        if scheme == "scripts":
            state.scripts.append(path)
        code = "data_scripts" if scheme == "scripts" else "data_files"
        state.findings.note(code, f"`{shown(member.name)}` is installed outside the packages")
    return path if scheme == "data" else None  # with `pip install --target` they share one root


def _check_data_path(name: str, scheme: str, path: str) -> None:
    """Check a member of `.data` as if it lay where it will be installed."""
    top = path.split("/")[0].lower()
    if scheme != "scripts" and top.endswith(_INFO_FOLDERS):
        raise refusal("bad_dist_info", f"`{shown(name)}` would pass for another distribution's metadata")
    if scheme == "data" and {"site-packages", "dist-packages", "bin", "scripts"} & set(
        path.lower().split("/")
    ):
        detail = f"`{shown(name)}` goes where packages or commands are, by a path of some machines only"
        raise refusal("bad_data_folder", detail)


def _note_library(state: _Pass, path: str) -> None:
    """Note what a file that goes to site-packages does there."""
    note_startup(path, state.findings)
    if path.endswith(_IMPORTABLE):
        state.modules.add(path.split("/")[0].split(".")[0])


def _check_dist_info(state: _Pass, folder: str, *, is_folder: bool) -> None:
    """There is one `.dist-info`, that of the file's own name and version."""
    if not is_folder or not folder.endswith(".dist-info"):
        raise refusal("bad_dist_info", f"`{shown(folder)}` is not spelt as the folder it should be")
    if state.folder and folder != state.folder:
        detail = f"the wheel has the folders `{shown(state.folder)}` and `{shown(folder)}`, and may have one"
        raise refusal("bad_dist_info", detail)
    if _identity(folder) != (state.filename.name, state.filename.version):
        detail = f"the folder `{shown(folder)}` is not that of `{state.filename.stem}`"
        raise refusal("bad_dist_info", detail)
    state.folder = folder


def _check_folders(state: _Pass) -> None:
    """Check the folders, which is possible only when all members are known."""
    if not state.folder:
        raise refusal("bad_dist_info", "the wheel has no `.dist-info` folder")
    for needed in _NEEDED:
        if needed not in state.texts:
            raise refusal("missing_metadata", f"the wheel has no `{state.folder}/{needed}`")
    stem = state.folder.removesuffix(".dist-info")
    if state.data and state.data != f"{stem}.data":
        raise refusal("bad_data_folder", f"the folder `{shown(state.data)}` is not `{stem}.data`")


def _identity(folder: str) -> tuple[str, str] | None:
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    try:
        return canonicalize_name(name), str(Version(version))
    except InvalidVersion:
        return None
