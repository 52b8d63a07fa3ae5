"""A real hub: `wander-hub serve` in a separate process on a free port, with an administrator's token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from warm_programs import ForkedCommand

BIN = Path(sys.executable).parent
_ORDINARY_USER = Path(__file__).with_name("ordinary_user.py")
TOKEN = "token"
"""Name of the file in a hub's data folder that holds its administrator's token."""


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of Wander, pip, uv or a proxy."""
    dropped = ("WANDER_", "PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(dropped)}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PIP_CONFIG_FILE": os.devnull, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def request(method: str, url: str, **options: Any) -> httpx.Response:
    """Send one request to a server on this machine.

    `httpx.get` would load the certificates of all authorities first, which takes 45 ms of processor time.
    """
    return httpx.request(method, url, verify=False, trust_env=False, **options)


@dataclass
class LiveHub:
    """A running hub at `url`."""

    url: str
    token: str
    data: Path
    process: subprocess.Popen[bytes] | ForkedCommand
    log: Path

    @property
    def port(self) -> int:
        """The hub's port."""
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, **options: object) -> httpx.Response:
        """Ask the hub as its administrator."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return request("GET", f"{self.url}{path}", headers=headers, timeout=30, **options)


class MortalHub:
    """A hub on one port that can be killed and started again on its data. It does not replay posted runs."""

    def __init__(self, data: Path, **settings: str) -> None:
        self.data, self.settings = data, {"WANDER_HUB_VERIFICATION": "off", **settings}
        data.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.start()
        self.token = (data / TOKEN).read_text().strip()

    def start(self) -> None:
        """Start the hub, and wait until it answers."""
        options = ("--port", self.url.rpartition(":")[2], "--token-file", str(self.data / TOKEN))
        command, environment = hub_command(self.data, "serve", *options)
        log = self.data / "serve.log"
        with log.open("ab") as out:
            self.process = start_program(command, environment | self.settings, out)
        wait_until_healthy(self.url, self.process, log)

    def kill(self) -> None:
        """Kill the hub, and wait for its end."""
        self.process.kill()
        self.process.wait(timeout=30)

    def get(self, path: str) -> httpx.Response:
        """Ask the hub as its administrator."""
        return self._request("GET", path)

    def post(self, path: str, *, patience: float = 0, **body: Any) -> httpx.Response:
        """Send a body as the hub's administrator, again for up to `patience` seconds if nobody answers."""
        give_up = time.monotonic() + patience
        while True:
            try:
                return self._request("POST", path, **body)
            except httpx.TransportError:
                if time.monotonic() >= give_up:
                    raise
                time.sleep(0.1)

    def _request(self, method: str, path: str, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return request(method, f"{self.url}{path}", headers=headers, timeout=60, **body)


def hub_command(data: Path, *arguments: str, uid: int | None = None) -> tuple[list[str], dict[str, str]]:
    """Return a `wander-hub` command line and its environment; `uid` is the user who runs it."""
    become = [] if uid is None else [sys.executable, "-I", str(_ORDINARY_USER), str(uid)]
    command = [*become, str(BIN / "wander-hub"), *arguments]
    return command, {**clean_environment(), "WANDER_HUB_DATA": str(data)}


def run_hub(data: Path, *arguments: str, **settings: str) -> str:
    """Run an operator's command on the hub in `data`, require success, and return its output."""
    command, environment = hub_command(data, *arguments)
    done = run_program(command, environment | settings)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def make_token(data: Path, user: str = "admin") -> str:
    """Make an API token for a user of the hub in `data` with the operator's command."""
    return next(word for word in run_hub(data, "token", "create", user).split() if word.startswith("wnd_"))


def start_process(
    command: list[str],
    environment: dict[str, str],
    out: IO[bytes],
    err: IO[bytes] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a folder, with its standard output and its errors in files, or both in one."""
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err or out
    )


starter: Callable[..., subprocess.Popen[bytes] | ForkedCommand] = start_process
"""Starts programs; pytest replaces it by `WarmCommands.start`."""


def start_program(
    command: list[str], environment: dict[str, str], out: IO[bytes]
) -> subprocess.Popen[bytes] | ForkedCommand:
    """Start a program that writes all its output to a file."""
    return starter(command, environment, out)


def run_program(
    command: list[str], environment: dict[str, str], *, folder: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input, and return its status and its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = starter(command, environment, out, err, folder)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(command, status, *texts)


@contextmanager
def live_hub(
    data: Path, *, port: int | None = None, uid: int | None = None, **settings: str
) -> Iterator[LiveHub]:
    """Start a hub on an empty or existing data folder, wait until it answers, and stop it with the block.

    `settings` are further variables. Without them, the hub does not replay posted runs, because that would
    keep both cores busy during the test. With `uid`, which needs root, this user runs the hub.
    """
    data.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port or free_port()}"
    options = ("--port", url.rpartition(":")[2], "--new-token", "--token-file", str(data / TOKEN))
    command, environment = hub_command(data, "serve", *options, uid=uid)
    environment |= {"WANDER_HUB_VERIFICATION": "off", **settings}
    log = data / "serve.log"
    with log.open("wb") as out:
        process = start_program(command, environment, out)
    try:
        wait_until_healthy(url, process, log)
        yield LiveHub(url, (data / TOKEN).read_text().strip(), data, process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes] | ForkedCommand, log: Path) -> None:
    """Wait until the hub answers; fail with its log if it ends or the time runs out."""
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        assert process.poll() is None, f"the hub stopped:\n{log.read_text()}"
        try:
            if request("GET", f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the hub does not respond at {url}:\n{log.read_text()}")
