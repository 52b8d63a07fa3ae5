"""Real hubs and workers that are killed with -9 while a real, sandboxed `wander` plays a sealed set.

tests/hub/test_sealed_killed.py kills a hub at every other point of a set's life.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint, chat_endpoint
from command_line import make_wheel
from judging_hub import PATIENCE, Record, confined
from live_hub import MortalHub, hub_command, start_program
from machine import Machine
from postgres_server import postgres_server
from sandboxes import needs_sandbox
from warm_programs import ForkedCommand

pytestmark = [pytest.mark.full, needs_sandbox, pytest.mark.timeout(1800)]

MARKER, KEY = "okapi", "sk-tapir-of-the-submitter"
ROWS = [{"question": f"say {MARKER}{n}", "answer": f"{MARKER}{n}"} for n in range(6)]
LOST = "submit"
"""A word of each error of a play that a kill ended, because it says what to do."""


class Sealing:
    """A hub, a worker next to it or none, the machines of an owner and a submitter, and an endpoint."""

    def __init__(self, stack: ExitStack, folder: Path, mirror: str, cache: Path, database_url: str | None):
        self.stack, self.folder = stack, folder
        settings = {
            "WANDER_HUB_VERIFICATION": confined(),
            "WANDER_HUB_SEAL_KEY_FILE": str(folder / "seal.key"),
            "WANDER_HUB_SEAL_NETWORKS": '["127.0.0.0/8"]',
            "WANDER_HUB_CHECK_VERSIONS": "false",
            "WANDER_HUB_JOB_LEASE_SECONDS": "15",
            "UV_DEFAULT_INDEX": mirror,
            "UV_CACHE_DIR": str(cache),
        }
        if database_url is not None:
            settings |= {"WANDER_HUB_DATABASE_URL": database_url, "WANDER_HUB_SERVE_JOBS": "false"}
        self.hub = MortalHub(folder / "hub", **settings)
        stack.callback(lambda: self.hub.kill())
        self.worker: subprocess.Popen[bytes] | ForkedCommand | None = None
        if database_url is not None:
            self.start_worker()
        extra = {"UV_CACHE_DIR": str(cache), "OPENAI_API_KEY": KEY}
        for user in ("owner", "submitter"):
            (folder / user).mkdir()
        self.owner = Machine(folder / "owner", self.hub, mirror, extra)
        wheel = make_wheel(folder)
        form = {":action": "file_upload", "protocol_version": "1"}
        answer = self.hub.post(
            "/admin/legacy/", data=form, files={"content": (wheel.name, wheel.read_bytes())}
        )
        assert answer.status_code == 200, answer.text
        self.strike: Callable[[], None] | None = None
        self.questions, self.at, self.lock = 0, 0, threading.Lock()
        self.endpoint: ChatEndpoint = stack.enter_context(chat_endpoint(self.reply))

    def start_worker(self) -> None:
        command, environment = hub_command(self.hub.data, "work", "--hub", self.hub.url)
        log = self.stack.enter_context((self.folder / "work.log").open("ab"))
        self.worker = start_program(command, environment | self.hub.settings, log)
        self.stack.callback(self.worker.kill)

    def reply(self, messages: list[Record]) -> str:
        """Answer a question, or kill before the answer to the chosen question."""
        with self.lock:
            self.questions += 1
            if self.questions == self.at and self.strike is not None:
                self.strike()
        return str(messages[-1]["content"]).removeprefix("say ")

    def kill_worker(self) -> None:
        """Kill the process that runs the jobs."""
        if self.worker is None:
            self.hub.kill()
        else:
            self.worker.kill()

    def restart(self, *, is_open: bool = False) -> None:
        """Start what was killed; nothing that it had started is left, and nothing hidden is readable."""
        self.until(lambda: not self.commands(), "the killed worker's commands have ended")
        if self.hub.process.poll() is not None:
            self.hub.start()
        if self.worker is not None and self.worker.poll() is not None:
            self.start_worker()
        self.until(lambda: not self.left_in_memory(), "the new worker deletes what the killed one left")
        if not is_open:
            self.require_unreadable()

    def commands(self) -> list[int]:
        """Return the processes of the commands that the hub's workers run, without those in a sandbox."""
        found, marks = [], {f"WANDER_HUB={self.hub.url}".encode(), b"WANDER_HUB_JOB=1"}
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended in the meantime, or it belongs to another user
                if marks <= {*(place / "environ").read_bytes().split(b"\0")}:
                    found.append(int(place.name))
        return found

    def left_in_memory(self) -> list[Path]:
        found = []
        for folder in Path("/dev/shm").glob("wander-play-*"):
            for path in folder.rglob("*.jsonl*"):
                try:
                    if MARKER.encode() in path.read_bytes():
                        found.append(path)
                except OSError:  # it was deleted in the meantime
                    continue
        return found

    def require_unreadable(self) -> None:
        """Fail if a file of the hub or of its worker contains an example or the key."""
        for folder in (self.hub.data, self.folder / "work.log", self.folder / "seal.key"):
            for path in [folder, *folder.rglob("*")]:
                content = path.read_bytes() if path.is_file() else b""
                assert MARKER.encode() not in content, path
                assert KEY.encode() not in content, path

    def until(self, holds: Callable[[], object], what: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < give_up, f"never: {what}\n{self.log()[-5000:]}"
            time.sleep(0.1)

    def log(self) -> str:
        work = self.folder / "work.log"
        return (self.hub.data / "serve.log").read_text() + (work.read_text() if work.exists() else "")

    def show(self, commitment: str) -> Record:
        found: Record = self.hub.get(f"/api/v1/sealed/{commitment}").json()
        return found

    def settle(self, commitment: str) -> Record:
        """Wait until no play of a set is queued or running."""
        waiting = ("queued", "running")
        self.until(
            lambda: all(play["state"] not in waiting for play in self.show(commitment)["plays"]),
            "the plays have ended",
        )
        return self.show(commitment)


@pytest.fixture(params=["one-process", "worker-and-postgresql"])
def sealing(
    request: pytest.FixtureRequest, mirror: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sealing]:
    with ExitStack() as stack:
        url = None
        if request.param != "one-process":
            url = stack.enter_context(stack.enter_context(postgres_server()).database())
        cache = tmp_path_factory.getbasetemp() / "uv-cache"
        yield Sealing(stack, tmp_path, mirror, cache, url)


def test_a_sealed_set_survives_the_death_of_its_hub_and_of_its_worker(sealing: Sealing) -> None:
    hub, owner = sealing.hub, sealing.owner
    hidden = owner.home / "hidden.jsonl"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    week = (datetime.now(UTC) + timedelta(days=7)).isoformat()

    made = owner.wander("seal", "create", "admin/say-env", hidden, "--opens", week, "--no-wait")
    commitment = str(made["commitment"])
    sealing.until(sealing.commands, "the worker checks the set")
    workers = [hub.process, *filter(None, [sealing.worker])]
    for process in (*[worker.pid for worker in workers], *sealing.commands()):
        with suppress(ProcessLookupError):
            assert resource.prlimit(process, resource.RLIMIT_CORE) == (0, 0), "a crash would write examples"
    sealing.kill_worker()
    sealing.restart()
    sealing.until(lambda: sealing.show(commitment)["state"] == "sealed", "the set is checked")

    def play() -> None:
        owner.wander(
            *("seal", "play", commitment, "-m", "echo", "-b", sealing.endpoint.base_url, "--no-wait")
        )

    exposures = 0
    for at in (1, 4):
        sealing.strike, sealing.at = sealing.kill_worker, sealing.questions + at
        play()
        sealing.until(lambda: sealing.questions >= sealing.at, "the endpoint is asked")
        sealing.restart()
        found, exposures = sealing.settle(commitment), exposures + 1
        assert found["exposures"] == exposures
        assert sealing.questions <= exposures * len(ROWS), "no question is sent twice"
        assert all(LOST in one["error"] for one in found["plays"] if one["state"] == "failed")
        sealing.strike, asked = None, sealing.questions
        play()
        found, exposures = sealing.settle(commitment), exposures + 1
        assert (found["exposures"], sealing.questions - asked) == (exposures, len(ROWS))
        assert [one["level"] for one in found["plays"]].count("sealed") == exposures / 2
    if sealing.worker is not None:  # the worker does not need the server
        sealing.strike, sealing.at = hub.kill, sealing.questions + 3
        play()
        sealing.until(lambda: hub.process.poll() is not None, "the hub is killed")
        sealing.restart()
        found, exposures = sealing.settle(commitment), exposures + 1
        assert found["exposures"] == exposures
        assert found["plays"][0]["level"] == "sealed"
    assert sealing.endpoint.keys == {f"Bearer {KEY}"}
    sealing.require_unreadable()

    rows = [one["id"] for one in found["plays"] if one["level"] == "sealed"]
    owner.wander("seal", "open", commitment)
    sealing.until(lambda: sealing.show(commitment)["state"] == "opened", "the set is open")
    posted = [one["run_id"] for one in sealing.show(commitment)["plays"] if one["run_id"] is not None]
    assert len(posted) == len(rows)
    sealing.until(sealing.commands, "a run is replayed")
    sealing.kill_worker()
    sealing.restart(is_open=True)
    sealing.until(
        lambda: all(one["level"] == "replayed" for one in sealing.show(commitment)["plays"] if one["run_id"]),
        "all rows are replayed",
    )
    file = hub.get(f"/api/v1/sealed/{commitment}/examples.jsonl").content
    assert hashlib.sha256(file).hexdigest() == commitment
    assert sealing.left_in_memory() == []
