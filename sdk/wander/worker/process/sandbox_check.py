"""Starts a sandbox as for an environment, to find out whether and how that works on this machine."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from wander.errors import SandboxError
from wander.sandbox.bubblewrap import profile_digest
from wander.sandbox.control_groups import ControlGroup, new_control_group
from wander.sandbox.policy import SandboxPolicy
from wander.sandbox.support import Support, explain_failure, require_support
from wander.sandbox.visible import choose_binds
from wander.worker.process.sandboxed import confine

_SECONDS = 120.0


@dataclass(frozen=True)
class SandboxReport:
    """The sandbox of this machine."""

    bwrap: str
    version: str
    machine: str
    user: str
    memory_bound: str
    profile_sha256: str
    warnings: list[str]


def check_sandbox() -> SandboxReport:
    """Start a sandbox, and describe it. Raises `SandboxError` if that does not work here."""
    support, policy = start_sandbox(), SandboxPolicy()
    group = new_control_group(policy)
    group.remove()
    warnings = [support.warning] if support.warning else []
    if group.memory_bound == "process":
        warnings.append(
            "no control group can be made here: memory is limited per process, which an "
            "environment can evade by starting several processes"
        )
    return SandboxReport(
        bwrap=support.bwrap,
        version=".".join(map(str, support.version)),
        machine=os.uname().machine,
        user="a separate user, because this is root" if support.as_root else "this user",
        memory_bound=group.memory_bound,
        profile_sha256=profile_digest(policy, support.machine),
        warnings=warnings,
    )


def start_sandbox(policy: SandboxPolicy | None = None) -> Support:
    """Start a sandbox that does nothing, and return the support that it was made with.

    Raises `SandboxError` if that does not work here, with the cause and the remedy.
    """
    support = require_support()
    limits = policy or SandboxPolicy()
    sees = choose_binds(None, None, limits.read, limits.hide)
    plan = {"arguments": [""], "module": "__hello__"}
    confined = confine(limits, support, sees, ControlGroup(), plan, {})
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            confined.command,
            stdin=subprocess.DEVNULL,
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
    return support
