"""`wander publish` and a real hub: cut connections, a killed command, a killed hub; what came is not lost."""

from __future__ import annotations

import hashlib
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from archive_forge import WHEEL_NAME, wheel_of
from live_hub import LiveHub, live_hub, run_hub
from machine import Machine
from staged_uploads import VERSIONS, announced

pytestmark = pytest.mark.full

MIB = 1024 * 1024
CHUNK = 4 * MIB
ALONE = {"WANDER_HUB_BUNDLED_PACKAGES": "false"}
"""Nothing is installed from these hubs, so they need not build the SDK first."""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "large-env"
version = "0.1.0"
description = "Carries much data."
dependencies = ["wander-sdk"]

[project.entry-points."wander.environments"]
large-env = "large_env:load_environment"
"""


@contextmanager
def proxy(port: int, hold_at: int) -> Iterator[tuple[str, threading.Event]]:
    """Stand before a hub; the `hold_at`-th chunk is taken from the client and never passed on.

    Gives its address and what is set when that has come.
    """
    held, ending = threading.Event(), threading.Event()
    chunks = 0

    def pump(source: socket.socket, target: socket.socket, *, counts: bool) -> None:
        nonlocal chunks
        with suppress(OSError):
            while data := source.recv(65536):
                # A client waits for each answer, so what it sends next begins with the next request.
                if counts and data.startswith(b"PUT "):
                    chunks += 1
                    if chunks == hold_at:
                        held.set()
                        ending.wait()
                        return
                target.sendall(data)

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket.create_connection(("127.0.0.1", port))
                open_sockets.extend((client, upstream))
                for source, target, counts in ((client, upstream, True), (upstream, client, False)):
                    threading.Thread(
                        target=pump, args=(source, target), kwargs={"counts": counts}, daemon=True
                    ).start()

    open_sockets: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", held
        finally:
            ending.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for one in open_sockets:
                one.close()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An environment with 9 MiB that do not compress: three chunks a file."""
    folder = tmp_path / "large_env"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    inside = folder / "large_env"
    inside.mkdir()
    (inside / "__init__.py").write_text("def load_environment(**arguments):\n    return arguments\n")
    (inside / "data.bin").write_bytes(hashlib.shake_256(b"large").digest(9 * MIB))
    return folder


def test_killed_commands_and_hubs_lose_no_uploaded_part(tmp_path: Path, mirror: str, package: Path) -> None:
    data, home = tmp_path / "hub", tmp_path / "home"
    home.mkdir()
    arguments = ("publish", package, "--no-check", "--no-lock")
    with live_hub(data, **ALONE) as hub, proxy(hub.port, hold_at=3) as (address, held):
        machine = Machine(home, hub, mirror, {"WANDER_HUB": address})
        command = machine.start("wander", *arguments)
        assert held.wait(120), "the third chunk never came"
        command.kill()
        command.communicate()
        hub.process.send_signal(signal.SIGKILL)
        hub.process.wait()
    with live_hub(data, **ALONE) as hub:
        assert hub.get("/api/v1/environments/admin/large-env").status_code == 404
        machine = Machine(home, hub, mirror)
        done = machine.wander(*arguments)
        assert done["resumed_bytes"] == 2 * CHUNK
        assert all(one["sent"] for one in done["files"])
        assert done["source"]["compared"] == [done["files"][0]["filename"]]
        for one in done["files"]:
            content = hub.get(f"/admin/files/large-env/{one['filename']}").content
            assert hashlib.sha256(content).hexdigest() == one["sha256"]
    run_hub(data, "fsck")


def broken_off(hub: LiveHub, path: str, body: bytes, sent: int) -> None:
    """Send the beginning of a part and end the connection."""
    digest = hashlib.sha256(body).hexdigest()
    head = [
        f"PUT {path}?offset=0&digest={digest} HTTP/1.1",
        f"Host: 127.0.0.1:{hub.port}",
        f"Authorization: Bearer {hub.token}",
        f"Content-Length: {len(body)}",
    ]
    with socket.create_connection(("127.0.0.1", hub.port)) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body[:sent])


def test_an_interrupted_chunk_is_discarded(tmp_path: Path) -> None:
    body = wheel_of({"data.bin": hashlib.shake_256(b"data").digest(MIB)})
    with live_hub(tmp_path / "hub", **ALONE) as hub, httpx.Client(base_url=hub.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {hub.token}"
        opened = client.post(VERSIONS, json=announced({WHEEL_NAME: body}, owner="admin")).json()
        place, half = f"{VERSIONS}/{opened['id']}", 600_000
        path = f"{place}/files/{WHEEL_NAME}"
        for sent in (0, 1, 200_000, len(body) - 1):
            broken_off(hub, path, body, sent)
            assert client.get(place).json()["parts"] == []
        for offset, part in ((0, body[:half]), (half, body[half:])):
            digest = hashlib.sha256(part).hexdigest()
            sent_part = client.put(path, params={"offset": offset, "digest": digest}, content=part)
            sent_part.raise_for_status()
        client.post(f"{place}/finish").raise_for_status()
        assert client.get(f"/admin/files/good-env/{WHEEL_NAME}").content == body
        assert "Traceback" not in hub.log.read_text()
