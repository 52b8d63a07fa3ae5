"""Everything that must not work in the sandbox, tried in a real worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import escape_attempts
import pytest
from escape_attempts import probes
from sandboxes import confined, needs_sandbox, small
from wander.errors import SandboxError
from wander.sandbox.policy import SandboxPolicy
from wander.worker.process.sandbox_check import check_sandbox

_SECRET_VARIABLE = "WANDER_SANDBOX_CHECK_SECRET"
BODY = (
    Path(escape_attempts.__file__).read_text()
    + """

def load_environment(bait):
    from wander import SingleTurnEnv

    outcomes = run(bait)
    rows = [{"question": name, "answer": json.dumps(each)} for name, each in outcomes.items()]
    return SingleTurnEnv(eval_dataset=rows, name="probing")
"""
)

pytestmark = needs_sandbox


@contextlib.contextmanager
def bait(policy: SandboxPolicy) -> Iterator[dict[str, Any]]:
    """Place secrets that escaping code would look for, and yield their locations."""
    secret = secrets.token_hex(16)
    os.environ[_SECRET_VARIABLE] = secret
    with contextlib.ExitStack() as stack:
        stack.callback(os.environ.pop, _SECRET_VARIABLE, None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wander-bait-")))
        (folder / "secret").write_text(secret)
        folder.chmod(0o755)
        waiting = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", secret]
        decoy = subprocess.Popen(waiting, stdin=subprocess.PIPE)
        stack.callback(decoy.communicate)
        yield {
            "file": str(folder / "secret"),
            "secret": secret,
            "port": stack.enter_context(_serve_secret(secret)),
            "name": stack.enter_context(_listen_under_a_name(secret)),
            "file_limit": policy.file,
            "tmp_limit": policy.tmp,
            "shm_limit": policy.shm,
            "process_limit": policy.processes,
        }


@contextlib.contextmanager
def _serve_secret(secret: str) -> Iterator[int]:
    """Send the secret to every client on loopback, and yield the port."""

    class Telling(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(secret.encode())

    with socketserver.TCPServer(("127.0.0.1", 0), Telling) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextlib.contextmanager
def _listen_under_a_name(name: str) -> Iterator[str]:
    """Listen on an abstract name, which belongs to the network namespace, and yield the name."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        yield name


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Any]:
    async def probed() -> dict[str, Any]:
        limits = ("processes=48",)
        with bait(small(*limits)) as prepared:
            folder = tmp_path_factory.mktemp("probes")
            async with confined(folder, *limits, body=BODY, arguments={"bait": prepared}) as environment:
                rows = await environment.examples("eval")
        return {str(row.prompt[-1]["content"]): json.loads(row.answer) for row in rows}

    return asyncio.run(probed())


@pytest.mark.parametrize("name", probes())
def test_the_sandbox_stops_every_probe(name, outcomes):
    outcome = outcomes[name]
    assert outcome["held"], f"{name}: {outcome['how']}"


def test_calls_are_stopped_by_the_filter(outcomes):
    calls = {name: each["how"] for name, each in outcomes.items() if name.startswith("call ")}
    assert len(calls) > 70
    assert set(calls.values()) <= {"EPERM", "ENOSYS"}
    assert {each["how"] for name, each in outcomes.items() if name.startswith("socket ")} == {"EAFNOSUPPORT"}
    assert outcomes["more processes"]["how"] == "EAGAIN"
    assert outcomes["a file too long"]["how"] == "EFBIG"
    assert outcomes["more than tmp holds"]["how"] == "ENOSPC"


def test_the_same_attempts_succeed_outside():
    """Else they would prove nothing."""
    secrets = ["secret file", "secret variable", "secret over loopback", "secret in host process"]
    names = [*secrets, "datagram pair", "socket UDP", "more processes", "descriptors of the worker"]
    with bait(small()) as prepared:
        command = [sys.executable, escape_attempts.__file__]
        asked = json.dumps({**prepared, "only": names})
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    found = {name: each["held"] for name, each in json.loads(done.stdout).items()}
    assert found == dict.fromkeys(names, False)


def test_the_self_test_describes_the_sandbox():
    report = check_sandbox()
    assert report.memory_bound in ("cgroup", "process")
    assert len(report.profile_sha256) == 64


def test_the_self_test_explains_a_missing_sandbox(monkeypatch):
    monkeypatch.setattr("wander.sandbox.bubblewrap._ISOLATION", ("--no-such-option",))
    with pytest.raises(SandboxError, match="no-such-option"):
        check_sandbox()
