"""Source archives that a hub must refuse, each with the expected error code."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable

from archive_forge import (
    MODULE,
    PROJECT,
    SDIST_NAME,
    STEM,
    TarEntry,
    metadata,
    packed,
    pax,
    sdist_of,
    tar_of,
    wheel_of,
)
from bad_wheels import Case

MIB = 1024 * 1024


def case(
    label: str, code: str, build: Callable[[], bytes], filename: str = SDIST_NAME, **fields: str
) -> Case:
    return Case(label, code, build, filename, fields)


def put(at: int, value: bytes) -> Callable[[bytearray], None]:
    """Return a change of a header's bytes."""

    def change(block: bytearray) -> None:
        block[at : at + len(value)] = value

    return change


def member(name: str, body: bytes = b"", **options) -> bytes:
    """Return a source archive with an additional member in its top folder."""
    return sdist_of(TarEntry(f"{STEM}/{name}", body, **options))


def with_pax(*records: tuple[str, str], size: int | None = None) -> bytes:
    """Return a source archive whose last member has a pax header."""
    return sdist_of(pax(*records), TarEntry(f"{STEM}/a", b"x" * 10, size=size))


def raw_pax(text: bytes) -> bytes:
    return sdist_of(TarEntry("pax", text, tarfile.XHDTYPE), TarEntry(f"{STEM}/a"))


def without(name: str) -> bytes:
    files = {"PKG-INFO": metadata(), "pyproject.toml": PROJECT, "good_env.py": MODULE}
    return sdist_of(files={key: body for key, body in files.items() if key != name})


def project(text: bytes) -> bytes:
    return sdist_of(files={"PKG-INFO": metadata(), "pyproject.toml": text})


def info(text: bytes) -> bytes:
    return sdist_of(files={"PKG-INFO": text, "pyproject.toml": PROJECT})


def damaged(at: int) -> bytes:
    whole = bytearray(sdist_of())
    whole[at] ^= 0xFF
    return bytes(whole)


