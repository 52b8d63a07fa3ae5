"""Arguments of bubblewrap: a new namespace of every kind, a read-only system, and `/tmp` as the only writable
folder."""

from __future__ import annotations

import hashlib

from wander.sandbox.control_groups import new_control_group
from wander.sandbox.policy import SandboxPolicy
from wander.sandbox.seccomp import Machine, compile_filter
from wander.sandbox.support import require_support
from wander.sandbox.visible import Visible
from wander.types import canonical_json
from wander.wire import SandboxPin

SCRATCH = "/tmp"  # noqa: S108 - a file system in memory that belongs to the sandbox
_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"),
    *("--disable-userns", "--assert-userns-disabled", "--cap-drop", "ALL"),
    *("--new-session", "--die-with-parent"),
    *("--proc", "/proc", "--dev", "/dev"),
    *("--ro-bind", "/dev/null", "/proc/cmdline"),  # hides how the host was started
)

VARIABLES = {
    "HOME": SCRATCH,
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "WANDER_CONFINED": "bubblewrap",
}
"""Environment variables of every sandboxed worker, independent of the host's variables."""


def bubblewrap_arguments(
    policy: SandboxPolicy, sees: Visible, filter_fd: int, host_name: str
) -> list[str | int]:
    """Return the arguments of bubblewrap up to the command.

    A number stands for the descriptor of the bind with that index, which the launcher opens.
    """
    shown = [("--ro-bind-fd", index, bind.path) for index, bind in enumerate(sees.binds)]
    return [
        *_ISOLATION,
        *("--hostname", host_name),
        *("--size", str(policy.tmp), "--tmpfs", SCRATCH, "--size", str(policy.shm), "--tmpfs", "/dev/shm"),  # noqa: S108
        *(word for words in shown for word in words),
        *(part for target, path in sees.links for part in ("--symlink", target, path)),
        *("--chdir", SCRATCH, "--remount-ro", "/", "--remount-ro", "/dev", "--seccomp", str(filter_fd), "--"),
    ]


def profile_digest(policy: SandboxPolicy, machine: Machine) -> str:
    """Return the digest that identifies a profile: isolation, filter and limits, without the paths of this
    machine."""
    profile = {
        "isolation": _ISOLATION,
        "variables": VARIABLES,
        "filter": hashlib.sha256(compile_filter(machine)).hexdigest(),
        "limits": policy.limits(),
    }
    return hashlib.sha256(canonical_json(profile).encode()).hexdigest()


def sandbox_pin(policy: SandboxPolicy) -> SandboxPin:
    """Return a manifest's description of a sandbox on this machine; raises `SandboxError` if there can be
    none."""
    support = require_support()
    group = new_control_group(policy)
    group.close()
    return SandboxPin(
        version=".".join(map(str, support.version)),
        profile_sha256=profile_digest(policy, support.machine),
        limits=policy.limits(),
        memory_bound=group.memory_bound,
    )
