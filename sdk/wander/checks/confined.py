"""A process of a check in the sandbox. What it is asked and what it tells pass through inherited memory,
since it can write no file of the host's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wander.sandbox import SandboxPolicy

_GROUP_ROUNDS, _GROUP_PAUSE = 100, 0.02
_LONGEST_OUTPUT = 64 << 10


@dataclass(frozen=True)
class ConfinedProbe:
    """What a process left."""

    told: str
    """Its result as JSON; empty where it has none."""
    doing: str
    """What it was doing last."""
    ending: str
    """How it ended, in words."""


def run_confined(
    policy: SandboxPolicy,
    python: Path,
    source: Path | None,
    asked: str,
    *,
    timeout: float,
    variables: Mapping[str, str],
) -> ConfinedProbe:
    """Run one process of a check in the sandbox; raises `SandboxError` where none can be made."""
    from wander.sandbox.groups import new_group
    from wander.sandbox.support import require_support
    from wander.sandbox.visible import visible
    from wander.worker.process.sandboxed import confine

    support, sees = require_support(), visible(python, source, policy.read)
    with contextlib.ExitStack() as stack:
        request, told, note = (_memory(stack, name) for name in ("request", "told", "note"))
        os.write(request, asked.encode())
        os.lseek(request, 0, os.SEEK_SET)
        group = new_group(policy)
        words = ["wander.checks.probe", "--descriptors", str(request), str(told), str(note)]
        plan = {"module": words[0], "arguments": words}
        confined = confine(policy, support, sees, group, plan, variables)
        for descriptor in confined.descriptors:
            stack.callback(os.close, descriptor)
        output = stack.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(  # noqa: S603 - our own module, in the sandbox
            confined.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=confined.environ,
            cwd="/",
            pass_fds=(*confined.descriptors, request, told, note),
            start_new_session=True,
        )
        try:
            ending = f"its process ended with status {process.wait(timeout)}"
        except subprocess.TimeoutExpired:
            ending = f"it was not done after {timeout:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            starved = group.out_of_memory()
            for _ in range(_GROUP_ROUNDS):
                if group.close():
                    break
                time.sleep(_GROUP_PAUSE)
        if starved:
            ending = "its process ran out of the memory that the sandbox allows"
        output.seek(0)
        said = output.read(_LONGEST_OUTPUT).decode("utf-8", "replace")
        _require_made(process.returncode, said)
        last = said.strip().splitlines()
        return ConfinedProbe(_text(told), _text(note), ending + (f": {last[-1]:.300}" if last else ""))


def _require_made(status: int | None, said: str) -> None:
    """Raise `SandboxError` where the sandbox was not made, which is no fault of the environment."""
    from wander.sandbox import inside, launcher
    from wander.sandbox.support import explain_failure

    if status in (1, launcher.FAILED, inside.UNCONFINED) and said.startswith(("bwrap: ", "sandbox: ")):
        raise explain_failure(said.splitlines()[0].partition(": ")[2])


def _memory(stack: contextlib.ExitStack, name: str) -> int:
    descriptor = os.memfd_create(name)
    stack.callback(os.close, descriptor)
    return descriptor


def _text(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")
