"""Control groups: the one way to bound what all processes of a sandbox take together.

Version 2 where this process may make groups (root, `Delegate=yes`, a desktop session), else version 1 where
root may, else `systemd-run --user --scope`. Without any of them memory is bounded for each process alone,
which a process that forks evades; the run's record says which of the two it was.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wander.sandbox.policy import SandboxPolicy

MemoryBound = Literal["cgroup", "process"]
"""By what the memory is bounded: all processes together, or each by itself."""
_PREFIX = "wander-"
CLOSE_ROUNDS, CLOSE_PAUSE = 100, 0.02
"""How often, and after how many seconds, it is looked again whether a group's processes have gone."""
_numbers = itertools.count()


@dataclass
class ControlGroup:
    """What bounds one sandbox; as it stands, nothing but the limits of each process by itself."""

    memory_bound: MemoryBound = "process"
    prefix: list[str] = field(default_factory=list)
    """What the launcher's command is preceded by, where the user's systemd makes the group."""
    folders: list[Path] = field(default_factory=list)
    """In the control group file systems: one for version 2, one a controller for version 1."""
    events: Path | None = None
    """Where the kernel counts. A scope of systemd is gone with its last process, and its counts with it."""

    @property
    def joined(self) -> list[str]:
        """Files into which the launcher writes its process id."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def out_of_memory(self) -> bool:
        """Tell whether the kernel ended a process because the group's memory was used up."""
        with contextlib.suppress(OSError):  # the group is gone, and its counts with it
            for line in self.events.read_text().splitlines() if self.events else ():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def close(self) -> bool:
        """Kill what is left, and remove the folders; False while processes are left in one."""
        for folder in list(self.folders):
            with contextlib.suppress(OSError):  # version 1 and old kernels have no such file
                (folder / "cgroup.kill").write_text("1")
            with contextlib.suppress(OSError):  # processes are left in it
                folder.rmdir()
            if not folder.exists():
                self.folders.remove(folder)
        return not self.folders

    def remove(self) -> None:
        """Close it, giving the processes that were killed two seconds to go."""
        for _ in range(CLOSE_ROUNDS):
            if self.close():
                return
            time.sleep(CLOSE_PAUSE)


def new_control_group(policy: SandboxPolicy, root: Path = Path("/sys/fs/cgroup")) -> ControlGroup:
    """Make the best group that this process may make."""
    own = _own_groups()
    for made in (_version_2(policy, root, own.get("")), _version_1(policy, root, own)):
        if made is not None:
            return made
    program = _scopes()
    if program is None:
        return ControlGroup()
    limits = (f"MemoryMax={policy.memory}", "MemorySwapMax=0", f"TasksMax={policy.processes + 8}")
    options = [part for limit in limits for part in ("-p", limit)]
    return ControlGroup("cgroup", [program, "--user", "--scope", "--quiet", "--collect", *options, "--"])


def _version_2(policy: SandboxPolicy, root: Path, own: str | None) -> ControlGroup | None:
    """Make a group in the nearest one above this process that hands memory and pids on."""
    if own is None or not (root / "cgroup.controllers").exists():
        return None
    settings = {
        "memory.max": policy.memory,
        "memory.swap.max": 0,
        "memory.oom.group": 1,
        "pids.max": policy.processes + 8,
    }
    here = root / own.lstrip("/")
    for parent in (here, *here.parents):
        if not parent.is_relative_to(root):
            return None
        with contextlib.suppress(OSError):  # not this process's to write: the one above may be
            handed_on = set((parent / "cgroup.subtree_control").read_text().split())
            if {"memory", "pids"} <= handed_on:
                return _make([parent], [settings], "memory.events")
    return None


def _version_1(policy: SandboxPolicy, root: Path, own: dict[str, str]) -> ControlGroup | None:
    """Make a group below this process's own in each of two hierarchies."""
    parents = [root / name / own.get(name, "/").lstrip("/") for name in ("memory", "pids")]
    if not all((parent / "cgroup.procs").exists() for parent in parents):
        return None
    memory = {"memory.limit_in_bytes": policy.memory, "memory.memsw.limit_in_bytes": policy.memory}
    with contextlib.suppress(OSError):  # only root may make groups there
        return _make(parents, [memory, {"pids.max": policy.processes + 8}], "memory.oom_control")
    return None


def _make(parents: list[Path], settings: list[dict[str, int]], events: str) -> ControlGroup:
    """Make one folder a parent with its settings; raises `OSError`, leaving none.

    `events` is the file of the first folder in which the kernel counts.
    """
    name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    folders: list[Path] = []
    try:
        for parent, values in zip(parents, settings, strict=True):
            for left in parent.glob(f"{_PREFIX}*"):  # of hosts that were killed
                pid = left.name.removeprefix(_PREFIX).partition("-")[0]
                if not Path("/proc", pid).exists():
                    with contextlib.suppress(OSError):  # still in use
                        left.rmdir()
            (parent / name).mkdir()
            folders.append(parent / name)
            for file, value in values.items():
                # The settings about swap do not exist where the kernel does not count it.
                if (parent / name / file).exists() or "sw" not in file:
                    (parent / name / file).write_text(str(value))
        _try_to_join(folders)
    except OSError:
        for folder in folders:
            folder.rmdir()
        raise
    return ControlGroup("cgroup", folders=folders, events=folders[0] / events)


def _try_to_join(folders: list[Path]) -> None:
    """Have a child join, as the launcher will: who may make groups may not always move into them."""
    tried = ["/bin/sh", "-c", 'for file; do echo $$ > "$file" || exit 1; done', "sh"]
    joined = [str(folder / "cgroup.procs") for folder in folders]
    done = subprocess.run([*tried, *joined], capture_output=True, check=False)  # noqa: S603 - our own words
    if done.returncode != 0:
        raise PermissionError(f"cannot join {joined}")


def _own_groups() -> dict[str, str]:
    """Return this process's group in each hierarchy, by controller; version 2's is under the empty name."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


@functools.cache
def _scopes() -> str | None:
    """Return `systemd-run` where the user's systemd makes scopes."""
    program = shutil.which("systemd-run")
    if program is None or not os.environ.get("XDG_RUNTIME_DIR"):
        return None
    tried = [program, "--user", "--scope", "--quiet", "--collect", "true"]
    try:
        done = subprocess.run(tried, capture_output=True, timeout=10, check=False)  # noqa: S603 - our own words
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 else None
