"""The source code of a version on pages: a file of its wheel line by line, and what two versions changed.

The wheel is what installs and runs, so that is read, and not a source archive that may hold something else.
"""

from __future__ import annotations

import html
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import lru_cache, partial
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import IO, Any, Literal
from zipfile import ZipFile, ZipInfo

from markupsafe import Markup
from sqlalchemy.orm import Session

from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import versions_of
from wander_hub.http.problems import HubProblem
from wander_hub.storage import CHUNK, Storage, copy_pieces
from wander_hub.web.text import size, visible

_MOST_BYTES = 64 * 1024 * 1024
"""Of a wheel, unpacked or not, that is read to draw a page."""
_MOST_IMAGE = 8 * 1024 * 1024
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_MOST_TEXT = 256 * 1024
_MOST_COLOURED = 64 * 1024
_MOST_LINES = 4_000
_MOST_COMPARED = 2_000
"""Lines of a file that are compared; the cost grows with their square at worst."""
_MOST_CHANGED = 40_000
"""Lines that are compared for one page, of all its files."""
_LEXERS = {
    **dict.fromkeys([".py", ".pyi", ".python"], "PythonLexer"),
    ".json": "JsonLexer",
    ".toml": "TOMLLexer",
    **dict.fromkeys([".sh", ".bash", ".shell"], "BashLexer"),
}
"""YAML's takes minutes for some texts, and that of console sessions seconds."""
_SESSIONS = (".console", ".shell-session")
_PROMPT = "$ "
_BLOCK = re.compile(r'<pre><code class="language-(\w+)">([^<]*)</code></pre>')
"""Of code in cleaned HTML that holds nothing but text."""
_KEPT = 128
"""Blocks of code that are kept as they were drawn."""
_COLOURED = ("k", "s", "c", "m", "nf", "nc", "nv", "gp", "go")
"""Pygments' short names of keywords, strings, comments, numbers, names that a line defines, variables of a
shell, its prompt and what it printed."""

Line = tuple[Literal["", "add", "del", "hunk"], str]


@dataclass(frozen=True)
class SourceView:
    """The files of one version, and one of them."""

    owner: str
    name: str
    version: str
    versions: list[str]
    """All of the environment, newest first."""
    wheel: str
    files: list[ZipInfo]
    shown: str
    lines: list[Markup]
    left_out: str
    """What of the shown file is not there, and why; empty for all of it."""


@dataclass(frozen=True)
class FileChange:
    """A file that is not the same in two versions."""

    path: str
    kind: Literal["added", "removed", "changed"]
    lines: list[Line] = field(default_factory=list)
    left_out: str = ""


@dataclass(frozen=True)
class ChangeView:
    """What one version changed of another."""

    owner: str
    name: str
    old: str
    new: str
    versions: list[str]
    changes: list[FileChange]
    same: int
    """Files that are the same in both."""


def show_source(
    session: Session, storage: Storage, owner: str, name: str, version: str, path: str | None
) -> SourceView:
    """Return a version's files and one of them: the one asked for, or the module with its entry point."""
    found = environments.find(session, owner, name)
    chosen = environments.find_version(session, found, version)
    with _open_wheel(storage, found, chosen) as (wheel, archive):
        files = sorted((one for one in archive.infolist() if not one.is_dir()), key=_order)
        member = _find_member(files, path) if path is not None else _first_member(files, chosen)
        text, left_out = _read_text(archive, member)
    lines = list(islice(draw_lines(member.filename, text), _MOST_LINES + 1))
    if len(lines) > _MOST_LINES:
        lines, left_out = lines[:_MOST_LINES], f"Only the first {_MOST_LINES:,} lines are shown"
    return SourceView(
        *(found.owner.name, found.name, chosen.version),
        versions=_list_versions(session, found),
        wheel=wheel,
        files=files,
        shown=member.filename,
        lines=lines,
        left_out=left_out,
    )


def show_changes(
    session: Session, storage: Storage, owner: str, name: str, old: str | None, new: str
) -> ChangeView:
    """Return which files of a version are not those of another one, line by line where they are texts."""
    found = environments.find(session, owner, name)
    after = environments.find_version(session, found, new)
    known = _list_versions(session, found)
    earlier = known[known.index(after.version) + 1 :]
    before = environments.find_version(session, found, old or next(iter(earlier), after.version))
    with _open_wheel(storage, found, before) as (_, one), _open_wheel(storage, found, after) as (_, two):
        olds, news = _list_members(one, before), _list_members(two, after)
        changes, left = list[FileChange](), _MOST_CHANGED
        for path in sorted({*olds, *news}):
            change, read = _compare(path, (one, olds.get(path)), (two, news.get(path)), left)
            left -= read
            if change is not None:
                changes.append(change)
    same = len({*olds, *news}) - len(changes)
    return ChangeView(
        *(found.owner.name, found.name, before.version, after.version),
        versions=known,
        changes=changes,
        same=same,
    )


