"""Boxes by bubblewrap: over a root folder, or over the system's folders read-only.

What a box writes stays in memory and disappears with it. A box's processes belong to an ordinary user of the
host and see themselves as root.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wander.boxes.base import SYSTEM, BoxBackend, BoxSpec
from wander.boxes.programs import FOLDER, install
from wander.boxes.supervised import SupervisedBox, Supervisor, close_group, command_limits, digest_folder
from wander.errors import SandboxError
from wander.sandbox import launcher
from wander.sandbox.control_groups import ControlGroup, new_group_folders
from wander.sandbox.seccomp import compile_filter
from wander.sandbox.support import FIRST_UID, Support, explain_failure, find_fault, require_support
from wander.sandbox.visible import identify, system_folders
from wander.system.memory_files import make_memory_file
from wander.types import canonical_json

_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--hostname", "box"),
    *("--disable-userns", "--assert-userns-disabled", "--cap-drop", "ALL"),
    *("--new-session", "--die-with-parent", "--as-pid-1"),
)
_FIRST = "/bin/cat"
"""The first process. It copies one byte, which reports that the box is complete, and exits at the end of its
input, which comes with the end of the host. Processes inside cannot kill it, because it is process 1. Its
children are all orphans of the box; SIGCHLD is ignored, so the kernel reaps them."""
_SHARED_MEMORY = 64 << 20
_ERROR_BYTES = 4096
_MIB = 1 << 20
_ETC = {
    "/etc/passwd": b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    "/etc/hosts": b"127.0.0.1 localhost box\n::1 localhost\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
}
"""Files of a box over the system's folders, which does not show the host's `/etc`."""
_SHOWN_ETC = ("/etc/alternatives", "/etc/ssl/certs", "/etc/os-release", "/etc/mime.types")
_OVERLAY_KERNEL = (6, 6)
"""First version of Linux in which an ordinary user's files in memory can hold the marks of an overlay."""


class BubblewrapBackend(BoxBackend):
    """Starts boxes with bubblewrap."""

    name = "bwrap"

    def unavailable_reason(self, spec: BoxSpec) -> str | None:
        """Return why no box can be started from the spec, creating a sandbox to find out the first time."""
        if spec.image is not None or spec.dockerfile is not None:
            return "bubblewrap has no images: install Podman or Docker, or name a `root` folder"
        if spec.root is not None:
            if not Path(spec.root).is_dir():
                return f"the root folder `{spec.root}` does not exist"
            if os.path.realpath(spec.root) == "/":
                return "the root folder cannot be `/`: leave `root` out to show the system's folders"
            missing = [path for path in (_FIRST, "/bin/sh") if not os.path.lexists(f"{spec.root}{path}")]
            if missing:
                return f"the root folder `{spec.root}` has no `{missing[0]}`"
            kernel = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
            if kernel < _OVERLAY_KERNEL:
                return "a box over a root folder needs Linux 6.6 or newer"
        return find_fault()

    async def start(self, spec: BoxSpec, folders: Iterable[str] = ()) -> SupervisedBox:
        """Start a box, which also shows these folders of the host read-only at their paths."""
        reason = await asyncio.to_thread(self.unavailable_reason, spec)
        if reason is not None:
            raise SandboxError(f"cannot start a box with bubblewrap: {reason}")
        digest = await asyncio.to_thread(_digest, spec.root)
        shown = {folder: folder for folder in folders}
        for name in spec.programs:
            shown[f"{FOLDER}/{name}"] = str(await asyncio.to_thread(install, name))
        support = require_support()
        memory = spec.limits.memory_mb + spec.limits.disk_mb  # files in memory count, too
        group = await asyncio.to_thread(
            new_group_folders, memory * _MIB + _SHARED_MEMORY, spec.limits.processes
        )
        return await _start(spec, digest, shown, support, group or ControlGroup())


class _BubblewrapBox(SupervisedBox):
    """A box with bubblewrap's process, which exits after the box's first process."""

    def attach(self, process: Process, alive: int) -> None:
        """Own bubblewrap's process, and the pipe whose end also ends the box."""
        self._process = process
        self._alive = alive

    async def _end(self) -> None:
        os.close(self._alive)
        with contextlib.suppress(ProcessLookupError):  # bubblewrap ignores SIGCHLD, too
            self._process.kill()
        await self._process.wait()


