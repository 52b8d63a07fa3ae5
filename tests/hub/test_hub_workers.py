"""`wander-hub serve --workers`: one hub of several processes, as seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from live_hub import clean_environment, free_port, make_token, wait_until_healthy

WORKERS, AT_ONCE = 3, 8


class Several:
    """A hub of several processes."""

    def __init__(self, folder) -> None:
        self.data, self.port = folder / "data", free_port()
        self.url, self.log = f"http://127.0.0.1:{self.port}", folder / "log"
        settings = {"WANDER_HUB_BUNDLED_PACKAGES": "false", "WANDER_HUB_VERIFICATION": "off"}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command(self.port), env=clean_environment() | settings, stdout=out, stderr=out
            )
        wait_until_healthy(self.url, self.process, self.log)

    def command(self, port: int) -> list[str]:
        words = [
            sys.executable,
            "-m",
            "wander_hub.cli.main",
            "serve",
            "--port",
            str(port),
            "--data",
            str(self.data),
        ]
        return [*words, "--workers", str(WORKERS)]

    def children(self) -> set[int]:
        tasks = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(tasks) as file:
            return {int(one) for one in file.read().split()}

    def said_by(self, path: str) -> dict[str, httpx.Response]:
        """Ask by new connections, many at once, until every process answered; return an answer of each."""
        found: dict[str, httpx.Response] = {}

        def everybody() -> bool:
            for answer in threads.map(lambda _: httpx.get(f"{self.url}{path}", timeout=60), range(AT_ONCE)):
                found[answer.headers["x-request-id"][:8]] = answer
            return len(found) >= WORKERS

        with ThreadPoolExecutor(AT_ONCE) as threads:
            until(everybody, f"{WORKERS} processes answer")
        return found


def until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < give_up, f"never: {what}"
        time.sleep(0.02)


def refuses(url: str) -> bool:
    try:
        httpx.get(url, timeout=60)
    except httpx.TransportError:
        return True
    return False


@pytest.fixture
def several(tmp_path) -> Iterator[Several]:
    hub = Several(tmp_path)
    try:
        yield hub
    finally:
        for process in hub.children() if hub.process.poll() is None else ():
            os.kill(process, signal.SIGKILL)
        hub.process.kill()
        hub.process.wait()


@pytest.mark.full
def test_server_processes_share_changes_and_replace_dead_ones(several, make_wheel, tmp_path):
    token = ("__token__", make_token(several.data))
    path = "/admin/simple/reverse-text/"
    for version in ("0.1.0", "0.2.0"):
        spec = make_wheel(version=version)
        files = {"content": (spec.wheel_name, spec.build(), "application/octet-stream")}
        posted = httpx.post(f"{several.url}/admin/legacy/", files=files, auth=token, timeout=60)
        assert posted.status_code == 200, posted.text
        answers = several.said_by(path)
        assert all(spec.wheel_name in one.text for one in answers.values())
    second = subprocess.run(
        several.command(free_port()), capture_output=True, text=True, env=clean_environment(), timeout=60
    )
    assert second.returncode == 2
    assert f"{several.process.pid}" in second.stderr
    assert several.url in second.stderr
    before = several.children()
    assert len(before) == WORKERS
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(several.children() - {killed}) == WORKERS, "another takes its place")
    assert spec.wheel_name in httpx.get(f"{several.url}{path}", timeout=60).text
    several.said_by(path)
    refused = httpx.get(f"{several.url}/api/v1/runs/none", timeout=60)
    for _ in range(2 * AT_ONCE):  # by new connections, so of any process
        httpx.get(f"{several.url}/api/v1/runs/other", timeout=60)
    counted = 'request_seconds_count{method="GET",route="/api/v1/runs/{run_id}",status="404"} 17.0'
    assert counted in httpx.get(f"{several.url}/metrics", auth=token, timeout=60).text, "of all together"
    several.process.send_signal(signal.SIGTERM)
    assert several.process.wait(60) == 0
    assert several.log.read_text().count("the hub listens on") == 2, "once by each that was the first"
    (line,) = (one for one in several.log.read_text().splitlines() if "/api/v1/runs/none" in one)
    assert line.split()[2] == refused.json()["request_id"] == refused.headers["x-request-id"]
    assert refuses(several.url)


@pytest.mark.full
def test_server_processes_exit_with_their_parent(several):
    children = several.children()
    several.process.kill()
    several.process.wait()
    until(lambda: not any(alive(one) for one in children), "all have ended")
    assert refuses(several.url)


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
