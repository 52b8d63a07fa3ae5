"""What a check costs: memory that does not grow with the file, and work that grows only with its length."""

from __future__ import annotations

import hashlib
import io
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from archive_forge import SDIST_NAME, STEM, WHEEL_NAME, TarEntry, sdist_of, wheel_of
from wander_hub.settings import Settings
from wander_hub.upload import checks
from wander_hub.upload.schemas import Upload

MIB = 1024 * 1024


class Counted(io.BytesIO):
    """A file that counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.taken += len(chunk)
        return chunk


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"noise").digest(size)


def judge(body: bytes, filename: str) -> Counted:
    file = Counted(body)
    sha256 = hashlib.sha256(body).hexdigest()  # taken as the bytes came in; this one is not
    given = {"sha256_digest": sha256, "blake2_256_digest": hashlib.blake2b(body, digest_size=32).hexdigest()}
    upload = Upload("alice", filename, file, len(body), sha256, given)
    checks.check(upload, Settings())
    return file


KINDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "wheel": (lambda body: wheel_of({"noise.bin": body}), WHEEL_NAME),
    "sdist": (lambda body: sdist_of(TarEntry(f"{STEM}/noise.bin", body)), SDIST_NAME),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [noise(12 * MIB), b"\0" * (15 * MIB)], ids=["noise", "zeros"])
def test_memory_does_not_grow_with_the_file_size(kind, content):
    build, filename = KINDS[kind]
    body = build(content)
    judge(build(b"small"), filename)  # what is imported and cached once is not counted
    tracemalloc.start()
    try:
        judge(body, filename)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB  # the file itself was there before, and is not copied


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_is_read_once(kind):
    build, filename = KINDS[kind]
    body = build(noise(3 * MIB))
    assert judge(body, filename).taken == len(body)


@pytest.mark.parametrize("kind", KINDS)
def test_work_grows_linearly_with_the_number_of_members(kind):
    """Counts calls and not seconds, which a busy machine would spoil."""

    def calls(members: int) -> int:
        names = [f"pkg/sub{number % 50}/file{number}.py" for number in range(members)]
        if kind == "wheel":
            body = wheel_of({name: b"x = 1\n" for name in names})
        else:
            body = sdist_of(*[TarEntry(f"{STEM}/{name}", b"x = 1\n") for name in names])
        count = 0

        def step(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(step)
        try:
            judge(body, KINDS[kind][1])
        finally:
            sys.setprofile(None)
        return count

    assert calls(1600) < 2.2 * calls(800)
