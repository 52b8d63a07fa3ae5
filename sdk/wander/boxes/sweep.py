"""Finds and removes containers whose host was killed.

Boxes by bubblewrap end with their host. Containers usually do, too, because their supervisor ends them; they
remain if the host is killed while one starts, or if the machine stops.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from wander.sandbox.control_groups import new_group_folders

HOST_LABEL = "wander.host"
"""Label of a container that names its host: boot, process namespace, process id and start time."""
PROGRAMS = ("podman", "docker")
_GROUP_BYTES = 64 << 20


@functools.cache
def _machine_identity() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"


def host_identity() -> str:
    """Return the identity of this process, which no later process has."""
    return f"{_machine_identity()}-{os.getpid()}-{_start_time(os.getpid())}"


def remove_left_groups() -> None:
    """Remove the control groups of killed hosts, as creating a group does."""
    group = new_group_folders(_GROUP_BYTES, 8)
    if group is not None:
        group.remove()


def find_orphans(program: str) -> list[str]:
    """Return the names of the containers whose host no longer exists."""
    names = _run(program, "ps", "--all", "--filter", f"label={HOST_LABEL}", "--format", "{{.Names}}").split()
    if not names:
        return []
    row = '{{.Name}} {{index .Config.Labels "' + HOST_LABEL + '"}}'
    rows = _run(program, "container", "inspect", "--format", row, *names).splitlines()
    pairs = [line.rpartition(" ") for line in rows]
    return [name.lstrip("/") for name, _, host in pairs if is_gone(host)]


def remove_orphans(program: str) -> list[str]:
    """Remove the containers whose host no longer exists, and return their names."""
    if shutil.which(program) is None:
        return []
    found = find_orphans(program)
    if found:
        _run(program, "rm", "--force", "--volumes", *found)
    return found


def is_gone(identity: str) -> bool:
    """Return whether the host with this identity no longer exists."""
    boot, namespace, process, begun = identity.split("-") if identity.count("-") == 3 else ("", "", "", "")
    own_boot, own_namespace = _machine_identity().split("-")
    if boot != own_boot:
        return True
    # A host in another process namespace cannot be seen from here, so its containers are kept.
    return namespace == own_namespace and begun != _start_time(int(process))


def _start_time(process: int) -> str:
    """Return the time at which a process started, in clock ticks since the boot; empty if it does not
    exist."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    return done.stdout if done.returncode == 0 else ""
