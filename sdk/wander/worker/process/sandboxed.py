"""A worker's process in the sandbox, its output, and the connections from its code to the host."""

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
from wander.system.memory_files import make_memory_file
from wander.worker.note import NOTE_BYTES
from wander.worker.process.start import FROM_OUTSIDE, WorkerProcess, own_variables

TakeCall = Callable[[socket.socket], None]
"""Callback that takes over a connected socket and serves HTTP on it."""
_LAUNCHER = Path(launcher.__file__)
_CHUNK = 1 << 16
_HEAD = 4096
_PAUSE = 0.05
"""Pause between two reads once the log is full, so that a flood costs the sandbox time and not this
process."""
_LAST_OUTPUT_SECONDS = 2.0
_FILES_AT_FIRST = 1 << 20
"""Maximum number of open files of the first program, before untrusted code runs. Then the policy applies."""

_SIGNALS = 256
"""Maximum number of timers and queued signals. The kernel counts them per user, who may also run the host."""


@dataclass(frozen=True)
class Sandbox:
    """Sandbox of a worker, and the way from its code to the host's endpoint."""

    policy: SandboxPolicy
    take_call: TakeCall
    endpoint: tuple[str, int]
    """Address of the endpoint in the worker's `OPENAI_BASE_URL`."""
    runtime: Runtime | None
    """Python installation of the environment. None means this process's own Python."""
    host_name: str


@dataclass(frozen=True)
class Confined:
    """A command in the sandbox, ready to start."""

    command: list[str]
    environ: dict[str, str]
    descriptors: tuple[int, ...]
    """Descriptors to pass to the process."""
    own: tuple[int, ...]
    """Descriptors made for the sandbox, to be closed here once it has started."""
    ready: int
    """Pipe that receives a byte once the sandbox is complete. Later failures are not the sandbox's fault."""

    def was_completed(self) -> bool:
        """Return whether the sandbox was complete before its process ended."""
        try:
            return os.read(self.ready, 1) != b""
        except BlockingIOError:
            return False