def read_image(
    session: Session, storage: Storage, owner: str, name: str, version: str, path: str
) -> tuple[bytes, str]:
    """Return an image of a version's wheel or source archive, for its README, and its media type."""
    found = environments.find(session, owner, name)
    chosen = environments.find_version(session, found, version)
    media_type = _IMAGES.get(PurePosixPath(path).suffix.lower())
    missing = HubProblem(404, "file_not_found", f"this version has no image `{path[:200]}`")
    if media_type is None:
        raise missing
    for one in environments.list_offered_files(found, chosen):
        if one.size > _MOST_BYTES:
            continue
        with storage.open_file(one.sha256) as file:
            body = _member_of_wheel(file, path) if one.kind == "wheel" else _member_of_source(file, path)
        if body is not None:
            return body, media_type
    raise missing


def _member_of_wheel(file: IO[bytes], path: str) -> bytes | None:
    with ZipFile(file) as archive:
        found = next((one for one in archive.infolist() if one.filename == path), None)
        return archive.read(found) if found is not None and found.file_size <= _MOST_IMAGE else None


def _member_of_source(file: IO[bytes], path: str) -> bytes | None:
    """Return a file of a source archive, whose one folder its paths leave out."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            if member.name.partition("/")[2] == path and member.isreg() and member.size <= _MOST_IMAGE:
                taken = archive.extractfile(member)
                return taken.read() if taken is not None else None
            if member.offset_data + member.size > _MOST_BYTES:
                return None  # what follows is not unpacked for a picture
    return None


@contextmanager
def _open_wheel(
    storage: Storage, environment: Environment, version: Version
) -> Iterator[tuple[str, ZipFile]]:
    """Open the wheel that most machines install; the upload has checked its form."""
    wheels = [one for one in environments.list_offered_files(environment, version) if one.kind == "wheel"]
    label = f"{environment.label}@{version.version}"
    if not wheels:
        raise HubProblem(404, "no_source", f"`{label}` has no wheel whose source could be shown")
    wheel = min(wheels, key=lambda one: (not one.filename.endswith("-none-any.whl"), one.filename))
    too_large = HubProblem(
        *(413, "source_too_large", f"the wheel of `{label}` is too large to be shown"),
        hint=f"download `{wheel.filename}` and unpack it",
    )
    if wheel.size > _MOST_BYTES:
        raise too_large
    with storage.open_file(wheel.sha256) as file, ZipFile(file) as archive:
        if sum(one.file_size for one in archive.infolist()) > _MOST_BYTES:
            raise too_large
        yield wheel.filename, archive


def _list_versions(session: Session, environment: Environment) -> list[str]:
    return [one.version for one in environments.newest_first(list(versions_of(session, environment)))]


def _order(member: ZipInfo) -> tuple[bool, str]:
    """Sort metadata behind what runs."""
    return ".dist-info/" in member.filename, member.filename


def _find_member(files: list[ZipInfo], path: str) -> ZipInfo:
    found = next((one for one in files if one.filename == path), None)
    if found is None:
        raise HubProblem(404, "file_not_found", f"this version has no file `{path[:200]}`")
    return found


def _first_member(files: list[ZipInfo], version: Version) -> ZipInfo:
    """Return the module that the entry point names, or the first file."""
    module = (version.entry_point or "").partition(":")[0].replace(".", "/")
    wanted = [f"{module}.py", f"{module}/__init__.py"]
    return next((one for one in files if one.filename in wanted), files[0])


def _list_members(archive: ZipFile, version: Version) -> dict[str, ZipInfo]:
    """Return the files by paths that do not change with the version's number; RECORD says nothing new."""
    files = {}
    for one in archive.infolist():
        head, _, rest = one.filename.partition("/")
        folder = head.removesuffix(".dist-info").removesuffix(".data")
        if folder != head:
            head = head.replace(f"-{version.version}.", ".", 1)
        if not one.is_dir() and (folder == head or rest != "RECORD"):
            files[f"{head}/{rest}" if rest else head] = one
    return files


