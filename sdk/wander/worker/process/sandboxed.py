"""A worker's process in the sandbox, what it prints, and the connections that its code opens to the host."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wander.errors import SandboxError
from wander.sandbox import launcher
from wander.sandbox.bubblewrap import VARIABLES, arguments
from wander.sandbox.groups import CLOSE_PAUSE, CLOSE_ROUNDS, Group, new_group
from wander.sandbox.policy import SandboxPolicy
from wander.sandbox.seccomp import compile_filter
from wander.sandbox.support import FIRST_UID, Support, find_failure, require_support
from wander.sandbox.visible import INSIDE, Visible, visible
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


@dataclass(frozen=True)
class Sandbox:
    """What a worker is confined by, and how its code reaches the host's endpoint."""

    policy: SandboxPolicy
    take_call: TakeCall
    endpoint: tuple[str, int]
    """Address of the endpoint as `OPENAI_BASE_URL` in the worker names it."""
    host_name: str | None = None


@dataclass(frozen=True)
class Confined:
    """A command in the sandbox, ready to be started."""

    command: list[str]
    environ: dict[str, str]
    descriptors: list[int] = field(default_factory=list)
    """To be passed on, and then closed here."""


class SandboxedWorker(WorkerProcess):
    """The process is bubblewrap's outermost; with it, everything inside ends."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: CappedLog,
        log_path: Path,
        *,
        calls: CallSockets,
        group: Group,
        policy: SandboxPolicy,
        note: int,
    ) -> None:
        super().__init__(process, None, log_path)
        self._note: int | None = note
        self._noted = b""
        self._log = log
        self._calls = calls
        self._group = group
        self._policy = policy
        self._starved = False

    @classmethod
    async def start_in(
        cls,
        sandbox: Sandbox,
        python: Path | None,
        path: Path,
        *,
        environ: Iterable[str],
        log_path: Path,
        variables: Mapping[str, str],
        source: Path | None,
    ) -> SandboxedWorker:
        """Start a worker that speaks over the socket at `path`; raises `OSError` or `SandboxError`.

        `environ` and `variables` are those of `WorkerProcess.start`. `source` is the folder or file that it
        will load, which the sandbox has to show it.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        policy = sandbox.policy
        support = require_support()
        sees = visible(python, source, policy.read)
        host, port = sandbox.endpoint
        with contextlib.ExitStack() as unless_started, contextlib.ExitStack() as handed_on:
            # The worker may open no socket itself.
            connected = handed_on.enter_context(socket.socket(socket.AF_UNIX))
            connected.connect(str(path))
            group = await asyncio.to_thread(new_group, policy)
            unless_started.callback(group.close)
            calls = CallSockets(sandbox.take_call)
            unless_started.callback(calls.close)
            handed_on.callback(calls.inside.close)
            # Memory that the worker shares with its host, of a size that it cannot change.
            note = os.memfd_create("note", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            unless_started.callback(os.close, note)
            os.ftruncate(note, NOTE_BYTES)
            fcntl.fcntl(note, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            plan = {
                "module": "wander.worker",
                "arguments": ["wander.worker", "--fd", str(connected.fileno()), "--note", str(note)],
                "calls": calls.inside.fileno(),
                "calls_host": host,
                "calls_port": port,
            }
            given = {**own_variables(environ), **variables}
            confined = confine(policy, support, sees, group, plan, given, host_name=sandbox.host_name)
            reading, writing = os.pipe()
            for descriptor in (writing, *confined.descriptors):
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
                pass_fds=(*confined.descriptors, connected.fileno(), calls.inside.fileno(), note),
                start_new_session=True,
            )
            unless_started.pop_all()
        return cls(process, log, log_path, calls=calls, group=group, policy=policy, note=note)

    async def end(self, grace: float) -> None:
        """End it as any worker, then everything that was made for it."""
        try:
            await super().end(grace)
        finally:
            self._calls.close()
            note, self._note = self._note, None
            if note is not None:
                self._noted = os.pread(note, NOTE_BYTES, 0)
                os.close(note)
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
        """Return what the worker noted of what it ran."""
        return self._noted

    def _signal(self) -> int:
        """Return the signal that ended what ran inside, which bubblewrap tells as a shell does; else 0."""
        code = self._process.returncode or 0
        return -code if code < 0 else max(0, code - 128)

    def find_failed_start(self) -> SandboxError | None:
        """Return why there was no sandbox, where the process ended for that."""
        return find_failure(self._process.returncode, self._log.head.decode("utf-8", "replace"))


def confine(
    policy: SandboxPolicy,
    support: Support,
    sees: Visible,
    group: Group,
    plan: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    host_name: str | None = None,
) -> Confined:
    """Return how to start what `plan` (of `inside.py`) names."""
    filter_fd = os.memfd_create("filter")
    os.write(filter_fd, compile_filter(support.machine))
    os.lseek(
        filter_fd, 0, os.SEEK_SET
    )  # bubblewrap reads to the end: each start needs a descriptor of its own
    sources: Sequence[str] = sees.binds
    if support.as_root:
        sources = [launcher.stage_path(index) for index in range(len(sees.binds))]
    whole = {
        "processes": policy.processes,
        "path": list(sees.import_path),
        "prefix": str(sees.python.parent.parent),
        "calls": None,
        "module": None,
        **plan,
    }
    bwrap = [support.bwrap, *arguments(policy, sees, sources, filter_fd, host_name or "sandbox")]
    started = [str(sees.python), "-s", "-P", "-S", str(INSIDE), json.dumps(whole)]
    launch = {
        "groups": group.joined,
        "limits": _limits(policy, group),
        "uid": FIRST_UID if support.as_root else None,
        "binds": list(sees.binds),
        "command": [*bwrap, *started],
    }
    command = [*group.prefix, sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(launch)]
    path = f"{sees.python.parent}:/usr/local/bin:/usr/bin:/bin"
    return Confined(command, {"PATH": path, **VARIABLES, **variables}, [filter_fd])


def _limits(policy: SandboxPolicy, group: Group) -> dict[str, tuple[int, int]]:
    """Return the soft and hard limits that hold for each process, by their names in `resource`."""
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_FSIZE": policy.file,
        "RLIMIT_NOFILE": policy.files,
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


class CallSockets:
    """Receives descriptors over a pair of sockets, as `inside.py` sends them, and hands good ones on."""

    def __init__(self, take: TakeCall) -> None:
        self._take = take
        self._host, self.inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._host, self._receive)

    def close(self) -> None:
        """Take no more; safe to call twice."""
        if self._host.fileno() >= 0:
            self._loop.remove_reader(self._host)
        self._host.close()
        self.inside.close()

    def _receive(self) -> None:
        try:
            word, descriptors, _, _ = socket.recv_fds(self._host, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            word, descriptors = b"", []
        if not word and not descriptors:
            self.close()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            # Only a pair of stream sockets is taken: the other side may be hostile.
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found = socket.socket(fileno=descriptor)
                if (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_STREAM):
                    self._take(found)
                else:
                    found.close()
            else:
                os.close(descriptor)


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
