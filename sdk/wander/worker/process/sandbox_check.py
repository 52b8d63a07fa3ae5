"""Tests the sandbox: starts one as for an environment, and tries everything in it that must not work."""

from __future__ import annotations

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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wander.errors import SandboxError
from wander.sandbox.bubblewrap import profile_digest
from wander.sandbox.control_groups import ControlGroup, new_control_group
from wander.sandbox.policy import SandboxPolicy
from wander.sandbox.support import Support, explain_failure, require_support
from wander.sandbox.visible import choose_binds
from wander.worker.process.sandboxed import confine

_SECONDS = 120.0
_SECRET_VARIABLE = "WANDER_SANDBOX_CHECK_SECRET"  # noqa: S105 - a variable's name


@dataclass(frozen=True)
class ProbeOutcome:
    """Outcome of one attempt."""

    name: str
    held: bool
    """Whether the sandbox stopped the attempt."""
    how: str
    """Error or signal that stopped the attempt, or what it obtained."""


@dataclass(frozen=True)
class SandboxReport:
    """Result of the self-test."""

    bwrap: str
    version: str
    machine: str
    user: str
    memory_bound: str
    profile_sha256: str
    seconds: float
    warnings: list[str]
    outcomes: list[ProbeOutcome]

    @property
    def escaped(self) -> list[ProbeOutcome]:
        """Attempts that succeeded."""
        return [outcome for outcome in self.outcomes if not outcome.held]


def check_sandbox(policy: SandboxPolicy | None = None) -> SandboxReport:
    """Make a sandbox and try to escape from it. Raises `SandboxError` if no sandbox can be made."""
    limits = policy or SandboxPolicy(processes=48, tmp=8 << 20, shm=4 << 20, file=4 << 20)
    support = require_support()
    group = new_control_group(limits)
    warnings = [support.warning] if support.warning else []
    if group.memory_bound == "process":
        warnings.append(
            "no control group can be made here: memory is limited per process, which an "
            "environment can evade by starting several processes"
        )
    begun = time.monotonic()
    try:
        with bait(limits) as prepared:
            # Passed on standard input, because the probes could find the secret in the arguments.
            plan = {"module": "wander.sandbox.probes", "arguments": ["probes"]}
            output = _run(limits, support, group, plan, json.dumps(prepared).encode())
    finally:
        group.remove()
    return SandboxReport(
        bwrap=support.bwrap,
        version=".".join(map(str, support.version)),
        machine=os.uname().machine,
        user="a separate user, because this is root" if support.as_root else "this user",
        memory_bound=group.memory_bound,
        profile_sha256=profile_digest(limits, support.machine),
        seconds=round(time.monotonic() - begun, 3),
        warnings=warnings,
        outcomes=[ProbeOutcome(name, **outcome) for name, outcome in json.loads(output).items()],
    )


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
        decoy = subprocess.Popen(waiting, stdin=subprocess.PIPE)  # noqa: S603 - fixed arguments
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


def start_sandbox(policy: SandboxPolicy | None = None) -> Support:
    """Start a sandbox that does nothing, and return the support that it was made with.

    Raises `SandboxError` if that does not work here, with the cause and the remedy.
    """
    support = require_support()
    _run(policy or SandboxPolicy(), support, ControlGroup(), {"module": "__hello__"}, b"")
    return support


def _run(
    policy: SandboxPolicy, support: Support, group: ControlGroup, plan: dict[str, Any], standard_input: bytes
) -> bytes:
    """Run a plan in a sandbox with this Python, and return its output."""
    sees = choose_binds(None, None, policy.read, policy.hide)
    confined = confine(policy, support, sees, group, {"arguments": [""], **plan}, {})
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            confined.command,
            input=standard_input,
            capture_output=True,
            env=confined.environ,
            cwd="/",
            pass_fds=confined.descriptors,
            start_new_session=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"the sandbox did not exit within {_SECONDS:g} s") from error
    finally:
        for descriptor in (*confined.own, confined.ready):
            os.close(descriptor)
    if done.returncode != 0:
        raise explain_failure(done.stderr.decode("utf-8", "replace"))
    return done.stdout