async def _start(
    spec: BoxSpec, digest: str, shown: dict[str, str], support: Support, group: ControlGroup
) -> SupervisedBox:
    """Start bubblewrap and a supervisor at the same time."""
    process = held = None
    code = compile_filter(support.machine, local_sockets=True, one_owner=True)
    errors = _error_file()
    info, info_end = os.pipe()
    complete, complete_end = os.pipe()
    alive_end, alive = os.pipe()
    os.write(alive, b"1")
    try:
        try:
            pipes = (alive_end, complete_end, info_end, errors)
            process = await _launch(spec, shown, support, group, code, pipes)
            held = await Supervisor.start(
                groups=group.joined,
                uid=FIRST_UID + process.pid if support.as_root else None,
                filter_code=code,
                limits=command_limits(spec, has_group=bool(group.folders)),
                info=info,
                complete=complete,
            )
        finally:
            for descriptor in (info, info_end, complete, complete_end, alive_end):
                os.close(descriptor)
        first = await held.wait_until_ready()
        if first is None:
            said = os.pread(errors, _ERROR_BYTES, 0).decode("utf-8", "replace").strip("\0 \n")
            raise explain_failure(said or held.complaint())
        box = _BubblewrapBox(spec, digest, held, first, group)
        box.attach(process, alive)
    except (Exception, asyncio.CancelledError) as error:
        os.close(alive)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if held is not None:
            await held.close()
        await close_group(group)
        if isinstance(error, OSError):
            raise SandboxError(f"the box cannot be started: {error or type(error).__name__}") from error
        raise
    finally:
        os.close(errors)
    try:
        await box.prepare(has_files=spec.root is not None)
    except BaseException:
        await box.stop()
        raise
    return box


async def _launch(
    spec: BoxSpec,
    shown: dict[str, str],
    support: Support,
    group: ControlGroup,
    code: bytes,
    pipes: tuple[int, int, int, int],
) -> Process:
    """Start the launcher, which becomes bubblewrap."""
    stdin, stdout, info, errors = pipes
    contents = {} if spec.root is not None else _ETC
    made = [make_memory_file("box", content) for content in (code, *contents.values())]
    handed_on = [info, *made]
    numbers = iter(range(launcher.FIRST_DESCRIPTOR, launcher.FIRST_DESCRIPTOR + len(handed_on)))
    binds, arguments = _files(spec, shown)
    words: list[str | int] = [*support.command, *_ISOLATION, *("--info-fd", str(next(numbers)))]
    words += ["--seccomp", str(next(numbers)), *arguments]
    words += ["--proc", "/proc", "--ro-bind", "/dev/null", "/proc/cmdline", "--dev", "/dev"]
    words += ["--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]  # noqa: S108 - a path in the box
    for path in contents:
        words += ["--perms", "0644", "--file", str(next(numbers)), path]
    words += ["--remount-ro", "/dev", "--chdir", "/", "--", _FIRST]
    plan = {
        "groups": group.joined,
        "descriptors": handed_on,
        "limits": {"RLIMIT_CORE": (0, 0)},
        "uid": FIRST_UID if support.as_root else None,
        "binds": binds,
        "program": dict(support.program),
        "ignores": ["SIGCHLD"],
        "host": os.getpid(),
        "overlay": None if spec.root is None else (0, spec.limits.disk_mb * _MIB),
        "command": words,
    }
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", launcher.__file__, json.dumps(plan)),
            stdin=stdin,
            stdout=stdout,
            stderr=errors,
            env={},
            cwd="/",
            pass_fds=handed_on,
            start_new_session=True,
        )
    finally:
        for descriptor in made:
            os.close(descriptor)


def _files(spec: BoxSpec, shown: dict[str, str]) -> tuple[list[tuple[str, int, int]], list[str | int]]:
    """Return the binds of the launcher, and bubblewrap's arguments for the box's file system."""
    binds, arguments = _system_files(spec)
    if spec.root is not None:  # the launcher puts its overlay after the binds
        binds, arguments = [identify(spec.root)], ["--bind-fd", 1 + len(shown), "/"]
    for path, folder in shown.items():
        arguments += ["--ro-bind-fd", len(binds), path]
        binds.append(identify(folder))
    return binds, arguments


def _system_files(spec: BoxSpec) -> tuple[list[tuple[str, int, int]], list[str | int]]:
    shown, links = system_folders()
    shown += [path for path in _SHOWN_ETC if os.path.exists(path)]
    size = str(spec.limits.disk_mb * _MIB)
    arguments: list[str | int] = ["--size", size, "--tmpfs", "/", "--perms", "0755", "--dir", "/etc"]
    for index, path in enumerate(shown):
        arguments += ["--ro-bind-fd", index, path]
    for target, path in links:
        arguments += ["--symlink", target, path]
    return [identify(path) for path in shown], arguments


def _error_file() -> int:
    """Return a file in memory that cannot grow, because the first process keeps it open and the box may write
    it."""
    descriptor = os.memfd_create("errors", os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, _ERROR_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor


_digests: dict[tuple[Any, ...], str] = {}


def _digest(root: str | None) -> str:
    """Return the digest of a root folder, computed once per process, or of the name of the host's system."""
    if root is None:
        release = Path("/etc/os-release")
        system = {
            "machine": os.uname().machine,
            "release": release.read_text() if release.exists() else "",
        }
        return f"{SYSTEM}{hashlib.sha256(canonical_json(system).encode()).hexdigest()}"
    key = identify(root)
    if key not in _digests:
        _digests[key] = f"root:{digest_folder(Path(root))}"
    return _digests[key]