GZIP = [
    case("no gzip", "not_an_sdist", lambda: b"no gzip"),
    case("no bytes in a source archive", "empty_file", lambda: b""),
    case("a wheel under the name of a source archive", "not_an_sdist", wheel_of),
    case("a tar archive that is not compressed", "not_an_sdist", lambda: tar_of([TarEntry(f"{STEM}/a")])),
    case("gzip of no tar", "not_an_sdist", lambda: gzip.compress(b"no tar" * 200)),
    case("gzip of nothing", "not_an_sdist", lambda: gzip.compress(b"")),
    case("gzip of an empty archive", "tar_framing", lambda: packed(b"\0" * 1024)),
    case("zlib in place of gzip", "not_an_sdist", lambda: zlib.compress(tar_of([TarEntry(f"{STEM}/a")]))),
    case("gzip cut in its header", "not_an_sdist", lambda: sdist_of()[:5]),
    case("gzip cut in the middle", "not_an_sdist", lambda: sdist_of()[:-40]),
    case("gzip without its trailer", "not_an_sdist", lambda: sdist_of()[:-8]),
    case("a wrong CRC of gzip", "not_an_sdist", lambda: damaged(-8)),
    case("a wrong length of gzip", "not_an_sdist", lambda: damaged(-1)),
    case("bytes after gzip", "trailing_data", lambda: sdist_of() + b"\n"),
    case("zeros after gzip", "trailing_data", lambda: sdist_of() + b"\0" * 100),
    case("a second gzip member", "trailing_data", lambda: sdist_of() + gzip.compress(b"x")),
    case("a second archive", "trailing_data", lambda: sdist_of() + sdist_of()),
    case("a wheel after gzip", "trailing_data", lambda: sdist_of() + wheel_of()),
    case(
        "damage of a source archive on the way",
        "digest_mismatch",
        lambda: damaged(99),
        sha256_digest="0" * 64,
    ),
]
FRAMING = [
    case("no end", "not_an_sdist", lambda: sdist_of(end=b"")),
    case("half an end", "not_an_sdist", lambda: sdist_of(end=b"\0" * 512)),
    case(
        "a member after the end",
        "tar_framing",
        lambda: sdist_of(end=b"\0" * 1024 + TarEntry("evil").blocks()),
    ),
    case(
        "a member after half an end",
        "tar_framing",
        lambda: sdist_of(end=b"\0" * 512 + TarEntry("evil").blocks()),
    ),
    case("text after the end", "tar_framing", lambda: sdist_of(end=b"\0" * 5000 + b"x")),
    case("a wrong checksum", "tar_framing", lambda: member("a", checksum=False)),
    case("a size that is no number", "tar_framing", lambda: member("a", header=put(124, b"zzzzzzzzzzz"))),
    case("a negative size", "tar_framing", lambda: member("a", header=put(124, b"\xff" * 12))),
    case("a huge size", "not_an_sdist", lambda: member("a", size=10 * MIB)),
    case(
        "a name that is not UTF-8", "tar_framing", lambda: member("a", header=put(len(STEM) + 1, b"\xff\xfe"))
    ),
    case(
        "a member cut off", "not_an_sdist", lambda: packed(tar_of([TarEntry(f"{STEM}/a", b"x" * 600)])[:1024])
    ),
    case("an extended header at the end", "tar_framing", lambda: sdist_of(pax(("path", "a")))),
    case(
        "two extended headers",
        "tar_extension",
        lambda: sdist_of(pax(("path", "a")), pax(("path", "b")), TarEntry("c")),
    ),
    case(
        "two kinds of extended header",
        "tar_extension",
        lambda: sdist_of(TarEntry("x", b"a\0", tarfile.GNUTYPE_LONGNAME), pax(("path", "b")), TarEntry("c")),
    ),
    case("a size that stands twice", "tar_extension", lambda: with_pax(("size", "0"))),
    case("a size that hides a member", "tar_extension", lambda: with_pax(("size", "10"), size=0)),
    case("a pax key that changes a member", "tar_extension", lambda: with_pax(("hdrcharset", "BINARY"))),
    case("a pax key of another program", "tar_extension", lambda: with_pax(("VENDOR.evil", "1"))),
    case("an empty pax header", "tar_extension", lambda: raw_pax(b"")),
    case(
        "an empty pax header at the end",
        "tar_extension",
        lambda: sdist_of(TarEntry("x", b"", tarfile.XHDTYPE)),
    ),
    case("a pax time that is no number", "tar_extension", lambda: with_pax(("mtime", "soon"))),
    case("a pax owner that is no number", "tar_extension", lambda: with_pax(("uid", "x"))),
    case("a link in a pax header", "tar_extension", lambda: with_pax(("linkpath", "/etc/passwd"))),
    case("a pax key twice", "tar_extension", lambda: with_pax(("path", "a"), ("path", "b"))),
    case("a pax header without lengths", "tar_extension", lambda: raw_pax(b"path=a\n")),
    case("a pax record that is too long", "tar_extension", lambda: raw_pax(b"99 path=a\n")),
    case("a pax record without a key", "tar_extension", lambda: raw_pax(b"6 =ab\n")),
    case("a pax record without a line break", "tar_extension", lambda: raw_pax(b"10 path=ab")),
    case("a pax record of length 0", "tar_extension", lambda: raw_pax(b"0 path=a\n")),
    case("a pax header that is not UTF-8", "tar_extension", lambda: raw_pax(b"11 path=\xff\xfe\n")),
    case("a pax header of 1 MiB", "tar_extension", lambda: with_pax(("comment", "x" * MIB))),
    case(
        "a global pax header with a path",
        "tar_extension",
        lambda: sdist_of(before=[pax(("path", "x"), kind=tarfile.XGLTYPE)]),
    ),
    case(
        "a GNU name of 1 MiB",
        "tar_extension",
        lambda: sdist_of(TarEntry("x", b"a" * MIB, tarfile.GNUTYPE_LONGNAME), TarEntry("y")),
    ),
    case(
        "a GNU name that is not UTF-8",
        "tar_extension",
        lambda: sdist_of(TarEntry("x", b"\xff", tarfile.GNUTYPE_LONGNAME), TarEntry("y")),
    ),
    case("a GNU sparse member", "sparse_member", lambda: member("a", type=tarfile.GNUTYPE_SPARSE)),
    case(
        "a pax sparse member",
        "sparse_member",
        lambda: with_pax(("GNU.sparse.major", "1"), ("GNU.sparse.realsize", str(10**12))),
    ),
]
MEMBERS = [
    case(
        "a symbolic link in a source archive",
        "link_member",
        lambda: member("a", type=tarfile.SYMTYPE, link="/etc/passwd"),
    ),
    case(
        "a link inside the archive", "link_member", lambda: member("a", type=tarfile.SYMTYPE, link="PKG-INFO")
    ),
    case("a hard link", "link_member", lambda: member("a", type=tarfile.LNKTYPE, link=f"{STEM}/PKG-INFO")),
    case("a long GNU link", "link_member", lambda: member("a", b"x" * 200, type=tarfile.GNUTYPE_LONGLINK)),
    case("a character device", "special_member", lambda: member("a", type=tarfile.CHRTYPE)),
    case("a block device", "special_member", lambda: member("a", type=tarfile.BLKTYPE)),
    case("a pipe in a source archive", "special_member", lambda: member("a", type=tarfile.FIFOTYPE)),
    case("a contiguous file", "special_member", lambda: member("a", type=tarfile.CONTTYPE)),
    case("an unknown type", "special_member", lambda: member("a", type=b"Q")),
    case(
        "a folder with content in a source archive",
        "special_member",
        lambda: member("a/", b"x", type=tarfile.DIRTYPE),
    ),
    case("a set-user-id file in a source archive", "special_member", lambda: member("a", mode=0o4755)),
    case("a file named as a folder", "file_and_folder", lambda: member("a/", type=tarfile.REGTYPE)),
    case("an old file named as a folder", "file_and_folder", lambda: member("a/", type=tarfile.AREGTYPE)),
    case("a file below a file in a source archive", "file_and_folder", lambda: member("PKG-INFO/a")),
    case("traversal in a source archive", "unsafe_path", lambda: member("../evil")),
    case("traversal by a pax header", "unsafe_path", lambda: with_pax(("path", f"{STEM}/../../evil"))),
    case(
        "traversal by a GNU name",
        "unsafe_path",
        lambda: sdist_of(
            TarEntry("x", f"{STEM}/../evil\0".encode(), tarfile.GNUTYPE_LONGNAME), TarEntry("y")
        ),
    ),
    case("an absolute path in a source archive", "unsafe_path", lambda: sdist_of(TarEntry("/etc/passwd"))),
    case("a path from the current folder", "unsafe_path", lambda: sdist_of(TarEntry(f"./{STEM}/a"))),
    case("NUL in a pax path", "unsafe_path", lambda: with_pax(("path", f"{STEM}/a\0b"))),
    case("an empty pax path", "unsafe_path", lambda: with_pax(("path", ""))),
    case("a backslash in a source archive", "unsafe_path", lambda: member("a\\b")),
    case("a device of Windows in a source archive", "unsafe_path", lambda: member("nul.txt")),
    case("a line break in a source archive", "unsafe_path", lambda: member("a\nb")),
    case(
        "a name of 300 bytes in a source archive",
        "path_too_long",
        lambda: with_pax(("path", f"{STEM}/{'a' * 300}")),
    ),
    case("a member twice in a source archive", "duplicate_member", lambda: member("PKG-INFO", metadata())),
    case("two spellings in a source archive", "colliding_members", lambda: member("pkg-info", metadata())),
    case(
        "two Unicode forms in a source archive",
        "colliding_members",
        lambda: sdist_of(TarEntry(f"{STEM}/caf\u00e9"), TarEntry(f"{STEM}/cafe\u0301")),
    ),
    case("another top folder", "bad_top_folder", lambda: sdist_of(TarEntry("other/a"))),
    case("a file beside the top folder", "bad_top_folder", lambda: sdist_of(TarEntry("a"))),
    case(
        "a file in place of the top folder", "bad_top_folder", lambda: packed(tar_of([TarEntry(STEM, b"x")]))
    ),
    case(
        "20,001 members in a source archive",
        "too_many_members",
        lambda: packed(b"".join(TarEntry(f"{STEM}/{n}").blocks() for n in range(20_001))),
    ),
    case(
        "zeros that unpack to 60 MiB in a source archive",
        "compression_bomb",
        lambda: member("zeros", b"\0" * (60 * MIB)),
    ),
    case("zeros after the end", "compression_bomb", lambda: sdist_of(end=b"\0" * (60 * MIB))),
    case("PKG-INFO of 9 MiB", "too_large_metadata", lambda: info(metadata(body="x" * (9 * MIB)))),
    case("pyproject.toml of 300 kB", "too_large_metadata", lambda: project(b"#" * 300_000)),
]
CONTENTS = [
    case("no PKG-INFO", "missing_metadata", lambda: without("PKG-INFO")),
    case(
        "PKG-INFO in an egg-info alone",
        "missing_metadata",
        lambda: sdist_of(files={"good_env.egg-info/PKG-INFO": metadata(), "pyproject.toml": PROJECT}),
    ),
    case("no pyproject.toml", "missing_pyproject", lambda: without("pyproject.toml")),
    case("pyproject.toml that is no TOML", "missing_pyproject", lambda: project(b"[project")),
    case("pyproject.toml that is not UTF-8", "missing_pyproject", lambda: project(b"a = '\xff'")),
    case("pyproject.toml of 1,000 brackets", "missing_pyproject", lambda: project(b"a = " + b"[" * 1000)),
    case("a key of 50,000 parts", "missing_pyproject", lambda: project(b"a" + b".a" * 50_000 + b" = 1\n")),
    case(
        "an entry point that is no string",
        "bad_entry_points",
        lambda: project(b'[project.entry-points."wander.environments"]\nx = [1]\n'),
    ),
    case("no environment in a source archive", "no_environment", lambda: project(b"")),
    case("generated files of no list", "bad_generated", lambda: project(b"tool.wander.generated = 'x.py'\n")),
    case("generated files as numbers", "bad_generated", lambda: project(b"tool.wander.generated = [1]\n")),
    case("a table that is a number", "bad_generated", lambda: project(b"tool.wander = 1\n")),
    case(
        "50,000 patterns",
        "bad_generated",
        lambda: project(b"[tool.wander]\ngenerated = [%s]" % (b"'a'," * 50_000)),
    ),
    case(
        "PKG-INFO of another name", "name_mismatch", lambda: info(metadata().replace(b"good-env", b"other"))
    ),
    case("PKG-INFO of another version", "name_mismatch", lambda: info(metadata().replace(b"1.0", b"1.1"))),
    case("PKG-INFO that is text", "bad_metadata", lambda: info(b"hello")),
    case(
        "a license file that the source archive lacks",
        "license_file_missing",
        lambda: info(metadata("License-File: LICENSE")),
    ),
    case("a source archive of a name that is not normal", "bad_filename", sdist_of, "Good-Env-1.0.tar.gz"),
    case(
        "a source archive of a version that is not normal",
        "bad_filename",
        sdist_of,
        "good_env-1.0.0-1.tar.gz",
    ),
    case("a source archive as zip", "bad_filename", sdist_of, "good_env-1.0.zip"),
    case("a source archive as bzip2", "bad_filename", sdist_of, "good_env-1.0.tar.bz2"),
    case(
        "a reserved name",
        "reserved_name",
        lambda: packed(
            tar_of(
                [
                    TarEntry("simple-1.0/PKG-INFO", metadata().replace(b"good-env", b"simple")),
                    TarEntry("simple-1.0/pyproject.toml", PROJECT),
                ]
            )
        ),
        "simple-1.0.tar.gz",
    ),
    case(
        "a local version",
        "local_version",
        lambda: packed(
            tar_of(
                [
                    TarEntry("good_env-1.0+x/PKG-INFO", metadata().replace(b"1.0", b"1.0+x")),
                    TarEntry("good_env-1.0+x/pyproject.toml", PROJECT),
                ]
            )
        ),
        "good_env-1.0+x.tar.gz",
    ),
    case("a source archive called a wheel by the form", "bad_form", sdist_of, filetype="bdist_wheel"),
]
BAD_SDISTS = [*GZIP, *FRAMING, *MEMBERS, *CONTENTS]
