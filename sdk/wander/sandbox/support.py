"""Whether this machine can hold a sandbox, and what to do when it cannot. Nothing here falls back."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from wander.errors import SandboxError
from wander.sandbox import inside, launcher
from wander.sandbox.seccomp import MACHINES, Machine

OLDEST = (0, 8, 0)
"""The first bubblewrap with `--disable-userns` and `--size`."""
REPAIRED = (0, 12, 0)
"""The first release without CVE-2026-87766."""
OLDEST_KERNEL = (5, 14)
"""The first that counts a user namespace's processes by itself."""
FIRST_UID = 1_879_048_192
"""A root host runs each sandbox as this plus a process id, a range that systemd and /etc/subuid leave."""

_FORBIDDEN = ("uid map", "RTM_NEWADDR", "No permissions to create", "Creating new namespace failed")
_AS_ROOT = ("(a mount namespace)", "(private mounts)", "(another user)")
_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_USERS = "/proc/self/uid_map"
_PROFILE = "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict"


@dataclass(frozen=True)
class Support:
    """What a sandbox is made with here."""

    bwrap: str
    """Path of the program."""
    version: tuple[int, ...]
    machine: Machine
    as_root: bool
    """Whether this process is root, so that it must take on another user first."""

    @property
    def warning(self) -> str | None:
        """What is known against this version of bubblewrap."""
        if self.version >= REPAIRED:
            return None
        return (
            f"bubblewrap {_dotted(self.version)} is older than {_dotted(REPAIRED)}: unless your distribution "
            "has mended CVE-2026-87766 in it, upgrade (nothing is mounted below a folder of the environment, "
            "which that fault needs)"
        )


def require_support() -> Support:
    """Return what a sandbox is made with; raises `SandboxError` with the remedy where there can be none."""
    if sys.platform != "linux":
        raise SandboxError(
            f"there is no sandbox on `{sys.platform}`: it is made of Linux namespaces",
            hint="run it on Linux, or leave `--sandbox` out",
        )
    name = os.uname().machine
    if name not in MACHINES:
        raise SandboxError(
            f"there is no system call filter for `{name}` yet",
            hint=f"run it on one of {', '.join(MACHINES)}, or leave `--sandbox` out",
        )
    release = os.uname().release
    if _numbers(release)[:2] < OLDEST_KERNEL:
        raise SandboxError(
            f"Linux {release} is too old to bound a sandbox's processes",
            hint=f"run it on Linux {_dotted(OLDEST_KERNEL)} or newer, or leave `--sandbox` out",
        )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(
            "bubblewrap is not installed", hint="run `apt install bubblewrap` (or dnf, pacman, apk)"
        )
    version = _version(bwrap)
    if version < OLDEST:
        raise SandboxError(
            f"bubblewrap {_dotted(version)} is too old",
            hint=f"install {_dotted(OLDEST)} or newer, best {_dotted(REPAIRED)} or a patched package",
        )
    as_root = os.geteuid() == 0
    if as_root:
        _require_other_users()
    return Support(bwrap, version, MACHINES[name], as_root)


def find_failure(status: int | None, said: str) -> SandboxError | None:
    """Return the error where a process ended with this status since there was no sandbox for it.

    `said` is what it wrote first: bubblewrap and the launcher begin their complaints with their names.
    """
    who, _, why = said.strip().partition("\n")[0].partition(": ")
    if status in (1, launcher.FAILED, inside.UNCONFINED) and who in ("bwrap", "sandbox"):
        return explain_failure(why)
    return None


def explain_failure(said: str) -> SandboxError:
    """Return the error for a sandbox that could not be built, from what bubblewrap or the launcher said."""
    if "private to root" in said:
        what, _, remedy = said.partition(": ")
        return SandboxError(f"{what}, and the sandbox runs as another user", hint=remedy)
    if any(part in said for part in _AS_ROOT):
        return SandboxError(
            f"root in this container may not do what the sandbox needs: {said}",
            hint="run `wander` as an ordinary user, or give it CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID",
        )
    if not any(part in said for part in _FORBIDDEN):
        return SandboxError(
            f"the sandbox could not be built: {said}", hint="`wander sandbox check` shows what works here"
        )
    if Path(_APPARMOR).exists() and Path(_APPARMOR).read_text().strip() != "0":
        hint = (
            f"AppArmor forbids user namespaces: `sudo cp {_PROFILE} /etc/apparmor.d/ && sudo apparmor_parser "
            "-r /etc/apparmor.d/bwrap-userns-restrict` (package apparmor-profiles)"
        )
    else:
        hint = (
            "allow user namespaces: `sysctl user.max_user_namespaces` must not be 0, and a container needs "
            "them allowed by its seccomp profile"
        )
    return SandboxError(f"this machine forbids what the sandbox is made of: {said}", hint=hint)


@functools.cache
def _version(bwrap: str) -> tuple[int, ...]:
    try:
        said = subprocess.run(  # noqa: S603 - the program that PATH names
            [bwrap, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(
            f"`{bwrap}` does not run: {error}", hint="install bubblewrap again: `apt install bubblewrap`"
        ) from error
    return _numbers(said)


def _require_other_users() -> None:
    """Root must become somebody else first: inside bubblewrap its rights over /proc/sys would remain."""
    ranges = [[int(word) for word in line.split()] for line in Path(_USERS).read_text().splitlines()]
    if not any(first <= FIRST_UID < first + count for first, _, count in ranges):
        raise SandboxError(
            "root in this container has no other users to run a sandbox as",
            hint="run `wander` as an ordinary user of the container",
        )


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
