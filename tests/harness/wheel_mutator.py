"""Draws almost valid wheels: valid wheels with a few hostile or harmless changes."""

from __future__ import annotations

import csv
import io
import struct
from dataclasses import dataclass, field
from typing import Any

from archive_forge import DATA, INFO, MODULE, STEM, Entry, deflated, digest, entries_of, metadata, zip_of
from hypothesis import strategies as st

CHARACTERS = "abAB01._- ~%#&+=,;'()[]{}!@$^`/\\:*?\"|<>\u00e9\u0301\u0130\u1e9e\ufb01\u200b\u202e\t"
PLAIN = "abAB01_-,;'()é. "
PLACES = [
    "",
    "pkg/",
    "Pkg/",
    f"{DATA}/purelib/",
    f"{DATA}/platlib/",
    f"{INFO}/",
    f"{STEM}.data/data/",
    "a/b/",
]
FIELDS = {
    "flags": [0x02, 0x04, 0x800, 0x08, 0x01, 0x20],
    "method": [0, 8, 12],
    "time": [1, 0xFFFF],
    "date": [0, 0x21, 0xFFFF],
    "needed": [10, 20, 45, 63],
    "crc": [0, 1],
    "packed": [0, 5, 0xFFFFFFFF],
    "size": [0, 5, 0xFFFFFFFF],
    "offset": [0, 40],
    "disk": [1],
}
LINES = [
    "Author: A",
    "Keywords: a,b",
    "Classifier: Private :: x",
    "Requires-Dist: wander-sdk",
    "Requires-Dist: a @ https://example.org/a.whl",
    "Project-URL: Home, https://example.org",
    "Provides-Extra: more",
    "License: Ours",
]
ODD_LINES = [
    "Name: other",
    "Version: 2.0",
    "X-Odd: 1",
    "no field",
    " folded",
    "Author: a\rVersion: 2.0",
]
HEADER_NAMES = [b"good_env.py\0", b"../good_env.py", b"good_env.py/", b"GOOD_ENV.PY"]


@dataclass
class Draft:
    """A wheel in preparation: the members listed in RECORD, then changes that RECORD does not reflect."""

    files: dict[str, bytes] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


def paths(characters: str) -> st.SearchStrategy[str]:
    name = st.text(st.sampled_from(characters), min_size=1, max_size=8)
    suffix = st.sampled_from([".py", ".txt", ".pth", ".data", ".so", "", "/", "."])
    return st.builds("{}{}{}".format, st.sampled_from(PLACES), name, suffix)


@st.composite
def wheels(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """Return the bytes of a wheel and the list of its changes."""
    draft = Draft()
    for _ in range(draw(st.integers(0, 3))):
        name = draw(paths(draw(st.sampled_from([PLAIN] * 9 + [CHARACTERS]))))
        draft.files[name] = draw(st.binary(max_size=40))
        draft.notes.append(f"file {name!r}")
    odd = draw(st.sampled_from([False] * 5 + [True]))
    draft.lines = draw(st.lists(st.sampled_from(ODD_LINES if odd else LINES), max_size=2))
    draft.notes += draft.lines
    draft.entries = recorded(draft)
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=2)):
        draft.notes.append(change.__name__)
        change(draw, draft)
    body = zip_of(draft.entries, **draft.options)
    for at in draw(st.lists(st.integers(0, len(body) - 1), max_size=draw(st.sampled_from([0] * 9 + [2])))):
        bit = draw(st.integers(0, 7))
        draft.notes.append(f"bit {bit} of byte {at}")
        body = body[:at] + bytes([body[at] ^ (1 << bit)]) + body[at + 1 :]
    return body, draft.notes


