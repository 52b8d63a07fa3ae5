"""A worker's process in the sandbox, what it prints, and the connections that its code opens to the host."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wander.errors import SandboxError
from wander.sandbox import launcher
from wander.sandbox.bubblewrap import VARIABLES, bubblewrap_arguments
from wander.sandbox.control_groups import CLOSE_PAUSE, CLOSE_ROUNDS, ControlGroup, new_control_group
from wander.sandbox.policy import SandboxPolicy
from wander.sandbox.seccomp import compile_filter
from wander.sandbox.support import FIRST_UID, Support, explain_failure, require_support
from wander.sandbox.visible import INSIDE, Runtime, Visible, choose_binds
from wander.worker.note import NOTE_BYTES
from wander.worker.process.start import FROM_OUTSIDE, WorkerProcess, own_variables

TakeCall = Callable[[socket.socket], None]
"""Takes over a connected socket and speaks HTTP on it."""
_LAUNCHER = Path(launcher.__file__)
_CHUNK = 1 << 16
_HEAD = 4096
_PAUSE = 0.05
"""Once the log is full: between two reads, so that a flood costs the sandbox time and not this process."""
_LAST_OUTPUT_SECONDS = 2.0
_FILES_AT_FIRST = 1 << 20
"""Open files of the first program, before anything untrusted runs; it then takes the policy's limit."""

_SIGNALS = 256
"""Timers and queued signals. The kernel counts them for the user, as whom the host may run."""


@dataclass(frozen=True)
class Sandbox:
    """What a worker is confined by, and how its code reaches the host's endpoint."""

    policy: SandboxPolicy
    take_call: TakeCall
    endpoint: tuple[str, int]
    """Address of the endpoint as `OPENAI_BASE_URL` in the worker names it."""
    runtime: Runtime | None
    """What the environment runs with; None means this process's own Python."""
    host_name: str


@dataclass(frozen=True)
class Confined:
    """A command in the sandbox, ready to be started."""

    command: list[str]
    environ: dict[str, str]
    descriptors: tuple[int, ...]
    """To be passed on."""
    own: tuple[int, ...]
    """Those that were made for the sandbox, to be closed here once it is started."""
    ready: int
    """A pipe in which something comes once the sandbox is complete: what happens later is not the sandbox's
    fault."""

    def was_completed(self) -> bool:
        """Tell whether the sandbox was complete before its process ended."""
        try:
            return os.read(self.ready, 1) != b""
        except BlockingIOError:
            return False


