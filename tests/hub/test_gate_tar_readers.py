"""Whatever source archive the gate takes, `tarfile` and the system's `tar` unpack to the same files."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from archive_forge import PROJECT, SDIST_NAME, STEM, TarEntry, metadata, packed, pax, tar_of
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.upload import checks
from wander_hub.upload.archives.members import ArchiveBudget
from wander_hub.upload.archives.stream import ByteStream
from wander_hub.upload.archives.tar_archive import TarArchive
from wander_hub.upload.schemas import Upload

LIMITS = Settings()
NAMES = st.builds(
    "{}{}{}".format,
    st.sampled_from([f"{STEM}/"] * 8 + [f"{STEM}/pkg/"] * 4 + ["", f"./{STEM}/", f"{STEM}//"]),
    st.text(st.sampled_from("abcA01_-,;'()é" * 4 + ". /\\:~"), min_size=1, max_size=6),
    st.sampled_from([".py", ".txt", "", "", "/"]),
)
ODD_TYPES = [tarfile.SYMTYPE, tarfile.CONTTYPE, b"x", b"g", b"L", b"S"]
TYPES = [tarfile.REGTYPE] * 24 + [tarfile.AREGTYPE] * 3 + [tarfile.DIRTYPE] * 3 + ODD_TYPES
PAX_KEYS = [
    *["path"] * 6,
    *["mtime", "comment"] * 2,
    "size",
    "mtime",
    "comment",
    "linkpath",
    "GNU.sparse.size",
    "uid",
    "hdrcharset",
]


@st.composite
def source_archives(draw: st.DrawFn) -> bytes:
    """Return a source archive with odd members, odd headers and perhaps a bit that was turned."""
    entries: list[TarEntry | bytes] = []
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.integers(0, 5)) == 0:
            key = draw(st.sampled_from(PAX_KEYS))
            number = st.sampled_from(["0", "3", "1.5", "-1", "x"])
            entries.append(pax((key, draw(NAMES if key == "path" else number))))
        size = draw(st.sampled_from([None] * 20 + [0, 3, 512]))
        body = draw(st.binary(max_size=20))
        entries.append(TarEntry(draw(NAMES), body, draw(st.sampled_from(TYPES)), size=size))
    base = [TarEntry(f"{STEM}/PKG-INFO", metadata()), TarEntry(f"{STEM}/pyproject.toml", PROJECT)]
    end = draw(st.sampled_from([b"\0" * 1024] * 12 + [b"\0" * 10240, b"\0" * 512, b"\0" * 1024 + b"x" * 512]))
    tar = tar_of([*base, *entries], end=end)
    for at in draw(st.lists(st.integers(0, len(tar) - 1), max_size=draw(st.sampled_from([0] * 7 + [2])))):
        tar = tar[:at] + bytes([tar[at] ^ (1 << draw(st.integers(0, 7)))]) + tar[at + 1 :]
    body = packed(tar)
    if draw(st.integers(0, 9)) == 0:
        body += draw(st.sampled_from([b"\0", packed(tar)]))
    return body


def is_taken(body: bytes) -> bool:
    upload = Upload("alice", SDIST_NAME, io.BytesIO(body), len(body), hashlib.sha256(body).hexdigest())
    try:
        checks.check(upload, LIMITS)
    except HubProblem as problem:
        event(f"refused: {problem.code}")
        return False
    event("taken")
    return True


def walked(body: bytes) -> dict[str, str]:
    """Return the digests of the files as the gate sees them."""
    archive = TarArchive(ByteStream(io.BytesIO(body)), ArchiveBudget(LIMITS.max_unpacked_bytes, len(body)))
    found = {}
    for member, content in archive.walk():
        text = b"".join(content)
        if not member.is_folder:
            found[member.name] = hashlib.sha256(text).hexdigest()
    return found


def unpacked(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def compare(body: bytes) -> None:
    if not is_taken(body):
        return
    seen = walked(body)
    with TemporaryDirectory() as folder:
        python, system = Path(folder, "python"), Path(folder, "system")
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
            archive.extractall(python, filter="data")
        assert unpacked(python) == seen
        program = shutil.which("tar")
        assert program is not None, "every system that the tests run on has one"
        system.mkdir()
        done = subprocess.run([program, "xzf", "-", "-C", str(system)], input=body, capture_output=True)
        assert (done.returncode, unpacked(system)) == (0, seen), done.stderr


QUIET = {
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}


@settings(max_examples=150, derandomize=True, **QUIET)
@given(body=source_archives())
def test_tar_readers_agree_with_the_upload_checks(body):
    compare(body)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, **QUIET)
@given(body=source_archives())
def test_tar_readers_agree_with_the_upload_checks_on_many_archives(body):
    compare(body)