def _read_text(archive: ZipFile, member: ZipInfo) -> tuple[str, str]:
    """Return a file's text and what is left out of it."""
    if member.file_size > _MOST_TEXT:
        return "", f"This file is too large to show ({size(member.file_size)})"
    try:
        text = archive.read(member).decode()
    except UnicodeDecodeError:
        return "", f"This file is not text ({size(member.file_size)})"
    return text.replace("\r\n", "\n"), ""


def draw_lines(path: str, text: str) -> Iterator[Markup]:
    """Yield the lines of a file, coloured where its kind is known, with hidden characters as their codes."""
    from pygments.token import STANDARD_TYPES  # a hub starts without

    def colour(token: tuple[Any, str]) -> str | None:
        return next((one for one in _COLOURED if STANDARD_TYPES.get(token[0], "").startswith(one)), None)

    line: list[Markup] = []
    for css, some in groupby(_tokens(PurePosixPath(path).suffix, text), key=colour):
        for number, part in enumerate("".join(value for _, value in some).split("\n")):
            if number:
                yield Markup("").join(line)
                line = []
            if part:
                drawn = visible(part)
                line.append(Markup('<span class="{}">{}</span>').format(css, drawn) if css else drawn)
    if line:
        yield Markup("").join(line)


def _tokens(kind: str, text: str) -> Iterator[tuple[Any, str]]:
    """Yield the parts of a text with what each is."""
    from pygments import lexers
    from pygments.token import Generic, Text

    if len(text) > _MOST_COLOURED or kind not in (*_LEXERS, *_SESSIONS):
        yield Text, text
    elif kind in _LEXERS:
        yield from getattr(lexers, _LEXERS[kind])(stripnl=False, ensurenl=False).get_tokens(text)
    else:
        shell, typed = lexers.BashLexer(stripnl=False, ensurenl=False), False
        for line in text.splitlines(keepends=True):
            asked = line.startswith(_PROMPT)
            if asked:
                yield Generic.Prompt, _PROMPT
            if asked or typed:
                yield from shell.get_tokens(line.removeprefix(_PROMPT))
            else:
                yield Generic.Output, line
            typed = (asked or typed) and line.endswith("\\\n")


def colour_blocks(cleaned: str) -> str:
    """Return HTML that `readme.clean` gave with colours in its blocks of code, up to the length of a file."""
    left = _MOST_COLOURED

    def colour(block: re.Match[str]) -> str:
        nonlocal left
        known = f".{block[1]}" in (*_LEXERS, *_SESSIONS)
        left -= len(block[2]) if known else 0
        code = _colour(block[1], block[2]) if known and left >= 0 else block[2]
        return f'<pre class="source plain" tabindex="0"><code>{code}</code></pre>'

    return _BLOCK.sub(colour, cleaned)


@lru_cache(_KEPT)
def _colour(language: str, escaped: str) -> Markup:
    return Markup("\n").join(draw_lines(f"block.{language}", html.unescape(escaped)))


def _compare(
    path: str, old: tuple[ZipFile, ZipInfo | None], new: tuple[ZipFile, ZipInfo | None], most: int
) -> tuple[FileChange | None, int]:
    """Return what happened to a file, and how many of the `most` lines were compared for it.

    Nothing happened to one of the same bytes, whatever the sums beside them say.
    """
    if old[1] is not None and new[1] is not None and _digest(old[0], old[1]) == _digest(new[0], new[1]):
        return None, 0
    kind: Literal["added", "removed", "changed"] = (
        "added" if old[1] is None else "removed" if new[1] is None else "changed"
    )
    if most <= 0:
        return FileChange(path, kind, left_out="More changed than is compared on one page"), 0
    texts, reasons = [], []
    for archive, member in (old, new):
        text, left_out = _read_text(archive, member) if member is not None else ("", "")
        texts.append(text.splitlines())
        reasons += [left_out] if left_out else []
    if not reasons and max(map(len, texts)) > _MOST_COMPARED:
        reasons.append(f"Files of more than {_MOST_COMPARED:,} lines are not compared here")
    if reasons:
        return FileChange(path, kind, left_out=reasons[-1]), 0
    found = islice(unified_diff(texts[0], texts[1], lineterm="", n=3), 2, None)
    return FileChange(path, kind, lines=[_mark(one) for one in found]), sum(map(len, texts))


def _digest(archive: ZipFile, member: ZipInfo) -> str:
    with archive.open(member) as file:
        return copy_pieces(iter(partial(file.read, CHUNK), b""))


def _mark(line: str) -> Line:
    marks: dict[str, Literal["add", "del", "hunk"]] = {"+": "add", "-": "del", "@": "hunk"}
    return marks.get(line[:1], ""), line
