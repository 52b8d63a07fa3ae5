"""Wheels that a hub must refuse, each with the expected error code."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from archive_forge import (
    DATA,
    ENTRY_POINTS,
    INFO,
    MODULE,
    STEM,
    WHEEL_FILE,
    WHEEL_NAME,
    Entry,
    deflated,
    digest,
    metadata,
    wheel_of,
    zip_of,
)

MIB = 1024 * 1024


@dataclass(frozen=True)
class Case:
    """One upload to refuse."""

    label: str
    code: str
    build: Callable[[], bytes]
    filename: str = WHEEL_NAME
    fields: dict[str, str] = field(default_factory=dict)
    """Of the form."""


def with_first(**changes) -> Callable[[list[Entry]], None]:
    """Return an edit that changes the first member."""

    def edit(entries: list[Entry]) -> None:
        for name, value in changes.items():
            setattr(entries[0], name, value)

    return edit


def with_mode(name: str, mode: int) -> Callable[[list[Entry]], None]:
    """Return an edit that changes the mode of a member."""

    def edit(entries: list[Entry]) -> None:
        next(entry for entry in entries if entry.name == name).mode = mode

    return edit


def put_before(index: int, stray: bytes) -> Callable[[list[Entry]], None]:
    """Return an edit that puts stray bytes in front of a member."""

    def edit(entries: list[Entry]) -> None:
        entries[index].before = stray

    return edit


def local(**fields) -> bytes:
    """Return a wheel with these fields in both headers of its first member."""
    return wheel_of(edit=with_first(local=fields))


def central(**fields) -> bytes:
    """Return a wheel with these fields in the first member's directory entry, but not in its local header."""
    return wheel_of(edit=with_first(central=fields))


def extra(number: int, body: bytes = b"") -> bytes:
    return struct.pack("<2H", number, len(body)) + body


def add(*more: Entry) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: [*entries, *more]


def path(name: str) -> bytes:
    """Return a wheel with an additional file, listed in RECORD."""
    quoted = '"' + name.replace('"', '""') + '"'
    row = f"{quoted},{digest(b'x = 1')},5"
    return wheel_of(record=lambda rows: [row, *rows], edit=add(Entry(name, b"x = 1")))


def rows(change: Callable[[str], str]) -> bytes:
    """Return a wheel whose RECORD has a changed row for its first file."""
    return wheel_of(record=lambda lines: [change(lines[0]), *lines[1:]])


def meta(*lines: str, version: str = "2.4", body: str = "Good.\n") -> bytes:
    return wheel_of(info={"METADATA": metadata(*lines, version=version, body=body)})


def raw_meta(text: bytes) -> bytes:
    return wheel_of(info={"METADATA": text})


def wheel_file(text: bytes) -> bytes:
    return wheel_of(info={"WHEEL": text})


def points(text: bytes) -> bytes:
    return wheel_of(info={"entry_points.txt": text})


def overlapping() -> bytes:
    """Return a wheel with two directory entries for the same local header."""
    whole = wheel_of()
    start = struct.unpack("<L", whole[-6:-2])[0]
    directory = whole[start:-22]
    first = directory[: 46 + len("good_env.py")]
    counts = struct.pack("<4H2LH", 0, 0, 6, 6, len(directory) + len(first), start, 0)
    return whole[:start] + first + directory + b"PK\x05\x06" + counts


def swapped(entries: list[bytes]) -> list[bytes]:
    return [entries[1], entries[0], *entries[2:]]


