"""How the REPL's process is started: plainly, or inside bubblewrap."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wander.errors import SandboxError

Sandbox = Literal["none", "auto", "bwrap"]
"""`none`: an ordinary process with limits. `bwrap`: bubblewrap, or no REPL at all. `auto`: bubblewrap where
it is installed."""

NOBODY = 65534
SCRATCH = "/tmp"  # noqa: S108 - a file system of the sandbox's own, in memory
SOURCE = Path(__file__).with_name("repl_child.py")

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""All that the process sees of the environment; secrets of the host are not in it. Threads are one because
linear algebra gives other bits with other thread counts."""


@dataclass(frozen=True)
class Launch:
    """What is started, and as whom."""

    command: list[str]
    environment: dict[str, str]
    user: int | None
    """The user that is taken on first, or None to stay who we are."""


def launch(sandbox: Sandbox, python: str | None, folder: Path, arguments: list[str], disk_mb: int) -> Launch:
    """Return how to start the child in `folder`; raises `SandboxError` when the sandbox cannot be had.

    Bubblewrap is never started as root: in a user namespace the root outside keeps its rights over
    `/proc/sys`. A root host takes on an ordinary user first.
    """
    interpreter = python or sys.executable
    # -s and -P keep user packages and the current folder out; -I would also ignore PYTHONHASHSEED.
    inner = [interpreter, "-s", "-P", "-c", SOURCE.read_text(encoding="utf-8"), *arguments]
    environment = ENVIRONMENT | {"HOME": str(folder), "TMPDIR": str(folder)}
    bwrap = None if sandbox == "none" else shutil.which("bwrap")
    if sandbox == "none" or (sandbox == "auto" and bwrap is None) or _is_confined():
        return Launch(inner, environment, None)
    if bwrap is None:
        raise SandboxError(
            "bubblewrap is not installed", hint='install the `bubblewrap` package, or pass `sandbox="none"`'
        )
    user = NOBODY if hasattr(os, "geteuid") and os.geteuid() == 0 else None
    return Launch([bwrap, *_profile(interpreter, disk_mb), "--", *inner], ENVIRONMENT, user)


def _is_confined() -> bool:
    """Tell whether the environment is in a sandbox already, in which no other can be made.

    It has no network and nothing of the host's to write either, and the worker's memory is closed to it.
    """
    if os.environ.get("WANDER_CONFINED") != "bubblewrap":
        return False
    return Path("/proc/1/comm").read_text(encoding="utf-8").strip() == "bwrap"


def _profile(interpreter: str, disk_mb: int) -> list[str]:
    """Return bubblewrap's arguments: no network, a read-only system, `/tmp` as the only place to write."""
    variables = {**ENVIRONMENT, "HOME": SCRATCH, "TMPDIR": SCRATCH}
    return [
        *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"),
        *("--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"),
        *(part for name, value in variables.items() for part in ("--setenv", name, value)),
        *("--ro-bind", "/usr", "/usr"),
        *_system_folders(),
        *(part for root in _python_roots(interpreter) for part in ("--ro-bind", root, root)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(disk_mb << 20), "--tmpfs", SCRATCH),
        *("--size", str(16 << 20), "--tmpfs", "/dev/shm"),  # noqa: S108 - the sandbox's own
        *("--chdir", SCRATCH, "--remount-ro", "/"),
    ]


def _system_folders() -> list[str]:
    """Return the folders beside `/usr` that programs expect: links into it, or folders of their own."""
    arguments: list[str] = []
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _python_roots(interpreter: str) -> list[str]:
    """Return the folders outside `/usr` that the interpreter needs: its virtual environment and its base."""
    found = Path(shutil.which(interpreter) or interpreter).absolute()
    roots = {found.parent.parent, found.resolve().parent.parent}
    return sorted(str(root) for root in roots if root not in (Path("/usr"), Path("/")))