class SandboxedWorker(WorkerProcess):
    """The process is bubblewrap's outermost; with it, everything inside ends."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: CappedLog,
        log_path: Path,
        *,
        confined: Confined,
        sockets: HandedSockets,
        group: ControlGroup,
        policy: SandboxPolicy,
        note: int,
    ) -> None:
        super().__init__(process, None, log_path)
        self._confined = confined
        self._complete = False
        self._note: int | None = note
        self._noted = b""
        self._log = log
        self._sockets = sockets
        self.control = sockets.control
        """A socket that listens in the sandbox: the worker's connection is the first on it."""
        self._group = group
        self._policy = policy
        self._starved = False

    @classmethod
    async def start_in(
        cls,
        sandbox: Sandbox,
        *,
        environ: Iterable[str],
        log_path: Path,
        variables: Mapping[str, str],
        source: Path | None,
    ) -> SandboxedWorker:
        """Start a worker that connects to `control`; raises `OSError` or `SandboxError`.

        `environ` and `variables` are those of `WorkerProcess.start`. `source` is the folder or file that it
        will load, which the sandbox has to show it.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        policy = sandbox.policy
        support = require_support()
        sees = choose_binds(sandbox.runtime, source, policy.read, policy.hide)
        with contextlib.ExitStack() as unless_started, contextlib.ExitStack() as handed_on:
            group = await asyncio.to_thread(new_control_group, policy)
            unless_started.callback(group.close)
            sockets = HandedSockets(sandbox.take_call)
            unless_started.callback(sockets.close)
            handed_on.callback(sockets.inside.close)
            # Memory that the worker shares with its host, of a size that it cannot change.
            note = os.memfd_create("note", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            unless_started.callback(os.close, note)
            os.ftruncate(note, NOTE_BYTES)
            fcntl.fcntl(note, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            note_fd, host_fd = map(handed_on_as, range(2))
            plan = {
                "module": "wander.worker",
                "arguments": ["wander.worker", "--note", str(note_fd)],
                "keep": [note_fd],
                "host": [host_fd, *sandbox.endpoint],
            }
            given = {**own_variables(environ), **variables}
            confined = confine(
                *(policy, support, sees, group, plan, given),
                descriptors=[note, sockets.inside.fileno()],
                host_name=sandbox.host_name,
            )
            unless_started.callback(os.close, confined.ready)
            reading, writing = os.pipe()
            for descriptor in (writing, *confined.own):
                handed_on.callback(os.close, descriptor)
            log = CappedLog(reading, log_path, policy.log)
            unless_started.callback(log.close)
            process = await asyncio.create_subprocess_exec(
                *confined.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=confined.environ,
                cwd="/",
                pass_fds=confined.descriptors,
                start_new_session=True,
            )
            unless_started.pop_all()
        return cls(
            *(process, log, log_path),
            confined=confined,
            sockets=sockets,
            group=group,
            policy=policy,
            note=note,
        )

    async def end(self, grace: float) -> None:
        """End it as any worker, then everything that was made for it."""
        try:
            await super().end(grace)
        finally:
            self._sockets.close()
            note, self._note = self._note, None
            if note is not None:
                self._noted = os.pread(note, NOTE_BYTES, 0)
                os.close(note)
                self._complete = self._confined.was_completed()
                os.close(self._confined.ready)
            await self._log.finish(_LAST_OUTPUT_SECONDS)
            self._starved |= self._group.out_of_memory()
            for _ in range(CLOSE_ROUNDS):  # in this thread, since `end` may run twice at once
                if self._group.close():
                    break
                await asyncio.sleep(CLOSE_PAUSE)

    def ending(self) -> str:
        """Say in words how it ended; what a limit of the sandbox did is told as such."""
        if self._starved or self._group.out_of_memory():
            return f"ran out of memory: the sandbox allows {size_in_words(self._policy.memory)}"
        with contextlib.suppress(ValueError):  # no signal ended it
            name = signal.Signals(self._signal()).name
            if name == "SIGXCPU":
                return f"used up the {self._policy.cpu} s of processor time that the sandbox allows"
            return f"was killed by {name}"
        return super().ending()

    def ended_itself(self) -> bool:
        """Whether it was the code in there that ended it, and not one of the limits for all rollouts."""
        if self._process.returncode is None or self._starved or self._group.out_of_memory():
            return False
        return self._signal() not in {*FROM_OUTSIDE, signal.SIGXCPU}

    def note(self) -> bytes | None:
        """Return what the worker noted of what it runs, or ran."""
        return self._noted if self._note is None else os.pread(self._note, NOTE_BYTES, 0)

    def _signal(self) -> int:
        """Return the signal that ended what ran inside, which bubblewrap tells as a shell does; else 0."""
        code = self._process.returncode or 0
        return -code if code < 0 else max(0, code - 128)

    def find_failed_start(self) -> SandboxError | None:
        """Return why there was no sandbox, where the process ended for that."""
        if self._complete or (self._process.returncode or -1) < 0:
            return None
        return explain_failure(self._log.head.decode("utf-8", "replace"))


def confine(
    policy: SandboxPolicy,
    support: Support,
    sees: Visible,
    group: ControlGroup,
    plan: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    descriptors: Sequence[int] = (),
    host_name: str = "sandbox",
) -> Confined:
    """Return how to start what `plan` (of `inside.py`) names.

    In the plan, `descriptors` have the numbers that `handed_on_as` returns for their indexes.
    """
    filter_fd = os.memfd_create("filter")
    os.write(filter_fd, compile_filter(support.machine))
    os.lseek(
        filter_fd, 0, os.SEEK_SET
    )  # bubblewrap reads to the end: each start needs a descriptor of its own
    ready, completed = os.pipe()
    os.set_blocking(ready, False)
    whole = {
        "processes": policy.processes,
        "files": policy.files,
        "path": list(sees.import_path),
        "prefix": sees.prefix,
        "executable": sees.executable,
        "keep": [],
        "host": None,
        "ready": launcher.FIRST_DESCRIPTOR,
        "module": None,
        **plan,
    }
    started = [sees.python, "-s", "-P", "-S", INSIDE, json.dumps(whole)]
    handed_on = (completed, filter_fd, *descriptors)
    filter_number = launcher.FIRST_DESCRIPTOR + 1
    launch = {
        "groups": group.joined,
        "descriptors": handed_on,
        "limits": _limits(policy, group),
        "uid": FIRST_UID if support.as_root else None,
        "binds": [(bind.source, bind.device, bind.inode) for bind in sees.binds],
        "program": dict(support.program),
        "command": [
            *support.command,
            *bubblewrap_arguments(policy, sees, filter_number, host_name),
            *started,
        ],
    }
    command = [*group.prefix, sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(launch)]
    path = f"{sees.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    environ = {"PATH": path, **VARIABLES, **variables}
    return Confined(command, environ, handed_on, (completed, filter_fd), ready)


def handed_on_as(index: int) -> int:
    """Return the number that a descriptor of the caller's has in the sandbox."""
    return launcher.FIRST_DESCRIPTOR + 2 + index