ZIP64_END = b"PK\x06\x06" + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, 5, 5, 100, 100)
FRAMING = [
    Case("no archive at all", "not_a_wheel", lambda: b"this is no archive"),
    Case("no bytes", "empty_file", lambda: b""),
    Case("an empty archive", "not_a_wheel", lambda: zip_of([])),
    Case("a source archive under a wheel's name", "not_a_wheel", lambda: b"\x1f\x8b" + b"\0" * 100),
    Case("cut in the end record", "not_a_wheel", lambda: wheel_of()[:-3]),
    Case("cut in the directory", "not_a_wheel", lambda: wheel_of()[:-60]),
    Case("cut in a member", "not_a_wheel", lambda: wheel_of()[:70]),
    Case("cut in a local header", "not_a_wheel", lambda: wheel_of()[:20]),
    Case("bytes before", "not_a_wheel", lambda: wheel_of(prefix=b"#!/bin/sh\n")),
    Case(
        "bytes between members",
        "zip_framing",
        lambda: wheel_of(edit=put_before(1, b"?" * 9)),
    ),
    Case(
        "a hidden member between members",
        "zip_mismatch",
        lambda: wheel_of(edit=put_before(1, zip_of([Entry("evil.py", b"x")])[: -22 - 46 - 7])),
    ),
    Case("bytes before the directory", "zip_framing", lambda: wheel_of(before_directory=b"?" * 20)),
    Case("bytes before the end record", "zip_framing", lambda: wheel_of(before_end=b"?" * 20)),
    Case("bytes after", "zip_framing", lambda: wheel_of(suffix=b"\n")),
    Case("a whole archive after", "zip_framing", lambda: wheel_of() + wheel_of()),
    Case("two end records", "zip_framing", lambda: wheel_of() + wheel_of()[-22:]),
    Case("an archive in the comment", "zip_comment", lambda: wheel_of(comment=wheel_of())),
    Case("an archive comment", "zip_comment", lambda: wheel_of(comment=b"hello")),
    Case("a member comment", "zip_comment", lambda: wheel_of(edit=with_first(comment=b"hello"))),
    Case("fewer members counted", "zip_framing", lambda: wheel_of(end={"total": 4, "here": 4})),
    Case("more members counted", "zip_framing", lambda: wheel_of(end={"total": 6})),
    Case("a wrong directory size", "zip_framing", lambda: wheel_of(end={"size": 7})),
    Case("a wrong directory offset", "zip_framing", lambda: wheel_of(end={"offset": 0})),
    Case("a second disk", "zip_framing", lambda: wheel_of(end={"disk": 1})),
    Case(
        "the last member left out of the directory",
        "zip_framing",
        lambda: wheel_of(central_order=lambda heads: heads[:-1], end={"total": 4, "here": 4}),
    ),
    Case(
        "the first member left out of the directory",
        "zip_mismatch",
        lambda: wheel_of(central_order=lambda heads: heads[1:], end={"total": 4, "here": 4}),
    ),
    Case(
        "a member only in the directory",
        "zip_framing",
        lambda: wheel_of(central_order=lambda whole: [*whole, whole[-1]]),
    ),
    Case("overlapping members", "zip_mismatch", overlapping),
    Case("a directory in another order", "zip_mismatch", lambda: wheel_of(central_order=swapped)),
    Case("another name in the directory", "zip_mismatch", lambda: central(name=b"evil_env.py")),
    Case("another size in the directory", "zip_mismatch", lambda: central(size=1)),
    Case("another packed size in the directory", "zip_mismatch", lambda: central(packed=1)),
    Case("another CRC in the directory", "zip_mismatch", lambda: central(crc=1)),
    Case("another method in the directory", "zip_mismatch", lambda: central(method=0)),
    Case("another flag in the directory", "zip_mismatch", lambda: central(flags=0x800)),
    Case("another time in the directory", "zip_mismatch", lambda: central(time=1)),
    Case("another offset in the directory", "zip_mismatch", lambda: central(offset=1)),
    Case("another disk in the directory", "zip_mismatch", lambda: central(disk=1)),
    Case("a data descriptor", "data_descriptor", lambda: local(flags=0x08)),
    Case("an encrypted member", "encrypted_member", lambda: local(flags=0x01)),
    Case("strong encryption", "encrypted_member", lambda: local(flags=0x41)),
    Case("a masked header", "encrypted_member", lambda: local(flags=0x2000)),
    Case("patched data", "bad_flags", lambda: local(flags=0x20)),
    Case("bzip2", "bad_compression", lambda: local(method=12)),
    Case("lzma", "bad_compression", lambda: local(method=14)),
    Case("deflate64", "bad_compression", lambda: local(method=9)),
    Case("zstandard", "bad_compression", lambda: local(method=93)),
    Case("a wrong CRC", "bad_checksum", lambda: local(crc=0)),
    Case(
        "a wrong CRC of a stored member",
        "bad_checksum",
        lambda: wheel_of(edit=with_first(method=0, local={"crc": 5})),
    ),
    Case("garbage for deflate", "corrupt_member", lambda: wheel_of(edit=with_first(packed=b"\xff" * 40))),
    Case(
        "deflate that does not end",
        "corrupt_member",
        lambda: wheel_of(edit=with_first(packed=deflated(MODULE)[:-4])),
    ),
    Case(
        "bytes after the end of deflate",
        "corrupt_member",
        lambda: wheel_of(edit=with_first(packed=deflated(MODULE) + b"tail")),
    ),
    Case("more bytes than said", "size_mismatch", lambda: local(size=3)),
    Case("fewer bytes than said", "size_mismatch", lambda: local(size=len(MODULE) + 1)),
    Case(
        "a stored member of two sizes",
        "size_mismatch",
        lambda: wheel_of(edit=with_first(method=0, local={"size": 3})),
    ),
    Case(
        "a name in Latin-1",
        "bad_name_encoding",
        lambda: wheel_of(edit=add(Entry(b"caf\xe9.py", local={"flags": 0}))),
    ),
    Case(
        "a name that only says it is UTF-8",
        "bad_name_encoding",
        lambda: wheel_of(edit=add(Entry(b"caf\xe9.py"))),
    ),
    Case(
        "a UTF-8 name without its flag",
        "bad_name_encoding",
        lambda: wheel_of(edit=add(Entry("café.py", local={"flags": 0}))),
    ),
    Case(
        "a Unicode path field",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(extra=extra(0x7075, b"\1\0\0\0\0evil.py"))),
    ),
    Case(
        "a Unicode path field in the directory",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(central_extra=extra(0x7075, b"\1\0\0\0\0evil.py"))),
    ),
    Case(
        "an extra field twice",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(extra=extra(0x5455, b"\1") * 2)),
    ),
    Case(
        "an extra field cut off",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(extra=b"\x55\x54\xff\x00\1")),
    ),
    Case(
        "an extra field of three bytes",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(extra=b"\x55\x54\0")),
    ),
    Case(
        "a symbolic link in an extra field",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(extra=extra(0x756E, b"\0" * 14))),
    ),
    Case(
        "AES in an extra field",
        "zip_extra_field",
        lambda: wheel_of(edit=with_first(extra=extra(0x9901, b"\0" * 7))),
    ),
    Case(
        "ZIP64 in the directory",
        "zip64",
        lambda: wheel_of(edit=with_first(central_extra=extra(1, b"\0" * 8))),
    ),
    Case(
        "ZIP64 that contradicts its header",
        "zip64",
        lambda: wheel_of(edit=with_first(extra=extra(1, b"\5" + b"\0" * 15))),
    ),
    Case("ZIP64 of another length", "zip64", lambda: wheel_of(edit=with_first(extra=extra(1, b"\0" * 8)))),
    Case("ZIP64 of 4 GiB", "zip64", lambda: wheel_of(edit=with_first(extra=extra(1, b"\xff" * 16)))),
    Case("sizes left to a missing ZIP64 field", "zip64", lambda: local(size=0xFFFFFFFF, packed=0xFFFFFFFF)),
    Case("a ZIP64 end record", "zip64", lambda: wheel_of(before_end=ZIP64_END)),
    Case("a ZIP64 end record before the directory", "zip64", lambda: wheel_of(before_directory=ZIP64_END)),
    Case("a digital signature", "zip_framing", lambda: wheel_of(before_end=b"PK\x05\x05\0\0")),
]
MEMBERS = [
    Case("traversal", "unsafe_path", lambda: path("../../evil.py")),
    Case("traversal inside", "unsafe_path", lambda: path("a/../b.py")),
    Case("a single dot", "unsafe_path", lambda: path("./evil.py")),
    Case("an empty part", "unsafe_path", lambda: path("a//evil.py")),
    Case("an absolute path", "unsafe_path", lambda: path("/etc/evil.py")),
    Case("a drive", "unsafe_path", lambda: path("C:/evil.py")),
    Case("a drive without a slash", "unsafe_path", lambda: path("C:evil.py")),
    Case("an alternate data stream", "unsafe_path", lambda: path("good.py:evil")),
    Case("backslashes", "unsafe_path", lambda: path("a\\..\\evil.py")),
    Case("a UNC path", "unsafe_path", lambda: path("\\\\server\\share\\evil.py")),
    Case("a wildcard", "unsafe_path", lambda: path("a*.py")),
    Case("a quotation mark", "unsafe_path", lambda: path('a".py')),
    Case("NUL in a name", "unsafe_path", lambda: wheel_of(edit=add(Entry("good.py\0.txt")))),
    Case("a line break in a name", "unsafe_path", lambda: path("a\nb.py")),
    Case("an escape in a name", "unsafe_path", lambda: path("a\x1b[31m.py")),
    Case("DEL in a name", "unsafe_path", lambda: path("a\x7f.py")),
    Case("a bidirectional override in a name", "unsafe_path", lambda: path("a\u202eyp.py")),
    Case("a zero-width space in a name", "unsafe_path", lambda: path("good_env\u200b.py")),
    Case("a device of Windows", "unsafe_path", lambda: path("con.py")),
    Case("a folder named as a device", "unsafe_path", lambda: path("Aux/a.py")),
    Case("a port of Windows", "unsafe_path", lambda: path("data/com1.tar.gz")),
    Case("a final dot", "unsafe_path", lambda: path("a./b.py")),
    Case("a final space", "unsafe_path", lambda: path("b.py ")),
    Case("an empty name", "unsafe_path", lambda: wheel_of(edit=add(Entry("", b"x")))),
    Case("a name of 300 bytes", "path_too_long", lambda: path("a" * 300 + ".py")),
    Case(
        "a path of 600 characters",
        "path_too_long",
        lambda: path(
            "abcdefgh/" * 60 + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.py"
        ),
    ),
    Case("a path 80 folders deep", "path_too_long", lambda: path("a/" * 80 + "a.py")),
    Case("a member twice", "duplicate_member", lambda: wheel_of(edit=add(Entry("good_env.py", b"evil = 1")))),
    Case(
        "the same member twice", "duplicate_member", lambda: wheel_of(edit=add(Entry("good_env.py", MODULE)))
    ),
    Case(
        "METADATA twice",
        "duplicate_member",
        lambda: wheel_of(edit=add(Entry(f"{INFO}/METADATA", metadata()))),
    ),
    Case(
        "a folder twice",
        "duplicate_member",
        lambda: wheel_of(edit=add(Entry("a/", mode=0o40755), Entry("a/", mode=0o40755))),
    ),
    Case("two spellings by case", "colliding_members", lambda: path("Good_Env.py")),
    Case(
        "two spellings of a folder", "colliding_members", lambda: wheel_of({"pkg/a.py": b"", "Pkg/b.py": b""})
    ),
    Case(
        "two Unicode forms",
        "colliding_members",
        lambda: wheel_of({"caf\u00e9.py": b"", "cafe\u0301.py": b""}),
    ),
    Case("a ligature", "colliding_members", lambda: wheel_of({"ﬁle.py": b"", "file.py": b""})),
    Case("a sharp s", "colliding_members", lambda: wheel_of({"straße.py": b"", "strasse.py": b""})),
    Case(
        "a file over purelib",
        "colliding_members",
        lambda: wheel_of({f"{DATA}/purelib/good_env.py": b"evil = 1"}),
    ),
    Case(
        "purelib over platlib",
        "colliding_members",
        lambda: wheel_of({f"{DATA}/purelib/a.py": b"", f"{DATA}/platlib/a.py": b""}),
    ),
    Case("a file below a file", "file_and_folder", lambda: wheel_of({"a": b"", "a/b.py": b""})),
    Case("a file above a file", "file_and_folder", lambda: wheel_of({"a/b.py": b"", "A": b""})),
    Case(
        "a folder where a file is",
        "file_and_folder",
        lambda: wheel_of(edit=add(Entry("good_env.py/", mode=0o40755))),
    ),
    Case("a folder by mode alone", "file_and_folder", lambda: wheel_of(edit=with_first(mode=0o40755))),
    Case("a folder by name alone", "file_and_folder", lambda: wheel_of(edit=add(Entry("a/", mode=0o100644)))),
    Case(
        "a folder with content", "special_member", lambda: wheel_of(edit=add(Entry("a/", b"x", mode=0o40755)))
    ),
    Case("a symbolic link", "link_member", lambda: wheel_of(edit=with_first(mode=0o120777))),
    Case("a device", "special_member", lambda: wheel_of(edit=with_first(mode=0o20666))),
    Case("a pipe", "special_member", lambda: wheel_of(edit=with_first(mode=0o10666))),
    Case("a set-user-id file", "special_member", lambda: wheel_of(edit=with_first(mode=0o104755))),
    Case("20,001 members", "too_many_members", lambda: wheel_of({f"m/{n}.py": b"" for n in range(20_000)})),
    Case(
        "zeros that unpack to 60 MiB", "compression_bomb", lambda: wheel_of({"zeros.bin": b"\0" * (60 * MIB)})
    ),
    Case(
        "many small bombs",
        "compression_bomb",
        lambda: wheel_of({f"z/{n}.bin": b"\0" * MIB for n in range(40)}),
    ),
    Case("a member that says 3 GiB", "too_large_unpacked", lambda: local(size=3 * 1024 * MIB)),
    Case(
        "a bomb that says it is small",
        "size_mismatch",
        lambda: wheel_of(
            edit=add(Entry("zeros.bin", packed=deflated(b"\0" * (60 * MIB)), local={"size": 9}))
        ),
    ),
    Case("RECORD of 9 MiB", "too_large_metadata", lambda: wheel_of(record=bytes(range(48, 58)) * 900_000)),
]
CONTENTS = [
    Case("no dist-info", "bad_dist_info", lambda: zip_of([Entry("good_env.py", MODULE)])),
    Case("two dist-infos", "bad_dist_info", lambda: wheel_of({"pip-1.0.dist-info/METADATA": b"Name: pip"})),
    Case(
        "two spellings of one dist-info", "bad_dist_info", lambda: wheel_of({"good.env-1.0.dist-info/x": b""})
    ),
    Case("dist-info of another case", "bad_dist_info", lambda: wheel_of({f"{STEM}.DIST-INFO/x": b""})),
    Case("a file named dist-info", "bad_dist_info", lambda: wheel_of({"x.dist-info": b""})),
    Case("dist-info of another name", "bad_dist_info", lambda: wheel_of(), "other-1.0-py3-none-any.whl"),
    Case(
        "dist-info of another version", "bad_dist_info", lambda: wheel_of(), "good_env-1.1-py3-none-any.whl"
    ),
    Case(
        "dist-info below a folder", "bad_dist_info", lambda: zip_of([Entry(f"a/{INFO}/METADATA", metadata())])
    ),
    Case("no METADATA", "missing_metadata", lambda: wheel_of(without=("METADATA",))),
    Case("no WHEEL", "missing_metadata", lambda: wheel_of(without=("WHEEL",))),
    Case("no RECORD", "missing_metadata", lambda: wheel_of(without=("RECORD",))),
    Case(
        "METADATA in another case",
        "missing_metadata",
        lambda: wheel_of({f"{INFO}/metadata": metadata()}, without=("METADATA",)),
    ),
    Case("RECORD of itself alone", "record_missing", lambda: wheel_of(record=f"{INFO}/RECORD,,".encode())),
    Case("a file not in RECORD", "record_missing", lambda: wheel_of(edit=add(Entry("evil.py", b"x")))),
    Case(
        "METADATA not in RECORD",
        "record_missing",
        lambda: wheel_of(record=lambda whole: [row for row in whole if "METADATA" not in row]),
    ),
    Case(
        "RECORD names more",
        "record_extra",
        lambda: wheel_of(record=lambda whole: [*whole, f"ghost.py,{digest(b'')},0"]),
    ),
    Case("RECORD names a path another way", "record_extra", lambda: rows(lambda row: "./" + row)),
    Case(
        "a wrong digest",
        "record_digest",
        lambda: rows(lambda row: f"good_env.py,{digest(b'x')},{len(MODULE)}"),
    ),
    Case(
        "a digest of hexadecimal",
        "record_digest",
        lambda: rows(lambda row: f"good_env.py,sha256={'0' * 64},{len(MODULE)}"),
    ),
    Case(
        "a padded digest",
        "record_digest",
        lambda: rows(lambda row: row.replace(f",{len(MODULE)}", f"=,{len(MODULE)}")),
    ),
    Case(
        "a wrong sha512",
        "record_digest",
        lambda: rows(lambda row: f"good_env.py,{digest(b'x', 'sha512')},{len(MODULE)}"),
    ),
    Case(
        "a wrong digest of RECORD",
        "record_digest",
        lambda: wheel_of(record=lambda whole: [*whole[:-1], f"{INFO}/RECORD,{digest(b'')},0"]),
    ),
    Case(
        "md5",
        "record_weak_digest",
        lambda: rows(lambda row: f"good_env.py,{digest(MODULE, 'md5')},{len(MODULE)}"),
    ),
    Case(
        "sha1",
        "record_weak_digest",
        lambda: rows(lambda row: f"good_env.py,{digest(MODULE, 'sha1')},{len(MODULE)}"),
    ),
    Case("no digest", "record_weak_digest", lambda: rows(lambda row: f"good_env.py,,{len(MODULE)}")),
    Case("a wrong size", "record_size", lambda: rows(lambda row: row + "0")),
    Case("no size", "record_size", lambda: rows(lambda row: f"good_env.py,{digest(MODULE)},")),
    Case(
        "a size with a plus",
        "record_size",
        lambda: rows(lambda row: row.replace(f",{len(MODULE)}", f",+{len(MODULE)}")),
    ),
    Case("two columns", "bad_record", lambda: rows(lambda row: "good_env.py,")),
    Case("four columns", "bad_record", lambda: rows(lambda row: row + ",x")),
    Case(
        "an empty line, at which pip fails", "bad_record", lambda: wheel_of(record=lambda whole: ["", *whole])
    ),
    Case("a row twice", "bad_record", lambda: wheel_of(record=lambda whole: [whole[0], *whole])),
    Case("an open quotation", "bad_record", lambda: wheel_of(record=lambda whole: [*whole, '"good_env.py'])),
    Case("RECORD that is not UTF-8", "bad_record", lambda: wheel_of(record=b"\xff\xfe,,")),
    Case(
        "a .data folder of another name",
        "bad_data_folder",
        lambda: wheel_of({"other-1.0.data/purelib/a.py": b""}),
    ),
    Case(
        "two .data folders",
        "bad_data_folder",
        lambda: wheel_of({f"{DATA}/purelib/a.py": b"", "x.data/purelib/b.py": b""}),
    ),
    Case("a .data scheme that is none", "bad_data_folder", lambda: wheel_of({f"{DATA}/stdlib/a.py": b""})),
    Case("a file right below .data", "bad_data_folder", lambda: wheel_of({f"{DATA}/a.py": b""})),
    *(
        Case(f"data at {path}", "bad_data_folder", lambda path=path: wheel_of({f"{DATA}/data/{path}": b""}))
        for path in (
            *("good_env.py", "pyvenv.cfg", "PyVenv.CFG", "pip.conf", "lib64", "man/man1/x.1"),
            *("lib/libc.so.6", "lib/evil.pth", "lib/sitecustomize.py"),
            *("bin/python", "BIN/Python3", "bin/activate", "Scripts/python.exe", "lib/python3.12/os.py"),
            *("Share/x", "shared/x", "share", "\u017fhare/x", "\uff53hare/x", "sh\u0430re/x", "data/share/x"),
        )
    ),
    *(
        Case(f"data by way of {path}", "unsafe_path", lambda path=path: wheel_of({f"{DATA}/{path}": b""}))
        for path in (
            *("data/share/../pyvenv.cfg", "data/share//../../x", "data/share/./x", "data/etc//pyvenv.cfg"),
            *("data/share/..\\..\\pyvenv.cfg", "data/etc/C:x", "data/share/../../../x", "data/share/x."),
            *(
                "purelib/../../pyvenv.cfg",
                "headers/../x",
                "platlib//x",
                "scripts/../python",
                "data/share/NUL",
            ),
        )
    ),
    Case(
        "a link among the data",
        "link_member",
        lambda: wheel_of({f"{DATA}/data/share/x": b"/"}, edit=with_mode(f"{DATA}/data/share/x", 0o120777)),
    ),
    Case(
        "data in site-packages",
        "bad_data_folder",
        lambda: wheel_of({f"{DATA}/data/lib/python3.12/site-packages/evil.pth": b"import evil"}),
    ),
    Case("data among the commands", "bad_data_folder", lambda: wheel_of({f"{DATA}/data/bin/ls": b""})),
    Case(
        "another distribution below .data",
        "bad_dist_info",
        lambda: wheel_of({f"{DATA}/purelib/pip-99.dist-info/METADATA": b"Name: pip"}),
    ),
    Case("an egg-info", "bad_dist_info", lambda: wheel_of({"pip.egg-info/PKG-INFO": b"Name: pip"})),
    Case(
        "a script below a folder", "unsafe_script", lambda: wheel_of({f"{DATA}/scripts/a/b": b"#!python\n"})
    ),
    *(
        Case(
            f"a script named {name}",
            "unsafe_script",
            lambda name=name: wheel_of({f"{DATA}/scripts/{name}": b""}),
        )
        for name in (
            *(
                "python",
                "PYTHON3.12",
                "python3-config",
                "pythonw.exe",
                "python3.13t",
                "pypy3",
                "pydoc.bat",
                "pip",
            ),
            *("pip3.12", "activate", "activate.xsh", "activate_this.py", "deactivate.bat", "Activate.ps1"),
        )
    ),
    Case(
        "an entry point named pip",
        "unsafe_script",
        lambda: points(ENTRY_POINTS + b"[console_scripts]\npip3.12 = good_env:load_environment\n"),
    ),
    Case("a file named .data", "bad_data_folder", lambda: wheel_of({"x.data": b""})),
    Case("WHEEL without a version", "bad_wheel_file", lambda: wheel_file(WHEEL_FILE[19:])),
    Case("WHEEL of version 2", "bad_wheel_file", lambda: wheel_file(WHEEL_FILE.replace(b"1.0", b"2.0"))),
    Case(
        "WHEEL with two versions", "bad_wheel_file", lambda: wheel_file(b"Wheel-Version: 1.0\n" + WHEEL_FILE)
    ),
    Case(
        "WHEEL unsure of purelib", "bad_wheel_file", lambda: wheel_file(WHEEL_FILE.replace(b"true", b"yes"))
    ),
    Case(
        "WHEEL without a tag",
        "bad_wheel_file",
        lambda: wheel_file(WHEEL_FILE.replace(b"Tag: py3-none-any\n", b"")),
    ),
    Case("WHEEL with half a tag", "bad_wheel_file", lambda: wheel_file(WHEEL_FILE + b"Tag: py3-none\n")),
    Case(
        "WHEEL with a million tags",
        "bad_wheel_file",
        lambda: wheel_file(WHEEL_FILE + b"Tag: " + b"-".join([b".".join([b"a"] * 100)] * 3) + b"\n"),
    ),
    Case("WHEEL that is not UTF-8", "bad_wheel_file", lambda: wheel_file(WHEEL_FILE + b"X: \xff\n")),
    Case(
        "WHEEL with a lone carriage return",
        "bad_wheel_file",
        lambda: wheel_file(WHEEL_FILE + b"X: a\rTag: b\n"),
    ),
    Case("WHEEL of 300 kB", "too_large_metadata", lambda: wheel_file(WHEEL_FILE + b"X: y\n" * 60_000)),
    Case("entry points of 300 kB", "too_large_metadata", lambda: points(ENTRY_POINTS + b"#" * 300_000)),
    Case(
        "a folder for each of 20,001 names",
        "too_many_members",
        lambda: wheel_of({"/".join(f"f{n}{k}" for k in range(30)) + "/a": b"" for n in range(700)}),
    ),
    Case("WHEEL with another tag", "tag_mismatch", lambda: wheel_file(WHEEL_FILE.replace(b"py3", b"cp312"))),
    Case("WHEEL with one more tag", "tag_mismatch", lambda: wheel_file(WHEEL_FILE + b"Tag: py2-none-any\n")),
    Case("a file name with one more tag", "tag_mismatch", lambda: wheel_of(), f"{STEM}-py2.py3-none-any.whl"),
    Case("WHEEL with a build", "tag_mismatch", lambda: wheel_file(WHEEL_FILE + b"Build: 7\n")),
    Case("a file name with a build", "tag_mismatch", lambda: wheel_of(), f"{STEM}-7-py3-none-any.whl"),
    Case("entry points that are no table", "bad_entry_points", lambda: points(b"[wander.environments\nx")),
    Case("entry points twice", "bad_entry_points", lambda: points(ENTRY_POINTS * 2)),
    Case("entry points that are not UTF-8", "bad_entry_points", lambda: points(b"[a]\nb = \xff")),
    Case(
        "an entry point that is a statement",
        "bad_entry_points",
        lambda: points(b"[wander.environments]\nx = import os; evil()\n"),
    ),
    Case(
        "a script outside of bin",
        "unsafe_script",
        lambda: points(ENTRY_POINTS + b"[console_scripts]\n../../evil = a:b\n"),
    ),
    Case(
        "a script with a space", "unsafe_script", lambda: points(ENTRY_POINTS + b"[gui_scripts]\na b = a:b\n")
    ),
    Case(
        "a script in two groups",
        "unsafe_script",
        lambda: points(ENTRY_POINTS + b"[console_scripts]\na = a:b\n[gui_scripts]\nA = a:b\n"),
    ),
    Case(
        "a script from .data and from an entry point",
        "unsafe_script",
        lambda: wheel_of(
            {f"{DATA}/scripts/run": b"#!python\n"},
            info={"entry_points.txt": ENTRY_POINTS + b"[console_scripts]\nrun = a:b\n"},
        ),
    ),
    Case(
        "no environment",
        "no_environment",
        lambda: wheel_of({"good_env.py": b"x = 1\n"}, without=("entry_points.txt",)),
    ),
    Case(
        "a loader that is only nested",
        "no_environment",
        lambda: wheel_of({"good_env.py": b"", "a/b/c.py": MODULE}, without=("entry_points.txt",)),
    ),
    Case(
        "a loader that is only text",
        "no_environment",
        lambda: wheel_of(
            {"good_env.py": b'"""\ndef load_environment():\n    ...\n"""\n'}, without=("entry_points.txt",)
        ),
    ),
    Case(
        "a loader in source that does not parse",
        "no_environment",
        lambda: wheel_of({"good_env.py": MODULE + b"("}, without=("entry_points.txt",)),
    ),
]
METADATA = [
    Case("METADATA that is text", "bad_metadata", lambda: raw_meta(b"hello")),
    Case("METADATA without bytes", "bad_metadata", lambda: raw_meta(b"")),
    Case("METADATA that is not UTF-8", "bad_metadata", lambda: raw_meta(metadata() + b"\xff")),
    Case("METADATA in UTF-16", "bad_metadata", lambda: raw_meta(metadata().decode().encode("utf-16"))),
    Case("METADATA after a byte order mark", "bad_metadata", lambda: raw_meta(b"\xef\xbb\xbf" + metadata())),
    Case("NUL in the README", "bad_metadata", lambda: meta(body="a\0b")),
    Case("NUL in the summary", "bad_metadata", lambda: raw_meta(metadata().replace(b"Good.", b"Go\0d.", 1))),
    Case("a lone carriage return", "bad_metadata", lambda: meta("Author: x\rRequires-Dist: evil")),
    Case("a line separator", "bad_metadata", lambda: meta("Author: x\u2028Requires-Dist: evil")),
    Case("a next-line character", "bad_metadata", lambda: meta("Author: x\u0085Requires-Dist: evil")),
    Case("a line that is no field", "bad_metadata", lambda: meta("this is no field", "Requires-Dist: evil")),
    Case("a folded first line", "bad_metadata", lambda: raw_meta(b" x\n" + metadata())),
    Case("an empty first line", "bad_metadata", lambda: raw_meta(b"\n" + metadata())),
    Case("an unknown field", "bad_metadata", lambda: meta("Color: red")),
    Case("two names", "bad_metadata", lambda: meta("Name: other")),
    Case("two versions", "bad_metadata", lambda: meta("Version: 2.0")),
    Case("two summaries", "bad_metadata", lambda: meta("Summary: Again.")),
    Case("no name", "bad_metadata", lambda: raw_meta(b"Metadata-Version: 2.4\nVersion: 1.0\n")),
    Case("no version", "bad_metadata", lambda: raw_meta(b"Metadata-Version: 2.4\nName: good-env\n")),
    Case("no metadata version", "bad_metadata", lambda: raw_meta(b"Name: good-env\nVersion: 1.0\n")),
    Case("metadata of version 9.9", "bad_metadata", lambda: meta(version="9.9")),
    Case("metadata of version 2.7", "bad_metadata", lambda: meta(version="2.7")),
    Case(
        "a name with spaces", "bad_metadata", lambda: raw_meta(metadata().replace(b"good-env", b"good env"))
    ),
    Case("a version that is none", "bad_metadata", lambda: raw_meta(metadata().replace(b"1.0", b"one"))),
    Case("a requirement that is none", "bad_metadata", lambda: meta("Requires-Dist: wander-sdk; nonsense")),
    Case(
        "a requirement with a variable in its address",
        "unsafe_requirement",
        lambda: meta("Requires-Dist: a @ https://files.example/${TOKEN}/a-1-py3-none-any.whl"),
    ),
    Case("a requirement with a broken version", "bad_metadata", lambda: meta("Requires-Dist: a >=x")),
    Case(
        "a marker of 1,000 brackets",
        "bad_metadata",
        lambda: meta("Requires-Dist: a; " + "(" * 1000 + "os_name == 'x'" + ")" * 1000),
    ),
    Case("a Python that is none", "bad_metadata", lambda: meta("Requires-Python: three")),
    Case("a content type that is none", "bad_metadata", lambda: meta("Description-Content-Type: text/html")),
    Case("an extra that is none", "bad_metadata", lambda: meta("Provides-Extra: a b")),
    Case("a license that is no expression", "bad_metadata", lambda: meta("License-Expression: Free Beer")),
    Case("two licenses", "bad_metadata", lambda: meta("License-Expression: MIT\nLicense: MIT")),
    Case("a license file outside", "bad_metadata", lambda: meta("License-File: ../LICENSE")),
    Case("a field before its time", "bad_metadata", lambda: meta("License-Expression: MIT", version="2.1")),
    Case("a dynamic name", "bad_metadata", lambda: meta("Dynamic: Name")),
    Case("an import name that is none", "bad_metadata", lambda: meta("Import-Name: a b", version="2.5")),
    Case("a license file that is not there", "license_file_missing", lambda: meta("License-File: LICENSE")),
    Case(
        "another name inside", "name_mismatch", lambda: raw_meta(metadata().replace(b"good-env", b"evil-env"))
    ),
    Case("another version inside", "name_mismatch", lambda: raw_meta(metadata().replace(b"1.0", b"1.1"))),
    Case(
        "a summary of 513 characters",
        "text_too_long",
        lambda: raw_meta(metadata().replace(b"Good.", b"x" * 513, 1)),
    ),
    Case("a README of 3 MiB", "text_too_long", lambda: meta(body="x" * (3 * MIB))),
    Case("an author of 5,000 characters", "text_too_long", lambda: meta("Author: " + "x" * 5000)),
    Case("keywords of 5,000 characters", "text_too_long", lambda: meta("Keywords: " + "x" * 5000)),
    Case(
        "a project URL of 5,000 characters",
        "text_too_long",
        lambda: meta("Project-URL: a, https://a/" + "x" * 5000),
    ),
    Case("a requirement of 5,000 characters", "text_too_long", lambda: meta("Requires-Dist: " + "x" * 5000)),
    Case(
        "a name of 200 characters",
        "text_too_long",
        lambda: raw_meta(metadata().replace(b"good-env", b"x" * 200)),
    ),
    Case(
        "a version of 100 characters",
        "text_too_long",
        lambda: raw_meta(metadata().replace(b"1.0", b"1" * 100)),
    ),
    Case("a license of 70,000 characters", "text_too_long", lambda: meta("License: " + "x" * 70_000)),
    Case("1,001 requirements", "text_too_long", lambda: meta(*[f"Requires-Dist: a{n}" for n in range(1001)])),
    Case(
        "1,001 classifiers",
        "text_too_long",
        lambda: meta(*[f"Classifier: Private :: {n}" for n in range(1001)]),
    ),
    Case(
        "300,000 unknown fields",
        "bad_metadata",
        lambda: raw_meta(metadata(*[f"X-{n}: y" for n in range(300_000)])),
    ),
    Case("200,000 folded lines", "bad_metadata", lambda: meta("Author: x", *[" y"] * 200_000)),
    Case(
        "1,000 requirements of 600 characters",
        "text_too_long",
        lambda: meta(*[f"Requires-Dist: a{n}; {' or '.join(['os_name==1'] * 40)}" for n in range(1000)]),
    ),
    Case("METADATA of 9 MiB", "too_large_metadata", lambda: meta(body="x" * (9 * MIB))),
]
POLICY = [
    Case("sitecustomize", "site_customization", lambda: wheel_of({"sitecustomize.py": b""})),
    Case(
        "usercustomize as a package",
        "site_customization",
        lambda: wheel_of({"usercustomize/__init__.py": b""}),
    ),
    Case(
        "sitecustomize through .data",
        "site_customization",
        lambda: wheel_of({f"{DATA}/purelib/sitecustomize.py": b""}),
    ),
    Case("a module of Python", "shadows_stdlib", lambda: wheel_of({"random.py": b""})),
    Case("a package of Python", "shadows_stdlib", lambda: wheel_of({"json/__init__.py": b""})),
    Case(
        "a module of Python through .data",
        "shadows_stdlib",
        lambda: wheel_of({f"{DATA}/platlib/ssl.so": b""}),
    ),
    Case("a module of Wander", "shadows_wander", lambda: wheel_of({"wander/evil.py": b""})),
    Case("the classic API", "shadows_wander", lambda: wheel_of({"verifiers.py": b""})),
]
FORM = [
    Case("a wheel without tags", "bad_filename", wheel_of, "good_env-1.0.whl"),
    Case("a wheel with a path", "bad_filename", wheel_of, "a/../good_env-1.0-py3-none-any.whl"),
    Case("a wheel of no version", "bad_filename", wheel_of, "good_env-one-py3-none-any.whl"),
    Case(
        "a wheel with a million tags",
        "bad_filename",
        wheel_of,
        f"{STEM}-{'.'.join('a' * 30)}-{'.'.join('b' * 30)}-any.whl",
    ),
    Case("a wheel with an empty tag", "bad_filename", wheel_of, f"{STEM}-py3..py2-none-any.whl"),
    Case("a wheel with a bad build", "bad_filename", wheel_of, f"{STEM}-x1-py3-none-any.whl"),
    Case("a wheel under the name of an egg", "bad_filename", wheel_of, f"{STEM}.egg"),
    Case("a file type that is another", "bad_form", wheel_of, fields={"filetype": "sdist"}),
    Case("an action that is no upload", "bad_form", wheel_of, fields={":action": "submit"}),
    Case("a protocol of version 2", "bad_form", wheel_of, fields={"protocol_version": "2"}),
    Case("another md5", "digest_mismatch", wheel_of, fields={"md5_digest": "0" * 32}),
    Case("another sha256", "digest_mismatch", wheel_of, fields={"sha256_digest": "0" * 64}),
    Case("another blake2b", "digest_mismatch", wheel_of, fields={"blake2_256_digest": "0" * 64}),
    Case("a sha256 that is none", "digest_mismatch", wheel_of, fields={"sha256_digest": "é"}),
    Case("damage on the way", "digest_mismatch", lambda: wheel_of()[:-9], fields={"sha256_digest": "0" * 64}),
    Case("another name in the form", "name_mismatch", wheel_of, fields={"name": "other"}),
    Case("another version in the form", "version_mismatch", wheel_of, fields={"version": "2.0"}),
    Case(
        "a version of 5,000 digits in the form", "version_mismatch", wheel_of, fields={"version": "1" * 5000}
    ),
    Case("a report that is none", "bad_check_report", wheel_of, fields={"wander_check": "nonsense"}),
]
BAD_WHEELS = [*FRAMING, *MEMBERS, *CONTENTS, *METADATA, *POLICY, *FORM]
