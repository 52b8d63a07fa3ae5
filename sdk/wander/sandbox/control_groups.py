"""Control groups, the only way to limit the resources of all processes of a sandbox together.

Version 2 is used if this process may create groups (root, `Delegate=yes`, a desktop session). Otherwise
version 1 is used if root may create groups, and `systemd-run --user --scope` as a last resort. Without any of
them, memory is limited only per process, and a process can evade that limit by forking. The run's record
states which kind of limit applied.
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
"""Kind of the memory limit: for all processes together, or for each process."""
_PREFIX = "wander-"
CLOSE_ROUNDS, CLOSE_PAUSE = 100, 0.02
"""Number of checks whether a group's processes have exited, and seconds between the checks."""
_numbers = itertools.count()


@dataclass
class ControlGroup:
    """Limits of a sandbox. The defaults stand for no group, so that only the limits of each process apply."""

    memory_bound: MemoryBound = "process"
    prefix: list[str] = field(default_factory=list)
    """Words before the launcher's command, if the user's systemd creates the group."""
    folders: list[Path] = field(default_factory=list)
    """Folders in the control group file systems: one for version 2, or one per controller for version 1."""
    events: Path | None = None
    """File with the kernel's event counts. A systemd scope disappears with its last process, and so do its
    counts."""

    @property
    def joined(self) -> list[str]:
        """Files that the launcher writes its process id to."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def out_of_memory(self) -> bool:
        """Return whether the kernel killed a process because the group's memory was used up."""
        with contextlib.suppress(OSError):  # the group and its counts are gone
            for line in self.events.read_text().splitlines() if self.events else ():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def close(self) -> bool:
        """Kill the remaining processes and remove the folders; returns False while processes remain."""
        for folder in list(self.folders):
            with contextlib.suppress(OSError):  # version 1 and old kernels do not have this file
                (folder / "cgroup.kill").write_text("1")
            with contextlib.suppress(OSError):  # processes remain in it
                folder.rmdir()
            if not folder.exists():
                self.folders.remove(folder)
        return not self.folders

    def remove(self) -> None:
        """Close the group, giving killed processes two seconds to exit."""
        for _ in range(CLOSE_ROUNDS):
            if self.close():
                return
            time.sleep(CLOSE_PAUSE)


def new_control_group(policy: SandboxPolicy, root: Path = Path("/sys/fs/cgroup")) -> ControlGroup:
    """Create the most capable group that this process may create.

    If the group runs out of memory, the kernel kills all of its processes.
    """
    group = new_group_folders(policy.memory, policy.processes, root, kill_together=True)
    program = _scopes() if group is None else None
    if group is not None or program is None:
        return group or ControlGroup()
    limits = (f"MemoryMax={policy.memory}", "MemorySwapMax=0", f"TasksMax={policy.processes + 8}")
    options = [part for limit in limits for part in ("-p", limit)]
    return ControlGroup("cgroup", [program, "--user", "--scope", "--quiet", "--collect", *options, "--"])


def new_group_folders(
    memory: int, processes: int, root: Path = Path("/sys/fs/cgroup"), *, kill_together: bool = False
) -> ControlGroup | None:
    """Create a group with limits in bytes and processes; None if this process may not create folders."""
    own = _own_groups()
    return _version_2(memory, processes, kill_together, root, own.get("")) or _version_1(
        memory, processes, root, own
    )


def _version_2(
    memory: int, processes: int, kill_together: bool, root: Path, own: str | None
) -> ControlGroup | None:
    """Create a group in the nearest ancestor group that delegates memory and pids."""
    if own is None or not (root / "cgroup.controllers").exists():
        return None
    settings = {
        "memory.max": memory,
        "memory.swap.max": 0,
        "memory.oom.group": int(kill_together),
        "pids.max": processes + 8,
    }
    here = root / own.lstrip("/")
    for parent in (here, *here.parents):
        if not parent.is_relative_to(root):
            return None
        with contextlib.suppress(OSError):  # this process may not write here, but perhaps to the group above
            handed_on = set((parent / "cgroup.subtree_control").read_text().split())
            if {"memory", "pids"} <= handed_on:
                return _make([parent], [settings], "memory.events")
    return None


def _version_1(memory: int, processes: int, root: Path, own: dict[str, str]) -> ControlGroup | None:
    """Create a group below this process's own group in each of two hierarchies."""
    parents = [root / name / own.get(name, "/").lstrip("/") for name in ("memory", "pids")]
    if not all((parent / "cgroup.procs").exists() for parent in parents):
        return None
    limits = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
    with contextlib.suppress(OSError):  # only root may create groups there
        return _make(parents, [limits, {"pids.max": processes + 8}], "memory.oom_control")
    return None


def _make(parents: list[Path], settings: list[dict[str, int]], events: str) -> ControlGroup:
    """Create a folder in each parent, with its settings; on `OSError`, no folder remains.

    `events` is the file in the first folder that contains the kernel's counts.
    """
    name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    folders: list[Path] = []
    try:
        for parent, values in zip(parents, settings, strict=True):
            remove_left_groups(parent)
            (parent / name).mkdir()
            folders.append(parent / name)
            for file, value in values.items():
                # The settings about swap do not exist if the kernel does not count swap.
                if (parent / name / file).exists() or "sw" not in file:
                    (parent / name / file).write_text(str(value))
        _try_to_join(folders)
    except OSError:
        for folder in folders:
            folder.rmdir()
        raise
    return ControlGroup("cgroup", folders=folders, events=folders[0] / events)


def remove_left_groups(parent: Path) -> None:
    """Remove the groups in a parent group that killed hosts left behind."""
    for left in parent.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):  # it is still in use
                left.rmdir()


def _try_to_join(folders: list[Path]) -> None:
    """Let a child join the groups as the launcher will, because permission to create groups does not always
    include moving into them."""
    tried = ["/bin/sh", "-c", 'for file; do echo $$ > "$file" || exit 1; done', "sh"]
    joined = [str(folder / "cgroup.procs") for folder in folders]
    done = subprocess.run([*tried, *joined], capture_output=True, check=False)  # noqa: S603 - constant
    if done.returncode != 0:
        raise PermissionError(f"cannot join {joined}")


def _own_groups() -> dict[str, str]:
    """Return this process's group in each hierarchy, by controller; version 2 has an empty name."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


@functools.cache
def _scopes() -> str | None:
    """Return the path of `systemd-run` if the user's systemd can create scopes."""
    program = shutil.which("systemd-run")
    if program is None or not os.environ.get("XDG_RUNTIME_DIR"):
        return None
    tried = [program, "--user", "--scope", "--quiet", "--collect", "true"]
    try:
        done = subprocess.run(tried, capture_output=True, timeout=10, check=False)  # noqa: S603 - constant
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 else None