def _limits(policy: SandboxPolicy, group: ControlGroup) -> dict[str, tuple[int, int]]:
    """Return the soft and hard limits that hold for each process, by their names in `resource`."""
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_SIGPENDING": _SIGNALS,
        "RLIMIT_FSIZE": policy.file,
        "RLIMIT_NOFILE": _FILES_AT_FIRST,
    }
    if group.memory_bound == "process":
        limits["RLIMIT_AS"] = policy.memory
    # The soft limit ends the process with a signal that tells why; who catches that meets the hard one.
    cpu = {"RLIMIT_CPU": (policy.cpu, policy.cpu + 5)}
    return {**{name: (value, value) for name, value in limits.items()}, **cpu}


def size_in_words(size: float) -> str:
    """Return a number of bytes as people say it: `512 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


class HandedSockets:
    """Takes the sockets that listen in the sandbox's network namespace, and accepts calls of the endpoint.

    Its first program hands them over before anything of the environment runs (`wander.sandbox.inside`).
    """

    def __init__(self, take: TakeCall) -> None:
        self._take = take
        self._host, self.inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._host, self._receive)
        self._accepting: asyncio.Task[None] | None = None
        self.control: asyncio.Future[socket.socket] = self._loop.create_future()

    def close(self) -> None:
        """Accept no more; safe to call twice."""
        self._forget_host()
        self.inside.close()
        if self._accepting is not None:
            self._accepting.cancel()
        if self.control.done() and not self.control.cancelled():
            self.control.result().close()
        self.control.cancel()

    def _forget_host(self) -> None:
        if self._host.fileno() >= 0:
            self._loop.remove_reader(self._host)
            self._host.close()

    def _receive(self) -> None:
        try:
            descriptors = socket.recv_fds(self._host, 1, 2)[1]
        except OSError:
            descriptors = []
        self._forget_host()
        if len(descriptors) == 2:
            control, endpoint = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            for listening in (control, endpoint):
                listening.set_inheritable(False)
                listening.setblocking(False)
            self.control.set_result(control)
            self._accepting = self._loop.create_task(self._accept(endpoint))

    async def _accept(self, endpoint: socket.socket) -> None:
        with endpoint, contextlib.suppress(OSError):  # out of descriptors: the environment's calls fail
            while True:
                connection, _ = await self._loop.sock_accept(endpoint)
                self._take(connection)


class CappedLog:
    """Appends what comes from a pipe to a file, until the file is full; goes on reading then, slowly."""

    def __init__(self, pipe: int, path: Path, limit: int) -> None:
        """Take the pipe over. `limit` is the file's size in bytes, the note at its end left aside."""
        self._pipe = pipe
        self._file = path.open("ab")
        self._room = max(0, limit - self._file.tell())
        self._full = False
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.head = b""
        """The first bytes."""
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    async def finish(self, seconds: float) -> None:
        """Wait until nobody can write any more, but not for ever, and close the log."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass  # some process that left the group still holds the pipe
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading; safe to call twice."""
        if self._pipe < 0:
            return
        self._loop.remove_reader(self._pipe)
        if self._later is not None:
            self._later.cancel()
        os.close(self._pipe)
        self._pipe = -1
        self._file.close()
        self._ended.set()

    def _read(self) -> None:
        try:
            found = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        if not found:
            self.close()
            return
        if len(self.head) < _HEAD:
            self.head += found[: _HEAD - len(self.head)]
        self._write(found)
        if self._full:
            self._loop.remove_reader(self._pipe)
            self._later = self._loop.call_later(_PAUSE, self._loop.add_reader, self._pipe, self._read)

    def _write(self, found: bytes) -> None:
        if self._full:
            return
        self._file.write(found[: self._room])
        self._room -= len(found)
        if self._room < 0:
            self._full = True
            self._file.write(f"\n[the log is full at {self._limit} bytes; the rest is dropped]\n".encode())
        self._file.flush()
