"""Shows the source code of a version, one file at a time.

The wheel is installed and runs, so pages show its files. They show the source archive, which can also hold
tests, a README and other files, only on request.
"""

from __future__ import annotations

import html
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import IO, Any, Literal
from zipfile import ZipFile, ZipInfo

from markupsafe import Markup
from pydantic import Field
from sqlalchemy.orm import Session
from wander.errors import did_you_mean
from wander.types import Record

from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.http.problems import HubProblem
from wander_hub.storage import Storage
from wander_hub.web.text import size, visible

_MOST_BYTES = 64 * 1024 * 1024
"""Largest wheel, packed or unpacked, that is read to draw a page."""
_MOST_IMAGE = 8 * 1024 * 1024
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_MOST_TEXT = 256 * 1024
_MOST_COLORED = 32 * 1024
_MOST_LINES = 4_000
_MOST_LISTED = 2_000
"""Maximum number of files that a page links to."""
_MOST_NAMES = 500
"""Maximum number of file names that are compared with a missing name to suggest a similar one. Comparing
10,000 names would take more than a second."""
_LEXERS = {
    **dict.fromkeys([".py", ".pyi", ".python"], "PythonLexer"),
    ".json": "JsonLexer",
    ".toml": "TOMLLexer",
    **dict.fromkeys([".sh", ".bash", ".shell"], "BashLexer"),
}
"""Lexers by suffix. The YAML lexer needs minutes for some texts, and the one for console sessions seconds."""
_SESSIONS = (".console", ".shell-session")
_PROMPT = "$ "
_BLOCK = re.compile(r'<pre><code class="language-(\w+)">([^<]*)</code></pre>')
"""A block of code in cleaned HTML that contains only text."""
_KEPT = 128
"""Maximum number of highlighted files in the cache. Syntax highlighting takes 3 ms per 1,000 characters."""
_COLORED = ("k", "s", "c", "m", "nf", "nc", "nv", "gp", "go")
"""Pygments' short names of keywords, strings, comments, numbers, defined names, shell variables, prompts and
output."""
_OPEN = {one: Markup('<span class="{}">').format(one) for one in _COLORED}
_CLOSE = Markup("</span>")
_LINE_ENDS = re.compile("(\n)")


Archive = Literal["wheel", "source"]


class SourceFile(Record):
    """A file of a wheel, or of a source archive."""

    path: str
    size: int
    """Bytes."""

    @property
    def runs(self) -> bool:
        """False for metadata of the distribution."""
        return ".dist-info/" not in self.path


class SourceFiles(Record):
    """The files of one version, and one of them."""

    owner: str
    name: str
    version: str
    wheel: str
    """File name of the wheel or source archive."""
    archive: Archive = "wheel"
    files: list[SourceFile]
    shown: str
    text: str
    left_out: str
    """Why a part of the shown file is missing. Empty if the file is complete."""
    other: bool = Field(exclude=True)
    """Whether the version also has the other kind of archive."""


@dataclass(frozen=True)
class SourceView:
    """Data for the page of a source file."""

    found: SourceFiles
    newest: str
    """The version that is offered first."""
    listed: bool
    lines: list[Markup]
    files: list[SourceFile]
    """Files that the page links to."""


def find_source(
    session: Session,
    storage: Storage,
    found: Environment,
    version: str,
    path: str | None,
    archive: Archive | None,
) -> SourceFiles:
    """Return a version's files and the text of one: the requested file, or the module of its entry point.

    Without an archive, the file is searched in the wheel and then in the source archive, because links of a
    README can lead to both.
    """
    if archive is None:
        try:
            return find_source(session, storage, found, version, path, "wheel")
        except HubProblem as missing:
            if missing.code != "file_not_found":
                raise
            try:
                return find_source(session, storage, found, version, path, "source")
            except HubProblem:
                raise missing from None
    chosen = environments.find_version(session, found, version)
    names: dict[str, Any] = {"owner": found.owner.name, "name": found.name, "version": chosen.version}
    kinds = {one.kind for one in environments.list_offered_files(found, chosen)}
    names |= {"archive": archive, "other": ("sdist" if archive == "wheel" else "wheel") in kinds}
    if archive == "source":
        return SourceFiles(**names, **_read_source_archive(storage, found, chosen, path))
    with open_wheel(storage, found, chosen) as (wheel, opened):
        members = sorted((one for one in opened.infolist() if not one.is_dir()), key=_order)
        by_path = {one.filename: one for one in members}
        shown = _choose(by_path, path, _modules(chosen))
        member = by_path[shown]
        text, left_out = _decode(member.file_size, lambda: opened.read(member))
    files = [SourceFile(path=one.filename, size=one.file_size) for one in members]
    return SourceFiles(**names, wheel=wheel, files=files, shown=shown, text=text, left_out=left_out)


def _read_source_archive(
    storage: Storage, environment: Environment, version: Version, path: str | None
) -> dict[str, Any]:
    label = f"{environment.label}@{version.version}"
    offered = environments.list_offered_files(environment, version)
    sdist = next((one for one in offered if one.kind == "sdist"), None)
    if sdist is None:
        raise HubProblem(404, "no_source", f"`{label}` has no source archive")
    with storage.open_file(sdist.sha256) as body, tarfile.open(fileobj=body, mode="r:gz") as archive:
        members = dict[str, tarfile.TarInfo]()
        for one in archive:
            if sdist.size > _MOST_BYTES or one.offset_data + one.size > _MOST_BYTES:
                raise _too_large("source archive", label, sdist.filename)
            if one.isreg():
                members[one.name.partition("/")[2]] = one
        members = dict(sorted(members.items()))
        shown = _choose(members, path, ["README.md", "README.rst", "README", *_modules(version)])
        taken = archive.extractfile(members[shown])
        text, left_out = _decode(members[shown].size, lambda: taken.read() if taken is not None else b"")
    files = [SourceFile(path=name, size=one.size) for name, one in members.items()]
    return {"wheel": sdist.filename, "files": files, "shown": shown, "text": text, "left_out": left_out}