class SandboxedWorker(WorkerProcess):
    """A sandboxed worker.

    The process is bubblewrap's outermost one. When it ends, so does everything inside.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: CappedLog,
        log_path: Path,
        *,
        confined: Confined,
        sees: Visible,
        sockets: HandedSockets,
        group: ControlGroup,
        policy: SandboxPolicy,
        note: int,
    ) -> None:
        super().__init__(process, None, log_path)
        self._confined = confined
        self._sees = sees
        self._complete = False
        self._note: int | None = note
        self._noted = b""
        self._log = log
        self._sockets = sockets
        self.control = sockets.control
        """Socket that listens in the sandbox. The worker makes the first connection to it."""
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
        """Start a worker that connects to `control`. Raises `OSError` or `SandboxError`.

        `environ` and `variables` are those of `WorkerProcess.start`. `source` is the folder or file to load,
        which must be visible in the sandbox.
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
            # Memory shared by the worker and its host, with a size that the worker cannot change.
            note = os.memfd_create("note", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            unless_started.callback(os.close, note)
            os.ftruncate(note, NOTE_BYTES)
            fcntl.fcntl(note, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            note_fd, host_fd = map(sandbox_descriptor, range(2))
            plan = {
                "module": "wander.worker",
                "arguments": ["wander.worker", "--note", str(note_fd)],
                "keep": [note_fd],
                "host": [host_fd, *sandbox.endpoint],
            }
            environment_variables = {**own_variables(environ), **variables}
            confined = confine(
                *(policy, support, sees, group, plan, environment_variables),
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
            sees=sees,
            sockets=sockets,
            group=group,
            policy=policy,
            note=note,
        )

    def find_on_host(self, path: str) -> str | None:
        """Return the host's path of a path in the sandbox, and None if the sandbox does not show it."""
        return self._sees.find_on_host(path)

    async def end(self, grace: float) -> None:
        """End the process as for any worker, then everything that was made for it."""
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
            for _ in range(CLOSE_ROUNDS):  # in this thread, because two calls of `end` may overlap
                if self._group.close():
                    break
                await asyncio.sleep(CLOSE_PAUSE)

    def ending(self) -> str:
        """Describe how the process ended, including limits of the sandbox."""
        if self._starved or self._group.out_of_memory():
            return f"ran out of memory: the sandbox allows {size_in_words(self._policy.memory)}"
        with contextlib.suppress(ValueError):  # no signal killed it
            name = signal.Signals(self._signal()).name
            if name == "SIGXCPU":
                return f"used up the {self._policy.cpu} s of processor time that the sandbox allows"
            return f"was killed by {name}"
        return super().ending()

    def ended_itself(self) -> bool:
        """Return whether the code inside ended the process, and not a limit shared by all rollouts."""
        if self._process.returncode is None or self._starved or self._group.out_of_memory():
            return False
        return self._signal() not in {*FROM_OUTSIDE, signal.SIGXCPU}

    def note(self) -> bytes | None:
        """Return the worker's note about the code that it runs or ran."""
        return self._noted if self._note is None else os.pread(self._note, NOTE_BYTES, 0)

    def _signal(self) -> int:
        """Return the signal that ended the inner process, which bubblewrap reports like a shell, or 0."""
        code = self._process.returncode or 0
        return -code if code < 0 else max(0, code - 128)

    def find_failed_start(self) -> SandboxError | None:
        """Return the reason why the sandbox could not be made, if that is why the process ended."""
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
    """Return the command that runs a `plan` (of `inside.py`) in the sandbox.

    In the plan, `descriptors` have the numbers that `sandbox_descriptor` returns for their positions.
    """
    # Bubblewrap reads to the end: each start needs its own descriptor.
    filter_fd = make_memory_file("filter", compile_filter(support.machine))
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


def sandbox_descriptor(index: int) -> int:
    """Return the number that a descriptor of the caller has in the sandbox."""
    return launcher.FIRST_DESCRIPTOR + 2 + index


def _limits(policy: SandboxPolicy, group: ControlGroup) -> dict[str, tuple[int, int]]:
    """Return the soft and hard limits of each process, by their names in `resource`."""
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_SIGPENDING": _SIGNALS,
        "RLIMIT_FSIZE": policy.file,
        "RLIMIT_NOFILE": _FILES_AT_FIRST,
    }
    if group.memory_bound == "process":
        limits["RLIMIT_AS"] = policy.memory
    # The soft limit ends the process with a specific signal. Code that catches it reaches the hard limit.
    cpu = {"RLIMIT_CPU": (policy.cpu, policy.cpu + 5)}
    return {**{name: (value, value) for name, value in limits.items()}, **cpu}


def size_in_words(size: float) -> str:
    """Format a number of bytes: `512 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


class HandedSockets:
    """Receives the listening sockets of the sandbox's network namespace, and accepts calls to the endpoint.

    The sandbox's first program sends them before any environment code runs (`wander.sandbox.inside`).
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
        """Stop accepting connections. May be called repeatedly."""
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
        with endpoint, contextlib.suppress(OSError):  # without free descriptors, the environment's calls fail
            while True:
                connection, _ = await self._loop.sock_accept(endpoint)
                self._take(connection)


class CappedLog:
    """Appends data from a pipe to a file until the file is full. Then it keeps reading slowly."""

    def __init__(self, pipe: int, path: Path, limit: int) -> None:
        """Take over the pipe. `limit` is the file's maximum size in bytes, without the note at its end."""
        self._pipe = pipe
        self._file = path.open("ab")
        self._room = max(0, limit - self._file.tell())
        self._full = False
        self._dropped = 0
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.head = b""
        """First bytes of the output."""
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    async def finish(self, seconds: float) -> None:
        """Wait for a limited time until no process can write any more, and close the log."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass  # a process that left the group still holds the pipe
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading. May be called repeatedly."""
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
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        if len(self.head) < _HEAD:
            self.head += data[: _HEAD - len(self.head)]
        self._write(data)
        self._dropped += len(data) if self._full else 0
        # Not after each read: a user with many pipes gets pipes of 4 or 8 KiB (`pipe-user-pages-soft`), and a
        # package that prints much must not be slower for that.
        if self._dropped >= _CHUNK:
            self._dropped = 0
            self._loop.remove_reader(self._pipe)
            self._later = self._loop.call_later(_PAUSE, self._loop.add_reader, self._pipe, self._read)

    def _write(self, data: bytes) -> None:
        if self._full:
            return
        self._file.write(data[: self._room])
        self._room -= len(data)
        if self._room < 0:
            self._full = True
            self._file.write(
                f"\n[the log is full at {self._limit} bytes; further output is dropped]\n".encode()
            )
        self._file.flush()
