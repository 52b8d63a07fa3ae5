"""An index or a package takes no more of the disk, the memory and the time than an installation may."""

from __future__ import annotations

import contextlib
import struct
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

import pytest
from packaging.pylock import Pylock
from serving import serving
from wander_client.errors import ClientError
from wander_client.packages import lock, uv
from wander_client.packages.interpreters import HERE
from wander_client.packages.uv import install_into, make_virtualenv

WHEEL = "bomb-1.0-py3-none-any.whl"
Body = bytes | Iterable[bytes]


@contextmanager
def index(page: Callable[[], Body], file: Callable[[], Body] = lambda: b"") -> Iterator[str]:
    """Serve a package index whose page of `bomb`, and the file that it lists, are these."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Send the page or the file; the end of the connection ends it."""
            body = file() if self.path.endswith(".whl") else page()
            self.send_response(404 if self.path.endswith(".metadata") else 200)
            self.send_header("Content-Type", "text/html")
            if isinstance(body, bytes):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            with contextlib.suppress(OSError):
                for piece in [body] if isinstance(body, bytes) else body:
                    self.wfile.write(piece)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}/simple/"


def listing() -> bytes:
    return f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>'.encode()


def bomb(place: Path, *, files: int, size: int) -> bytes:
    """Return a wheel that unpacks to many zeros."""
    path = place / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(files):
            with archive.open(f"bomb/{number}", "w", force_zip64=True) as file:
                for _ in range(size >> 20):
                    file.write(bytes(1 << 20))
        info = "bomb-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: bomb\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    content = path.read_bytes()
    path.unlink()
    return content


def endless(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


@pytest.fixture
def install(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ClientError | None]:
    """Install `bomb` from an index; return the error."""
    monkeypatch.setenv("UV_CACHE_DIR", str(home / "uv-cache"))
    monkeypatch.setattr(uv, "_LOOK_SECONDS", 0.02)

    def run(address: str) -> ClientError | None:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        make_virtualenv(home / "venv", Path(sys.executable))
        try:
            install_into(home / "venv", ["install", "--quiet", "bomb"], doing="installing `bomb`")
        except ClientError as error:
            return error
        return None

    return run


def left_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_package_of_ordinary_size_is_installed(install, home: Path) -> None:
    content = bomb(home, files=3, size=1 << 20)
    with index(listing, lambda: content) as address:
        assert install(address) is None


def test_a_file_that_unpacks_too_large_stops_the_installation(install, home: Path, monkeypatch) -> None:
    monkeypatch.setattr(uv, "_LARGEST_FILE", 16 << 20)
    content = bomb(home, files=1, size=64 << 20)
    with index(listing, lambda: content) as address:
        refused = install(address)
    assert refused is not None
    assert refused.code == "unsafe_package"
    assert "file" in str(refused)
    assert left_in(home / "uv-cache") < 1 << 20


def test_too_many_files_stop_the_installation(install, home: Path, monkeypatch) -> None:
    monkeypatch.setattr(uv, "_LARGEST_INSTALL", 64 << 20)
    content = bomb(home, files=100, size=2 << 20)
    with index(listing, lambda: content) as address:
        refused = install(address)
    assert refused is not None
    assert refused.code == "unsafe_package"
    assert left_in(home / "uv-cache") < 1 << 20
    assert left_in(home / "venv") < 1 << 20


def test_an_endless_file_stops_the_installation(install, home: Path, monkeypatch) -> None:
    monkeypatch.setattr(uv, "_SECONDS", 2.0)  # uv looks for the metadata behind it, and keeps nothing
    # One entry that is stored and states a terabyte.
    head = b"PK\x03\x04" + struct.pack("<5H3L2H", 45, 0, 0, 0, 33, 0, 2**32 - 1, 2**32 - 1, 4, 20)
    head += b"bomb" + struct.pack("<2H2Q", 1, 16, 1 << 40, 1 << 40)
    with index(listing, lambda: chain([head], endless(bytes(1 << 16)))) as address:
        refused = install(address)
    assert refused is not None
    assert refused.code == "unsafe_package"
    assert left_in(home / "uv-cache") < 1 << 20


def test_an_endless_page_uses_limited_memory(install, monkeypatch) -> None:
    monkeypatch.setattr(uv, "_LARGEST_MEMORY", 256 << 20)
    with index(lambda: endless(b"<a>" + b" " * (1 << 20) + b"</a>")) as address:
        refused = install(address)
    assert refused is not None
    assert refused.code == "unsafe_package"
    assert "memory" in str(refused)


def test_an_index_that_never_finishes_a_response_times_out(install, monkeypatch) -> None:
    over = threading.Event()

    def drip() -> Iterator[bytes]:
        while not over.wait(0.05):
            yield b" "

    monkeypatch.setattr(uv, "_SECONDS", 1.0)
    with index(drip) as address:
        refused = install(address)
        over.set()
    assert refused is not None
    assert refused.code == "unsafe_package"


@pytest.mark.parametrize(("free", "kept", "is_left"), [(100, 20, False), (100, 5, True), (12, 20, True)])
def test_an_installation_leaves_some_disk_space_free(
    free: int, kept: int, is_left: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(uv.KEPT_FREE, str(kept))
    monkeypatch.setattr(uv, "_free_bytes", lambda place: free)
    room = uv._DiskLimits([home / "not" / "there"])
    monkeypatch.setattr(uv, "_free_bytes", lambda place: 10)
    assert room.is_within() is is_left


def test_a_lock_that_lists_too_many_bytes_is_rejected(monkeypatch) -> None:
    files = [
        {
            "name": f"p{number}",
            "version": "1",
            "wheels": [
                {
                    "url": f"https://files.pythonhosted.org/p{number}-1-py3-none-any.whl",
                    "size": size,
                    "hashes": {"sha256": "0" * 64},
                }
            ],
        }
        for number, size in enumerate((9 << 30, 9 << 30, -(99 << 30)))
    ]
    stated = Pylock.from_dict({"lock-version": "1.0", "created-by": "x", "packages": files})
    with pytest.raises(ClientError) as refused:
        lock._select(stated, "x", HERE)
    assert refused.value.code == "unsafe_package"
