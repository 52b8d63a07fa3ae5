"""Compares the installed files of two versions, line by line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any, Literal, NamedTuple
from zipfile import ZipFile, ZipInfo

from markupsafe import Markup
from pydantic import Field
from sqlalchemy.orm import Session
from wander.types import Record

from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.runs.kept import Kept
from wander_hub.storage import CHUNK, Storage, copy_pieces
from wander_hub.web.source.files import draw_lines, find_wheel, open_wheel, read_text
from wander_hub.web.text import visible

_MOST_COMPARED = 2_000
"""Maximum number of lines of a file that is compared. In the worst case, the cost grows with their square."""
_MOST_CHANGED, _MOST_FILES = 20_000, 300
"""Maximum number of lines, and of files, whose lines are compared for one page."""
_MOST_NAMED = 2_000
_NOT_COMPARED = "Too many changes to compare on one page"
_OF_LINE = 150
"""Size of a cached line, in numbers."""
_KEPT = Kept()
"""Cached comparisons, by the digests of both wheels."""
_LINES = {
    "same": Markup("<span><i>{}</i><i>{}</i> {}\n</span>"),
    "add": Markup('<span class="add"><i>{}</i><i>{}</i>+{}\n</span>'),
    "del": Markup('<span class="del"><i>{}</i><i>{}</i>−{}\n</span>'),
}
_GAP = Markup('<span class="hunk">…\n</span>')
_AROUND = 3
"""Unchanged lines shown before and after a change."""


class ChangedLine(Record):
    """A line of a file that changed."""

    kind: Literal["same", "add", "del"]
    old: int | None
    """Line number in the older version, or None if the line was added."""
    new: int | None
    text: str


class FileChange(Record):
    """A file that differs between two versions."""

    path: str
    kind: Literal["added", "removed", "changed"]
    hunks: list[list[ChangedLine]] = Field(default_factory=list)
    """Changed lines with some unchanged lines around them, in order. Empty for an empty file."""
    left_out: str = ""
    """Why the hunks are left out, such as for a binary or very large file."""
    drawn: Any = Field(default=None, exclude=True)
    """The hunks as HTML."""

    @property
    def compared(self) -> bool:
        """False if the file was skipped because there were too many changes."""
        return self.left_out != _NOT_COMPARED

    def count(self, kind: str) -> int:
        """Return the number of lines of a kind."""
        return sum(line.kind == kind for hunk in self.hunks for line in hunk)


class Changes(Record):
    """The changes between two versions."""

    owner: str
    name: str
    old: str
    new: str
    changes: list[FileChange]
    same: int
    """Number of files that are the same in both versions."""
    versions: list[str] = Field(exclude=True)
    """All versions of the environment, newest first."""
    newest: str = Field(exclude=True)
    """The version that is offered first."""
    listed: bool = Field(exclude=True)

    @property
    def named(self) -> list[FileChange]:
        """The changes that a page lists by name."""
        return self.changes[:_MOST_NAMED]


def show_changes(
    session: Session, storage: Storage, owner: str, name: str, old: str | None, new: str
) -> Changes:
    """Return the files that differ between two versions, with the changed lines of text files."""
    found = environments.find(session, owner, name)
    after = environments.find_version(session, found, new)
    known = [one.version for one in environments.list_versions(session, found)]
    earlier = known[known.index(after.version) + 1 :]
    before = environments.find_version(session, found, old or next(iter(earlier), after.version))
    digests = find_wheel(found, before).sha256, find_wheel(found, after).sha256
    compared = _KEPT.get(digests, lambda: _compare_wheels(storage, found, before, after))
    return Changes(
        owner=found.owner.name,
        name=found.name,
        old=before.version,
        new=after.version,
        changes=compared.changes,
        same=compared.same,
        versions=known,
        newest=found.latest_version,
        listed=found.listed,
    )


@dataclass(frozen=True)
class _Compared:
    """The changed files of two wheels, and the number of files that are the same."""

    changes: list[FileChange]
    same: int

    @property
    def numbers(self) -> int:
        """Size in the cache."""
        lines = sum(len(hunk) for one in self.changes for hunk in one.hunks)
        return _OF_LINE * (len(self.changes) + lines)


def _compare_wheels(storage: Storage, environment: Environment, before: Version, after: Version) -> _Compared:
    changes, left, files = list[FileChange](), _MOST_CHANGED, _MOST_FILES
    with (
        open_wheel(storage, environment, before) as (_, one),
        open_wheel(storage, environment, after) as (_, two),
    ):
        olds, news = _list_members(one, before), _list_members(two, after)
        for path in sorted({*olds, *news}):
            most = left if files else 0
            change, read = _compare(path, olds.get(path), news.get(path), most)
            left, files = left - read, files - bool(read)
            if change is not None:
                changes.append(change)
    return _Compared(changes, len({*olds, *news}) - len(changes))


class _Member(NamedTuple):
    """A file of a wheel."""

    archive: ZipFile
    info: ZipInfo
    digest: str
    """Digest from RECORD, which the upload checked against the content. Empty without a digest in RECORD."""


def _list_members(archive: ZipFile, version: Version) -> dict[str, _Member]:
    """Return the files by their paths without the version number, except for RECORD."""
    files, digests = dict[str, _Member](), _read_digests(archive)
    for one in archive.infolist():
        head, _, rest = one.filename.partition("/")
        folder = head.removesuffix(".dist-info").removesuffix(".data")
        if folder != head:
            head = head.replace(f"-{version.version}.", ".", 1)
        if not one.is_dir() and (folder == head or rest != "RECORD"):
            member = _Member(archive, one, digests.get(one.filename, ""))
            files[f"{head}/{rest}" if rest else head] = member
    return files


def _read_digests(archive: ZipFile) -> dict[str, str]:
    """Return the digests of the files from RECORD, because opening 19,000 files takes seconds."""
    records = [one for one in archive.namelist() if one.endswith(".dist-info/RECORD")]
    text = archive.read(min(records, key=len)).decode() if records else ""
    rows = csv.reader(io.StringIO(text, newline=""))
    return {path: digest for path, digest, *_ in rows}


def _are_equal(old: _Member, new: _Member) -> bool:
    if old.info.file_size != new.info.file_size:
        return False
    kinds = {one.digest.partition("=")[0] for one in (old, new)}
    if len(kinds) == 1 and "" not in kinds:
        return old.digest == new.digest
    return _digest(old) == _digest(new)


def _compare(path: str, old: _Member | None, new: _Member | None, most: int) -> tuple[FileChange | None, int]:
    """Return the change of a file, and the number of compared lines. It compares at most `most` lines."""
    if old is not None and new is not None and _are_equal(old, new):
        return None, 0
    kind: Literal["added", "removed", "changed"] = (
        "added" if old is None else "removed" if new is None else "changed"
    )
    if most <= 0:
        return FileChange(path=path, kind=kind, left_out=_NOT_COMPARED), 0
    texts, reasons = [], []
    for member in (old, new):
        text, left_out = read_text(member.archive, member.info) if member is not None else ("", "")
        texts.append(text.removesuffix("\n").split("\n") if text else [])
        reasons += [left_out] if left_out else []
    if not reasons and max(map(len, texts)) > _MOST_COMPARED:
        reasons.append(f"Files of more than {_MOST_COMPARED:,} lines are not compared here")
    if reasons:
        return FileChange(path=path, kind=kind, left_out=reasons[-1]), 0
    hunks, drawn = _list_hunks(path, *texts)
    return FileChange(path=path, kind=kind, hunks=hunks, drawn=drawn), sum(map(len, texts))


def _list_hunks(path: str, old: Sequence[str], new: Sequence[str]) -> tuple[list[list[ChangedLine]], Markup]:
    """Return the changed lines with the lines around them, as data and as HTML."""
    sides, hunks, drawn = (_draw(path, old), _draw(path, new)), list[list[ChangedLine]](), list[Markup]()
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(_AROUND):
        drawn += [_GAP] if hunks else []
        hunks.append([])
        for tag, *ends in group:
            first, end, new_first, new_end = (one + 1 for one in ends)
            pairs: Iterable[tuple[int, int]] = zip(range(first, end), range(new_first, new_end), strict=False)
            if tag != "equal":
                pairs = [
                    *((one, 0) for one in range(first, end)),
                    *((0, two) for two in range(new_first, new_end)),
                ]
            for one, two in pairs:  # line numbers in both versions, 0 for a missing line
                kind: Literal["same", "add", "del"] = "same" if one and two else "add" if two else "del"
                text, shown = (new[two - 1], sides[1][two - 1]) if two else (old[one - 1], sides[0][one - 1])
                hunks[-1].append(ChangedLine(kind=kind, old=one or None, new=two or None, text=text))
                drawn.append(_LINES[kind].format(one or "", two or "", shown))
    return hunks, Markup("").join(drawn)


def _draw(path: str, lines: Sequence[str]) -> list[Markup]:
    """Return lines with syntax colors, or plain if the lexer splits the lines differently."""
    drawn = list(draw_lines(path, "\n".join(lines)))
    return drawn if len(drawn) == len(lines) else [visible(one) for one in lines]


def _digest(member: _Member) -> str:
    with member.archive.open(member.info) as file:
        return copy_pieces(iter(partial(file.read, CHUNK), b""))