def draw_source(environment: Environment, found: SourceFiles) -> SourceView:
    """Return the data for the page."""
    lines = list(islice(draw_lines(found.shown, found.text), _MOST_LINES + 1))
    if len(lines) > _MOST_LINES:
        left_out = f"Only the first {_MOST_LINES:,} lines are shown"
        lines, found = lines[:_MOST_LINES], found.model_copy(update={"left_out": left_out})
    return SourceView(
        found,
        newest=environment.latest_version,
        listed=environment.listed,
        lines=lines,
        files=found.files[:_MOST_LISTED],
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
    """Return a file of a source archive. The path leaves out the archive's top folder."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for member in archive:
            if member.name.partition("/")[2] == path and member.isreg() and member.size <= _MOST_IMAGE:
                taken = archive.extractfile(member)
                return taken.read() if taken is not None else None
            if member.offset_data + member.size > _MOST_BYTES:
                return None  # do not unpack more for an image
    return None


@contextmanager
def open_wheel(storage: Storage, environment: Environment, version: Version) -> Iterator[tuple[str, ZipFile]]:
    """Open the wheel that most machines install. The upload has validated the archive."""
    label = f"{environment.label}@{version.version}"
    wheels = [one for one in environments.list_offered_files(environment, version) if one.kind == "wheel"]
    if not wheels:
        raise HubProblem(404, "no_source", f"`{label}` needs a wheel to show its source")
    wheel = min(wheels, key=lambda one: (not one.filename.endswith("-none-any.whl"), one.filename))
    too_large = _too_large("wheel", label, wheel.filename)
    if wheel.size > _MOST_BYTES:
        raise too_large
    with storage.open_file(wheel.sha256) as file, ZipFile(file) as archive:
        if sum(one.file_size for one in archive.infolist()) > _MOST_BYTES:
            raise too_large
        yield wheel.filename, archive


def _too_large(what: str, label: str, filename: str) -> HubProblem:
    hint = f"download `{filename}` and unpack it"
    return HubProblem(413, "source_too_large", f"the {what} of `{label}` is too large to show", hint=hint)


def _order(member: ZipInfo) -> tuple[bool, str]:
    """Return a sort key that puts metadata last."""
    return ".dist-info/" in member.filename, member.filename


def _choose(files: Mapping[str, object], path: str | None, first: Sequence[str]) -> str:
    """Return the requested path, or the first file of a requested folder, or the first preferred file."""
    if path is None:
        path = next((one for one in (*first, *files) if one in files), "")
    if path not in files:
        folder = path.rstrip("/") + "/"
        if (inside := next((one for one in files if one.startswith(folder)), None)) is not None:
            return inside
        path = path[:200]
        hint = did_you_mean(path, islice(files, _MOST_NAMES))
        raise HubProblem(404, "file_not_found", f"this version has no file `{path}`", hint=hint)
    return path


def _modules(version: Version) -> list[str]:
    """Return the possible paths of the entry point's module."""
    module = (version.entry_point or "").partition(":")[0].replace(".", "/")
    return [f"{module}.py", f"{module}/__init__.py"]


def _decode(length: int, read: Callable[[], bytes]) -> tuple[str, str]:
    if length > _MOST_TEXT:
        return "", f"This file is too large to show ({size(length)})"
    try:
        text = read().decode()
    except UnicodeDecodeError:
        return "", f"This file is not text ({size(length)})"
    return text.replace("\r\n", "\n"), ""


def draw_lines(path: str, text: str) -> Iterable[Markup]:
    """Return the lines of a file, colored if its kind is known, with hidden characters as codes."""
    kind = PurePosixPath(path).suffix
    if not text:
        return ()
    if len(text) > _MOST_COLORED or kind not in (*_LEXERS, *_SESSIONS):
        return map(visible, text.removesuffix("\n").split("\n"))
    return _color(kind, text).split("\n")


@lru_cache(_KEPT)
def _color(kind: str, text: str) -> Markup:
    """Return a text with syntax colors, without its last line break."""
    drawn: list[Markup] = []
    for css, some in groupby(_tokens(kind, text), key=lambda token: _class_of(token[0])):
        for part in _LINE_ENDS.split("".join(value for _, value in some)):
            if css and part.strip("\n"):
                drawn += (_OPEN[css], visible(part), _CLOSE)
            else:
                drawn.append(visible(part))
    return Markup("").join(drawn).removesuffix("\n")


@cache
def _class_of(token: Any) -> str | None:
    from pygments.token import STANDARD_TYPES  # imported late, to start the hub faster

    return next((one for one in _COLORED if STANDARD_TYPES.get(token, "").startswith(one)), None)


def _tokens(kind: str, text: str) -> Iterator[tuple[Any, str]]:
    """Yield the parts of a text with their token types."""
    from pygments import lexers
    from pygments.token import Generic

    if kind in _LEXERS:
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


def color_blocks(cleaned: str) -> str:
    """Return HTML from `readme.clean` with syntax colors in its blocks of code, up to a total length."""
    left = _MOST_COLORED

    def color(block: re.Match[str]) -> str:
        nonlocal left
        known = f".{block[1]}" in (*_LEXERS, *_SESSIONS)
        left -= len(block[2]) if known else 0
        code = _color(f".{block[1]}", html.unescape(block[2])) if known and left >= 0 else block[2]
        return f'<pre class="source plain" tabindex="0"><code>{code}</code></pre>'

    return _BLOCK.sub(color, cleaned)