def recorded(draft: Draft) -> list[Entry]:
    """Return the members with a matching RECORD."""

    def rows(_: list[str]) -> list[str]:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        files = {**base, **draft.files}
        writer.writerows(
            (name, digest(body), len(body)) for name, body in files.items() if not name.endswith("/")
        )
        return [*text.getvalue().splitlines(), f"{INFO}/RECORD,,"]

    info = {"METADATA": metadata(*draft.lines)}
    base = {str(entry.name): entry.body for entry in entries_of(info=info, without=("RECORD",))}
    entries = entries_of(draft.files, info=info, record=rows)
    for entry in entries:
        if str(entry.name).endswith("/"):
            entry.body, entry.mode = b"", 0o40755
    return entries


def _one(draw: st.DrawFn, draft: Draft) -> Entry:
    return draft.entries[draw(st.integers(0, len(draft.entries) - 1))]


def reorder(draw: st.DrawFn, draft: Draft) -> None:
    draft.entries = draw(st.permutations(draft.entries))


def store(draw: st.DrawFn, draft: Draft) -> None:
    entry = _one(draw, draft)
    entry.method, entry.packed = 0, None


def duplicate(draw: st.DrawFn, draft: Draft) -> None:
    entry = _one(draw, draft)
    draft.entries.append(Entry(entry.name, draw(st.sampled_from([entry.body, b"evil = 1"])), entry.method))


def header(draw: st.DrawFn, draft: Draft) -> None:
    name = draw(st.sampled_from(sorted(FIELDS)))
    value = draw(st.sampled_from(FIELDS[name]))
    where = draw(st.sampled_from(["local", "central"]))
    getattr(_one(draw, draft), where)[name] = value


def rename(draw: st.DrawFn, draft: Draft) -> None:
    _one(draw, draft).central["name"] = draw(st.sampled_from(HEADER_NAMES))


def mode(draw: st.DrawFn, draft: Draft) -> None:
    _one(draw, draft).mode = draw(
        st.sampled_from([0, 0o644, 0o100755, 0o100600, 0o120777, 0o40755, 0o104755])
    )


def extra(draw: st.DrawFn, draft: Draft) -> None:
    number = draw(st.sampled_from([0x5455, 0x7875, 0x000A, 0x7075, 0x0001, 0xCAFE]))
    body = draw(st.binary(max_size=8))
    text = struct.pack("<2H", number, len(body)) + body
    setattr(_one(draw, draft), draw(st.sampled_from(["extra", "central_extra"])), text)


def stray(draw: st.DrawFn, draft: Draft) -> None:
    place = draw(st.sampled_from(["prefix", "before_directory", "before_end", "suffix", "comment"]))
    draft.options[place] = draw(
        st.sampled_from([b"\0", b"PK\x05\x06" + b"\0" * 18, zip_of([Entry("evil.py", b"")])])
    )


def unsound(draw: st.DrawFn, draft: Draft) -> None:
    entry = _one(draw, draft)
    entry.method = 8
    entry.packed = draw(
        st.sampled_from([deflated(entry.body) + b"tail", deflated(entry.body)[:-1], deflated(MODULE)])
    )


def unrecorded(draw: st.DrawFn, draft: Draft) -> None:
    draft.entries.append(Entry(draw(paths(PLAIN)), b"x = 1"))


def record(draw: st.DrawFn, draft: Draft) -> None:
    entry = next(one for one in draft.entries if one.name == f"{INFO}/RECORD")
    lines = entry.body.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    kind = draw(st.sampled_from(["drop", "twice", "move", "blank", "digest", "size", "endings"]))
    if kind == "drop":
        del lines[at]
    elif kind == "twice":
        lines.append(lines[at])
    elif kind == "move":
        lines.append(lines.pop(at))
    elif kind == "blank":
        lines.insert(at, b"")
    elif kind == "digest":
        lines[at] = lines[at].replace(
            b"sha256=", draw(st.sampled_from([b"md5=", b"sha512=", b"sha256=x", b""]))
        )
    elif kind == "size":
        lines[at] += b"0"
    entry.body = (b"\r\n" if kind == "endings" else b"\n").join(lines) + b"\n"


CHANGES = [
    *(reorder, reorder, store, store, mode, extra, header),
    *(duplicate, rename, stray, unsound, unrecorded, record, record),
]
