"""Checks on a source archive: one top folder, safe plain members, bounded size, PKG-INFO, pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from wander_hub.upload import entry_points
from wander_hub.upload.loaders import LoaderSearch
from wander_hub.upload.members import Budget, MemberNames, check_metadata_size, note_hidden, shown
from wander_hub.upload.schemas import Contents, FileName, Findings, Limits, refused
from wander_hub.upload.stream import ByteStream
from wander_hub.upload.tar_archive import TarArchive, TarMember

_METADATA, _PROJECT = "PKG-INFO", "pyproject.toml"
_MOST_DOTS = 100
"""The memory that `tomllib` takes grows with the square of a dotted key's parts."""


def read(stream: ByteStream, filename: FileName, limits: Limits, size: int, findings: Findings) -> Contents:
    """Check the archive in one pass and return what it holds."""
    names, loaders = MemberNames(limits), LoaderSearch()
    texts: dict[str, bytes] = {}
    files: set[str] = set()
    for member, content in TarArchive(stream, Budget(limits, size), limits).walk():
        names.add(member.name, is_folder=member.is_folder)
        top, _, path = member.name.partition("/")
        if top != filename.stem or (not path and not member.is_folder):
            raise refused(
                "bad_top_folder", f"`{shown(member.name)}` lies outside the folder `{filename.stem}`"
            )
        if member.is_folder:
            continue
        files.add(path)
        wanted = path in (_METADATA, _PROJECT)
        if wanted:
            check_metadata_size(member.name, member.size, limits)
        text = _text(path, member, content, findings, keep=wanted or _may_load(path, member, loaders))
        if wanted:
            texts[path] = text
        elif text:
            loaders.look(text)
    if _METADATA not in texts:
        raise refused("missing_metadata", f"the archive has no `{filename.stem}/{_METADATA}`")
    return Contents(
        texts[_METADATA], _entry_point(texts, filename), loaders.found, licence_files=frozenset(files)
    )


def _text(path: str, member: TarMember, content: Iterator[bytes], findings: Findings, *, keep: bool) -> bytes:
    """Read a member to its end; return it if it is to be kept."""
    kept: list[bytes] = []
    start = b""
    for piece in content:
        start = start or piece[:512]
        if keep:
            kept.append(piece)
    note_hidden(path, start, findings)
    return b"".join(kept)


def _may_load(path: str, member: TarMember, loaders: LoaderSearch) -> bool:
    parts = path.split("/")
    if parts[0] == "src":
        parts = parts[1:]
    is_module = (len(parts) == 1 and parts[0].endswith(".py")) or (
        len(parts) == 2 and parts[1] == "__init__.py"
    )
    return is_module and loaders.wants(member.size)


def _entry_point(texts: dict[str, bytes], filename: FileName) -> str | None:
    if _PROJECT not in texts:
        raise refused("missing_pyproject", f"the archive has no `{filename.stem}/{_PROJECT}`")
    if any(line.count(b".") > _MOST_DOTS for line in texts[_PROJECT].splitlines()):
        raise refused("missing_pyproject", f"`{_PROJECT}` has a line of over {_MOST_DOTS} dots")
    try:
        project = tomllib.loads(texts[_PROJECT].decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise refused("missing_pyproject", f"`{_PROJECT}` is not TOML: {error!s:.200}") from error
    try:
        name, value = next(iter(project["project"]["entry-points"][entry_points.GROUP].items()))
    except (KeyError, TypeError, AttributeError, StopIteration):
        return None
    return entry_points.checked(str(name), str(value))
