"""Checks of a source archive: one top folder, safe plain members, limited size, PKG-INFO, pyproject.toml."""

from __future__ import annotations

from typing import Any

from wander.wire.source_tree import TreeEntry, is_source, tree_digest
from wander.wire.untrusted_text import PROJECT, RefusedText, read_toml

from wander_hub.settings import Settings
from wander_hub.upload.archives import entry_points
from wander_hub.upload.archives.entry_points import LoaderSearch
from wander_hub.upload.archives.members import (
    ArchiveBudget,
    MemberNames,
    check_metadata_size,
    clip,
    is_code,
    read_member,
)
from wander_hub.upload.archives.stream import ByteStream
from wander_hub.upload.archives.tar_archive import TarArchive
from wander_hub.upload.findings import Findings, refusal
from wander_hub.upload.schemas import Contents, FileName

_METADATA, _PROJECT = "PKG-INFO", "pyproject.toml"
_MOST_PATTERNS, _LONGEST_PATTERN = 100, 200


def read(
    stream: ByteStream, filename: FileName, settings: Settings, size: int, findings: Findings
) -> Contents:
    """Check the archive in one pass and return its contents."""
    names, loaders = MemberNames(), LoaderSearch()
    texts: dict[str, bytes] = {}
    tree: list[TreeEntry] = []
    for member, content in TarArchive(stream, ArchiveBudget(settings.max_unpacked_bytes, size)).walk():
        names.add(member.name, is_folder=member.is_folder)
        top, _, path = member.name.partition("/")
        if top != filename.stem or (not path and not member.is_folder):
            raise refusal("bad_top_folder", f"`{clip(member.name)}` is outside the folder `{filename.stem}`")
        if member.is_folder:
            continue
        wanted = path in (_METADATA, _PROJECT)
        if wanted:
            check_metadata_size(member.name, member.size)
        keep = wanted or loaders.wants(path.removeprefix("src/"), member.size)
        sha256, text = read_member(path, content, findings, keep=keep)
        tree.append(TreeEntry(path, member.is_executable, sha256))
        if wanted:
            texts[path] = text
        elif text:
            loaders.look(text)
    if _METADATA not in texts:
        raise refusal("missing_metadata", f"the archive does not contain `{filename.stem}/{_METADATA}`")
    project = _project(texts, filename)
    try:
        name, value = next(iter(project["project"]["entry-points"][entry_points.GROUP].items()))
        entry_point = entry_points.check(str(name), str(value))
    except (KeyError, TypeError, AttributeError, StopIteration):
        entry_point = None
    return Contents(
        texts[_METADATA],
        entry_point,
        loaders.found,
        license_files=frozenset(entry.path for entry in tree),
        code=tuple((entry.path, entry.sha256) for entry in tree if is_code(entry.path)),
        tree_sha256=tree_digest(entry for entry in tree if is_source(entry.path)),
        generated=_generated_patterns(project),
    )


def _project(texts: dict[str, bytes], filename: FileName) -> dict[str, Any]:
    if _PROJECT not in texts:
        raise refusal("missing_pyproject", f"the archive does not contain `{filename.stem}/{_PROJECT}`")
    try:
        return read_toml(texts[_PROJECT], PROJECT)
    except RefusedText as error:
        raise refusal("missing_pyproject", f"`{_PROJECT}`: {error!s:.200}") from error


def _generated_patterns(project: dict[str, Any]) -> tuple[str, ...]:
    """Return the patterns in `generated` under `[tool.wander]`."""
    tool = project.get("tool")
    table = tool.get("wander", {}) if isinstance(tool, dict) else {}
    patterns = table.get("generated", []) if isinstance(table, dict) else None
    if (
        isinstance(patterns, list)
        and len(patterns) <= _MOST_PATTERNS
        and all(isinstance(pattern, str) and 0 < len(pattern) <= _LONGEST_PATTERN for pattern in patterns)
    ):
        return tuple(patterns)
    detail = f"`generated` under `[tool.wander]` must be a list of up to {_MOST_PATTERNS} path patterns"
    raise refusal("bad_generated", detail)
