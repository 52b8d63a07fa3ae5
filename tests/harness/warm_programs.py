"""Starts workers and scripted models as forks of a process that has imported what they need.

Each has the variables, the folder and the descriptors that it asked for, in a process that ends as any other,
but it does not spend half a second of processor time on imports. A program whose variables Python would read
differently at its start is started as usual.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_WORKER, _SCRIPTED = "wander.worker.__main__", "wander_client/models/scripted_host.py"
_HEADER_BYTES, _MOST_FILES = 1 << 16, 16


class WarmProcess:
    """What `asyncio.subprocess.Process` offers of one that another process forked."""

    def __init__(self, status: int, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self._status, self._ended = status, asyncio.Event()
        asyncio.get_running_loop().add_reader(status, self._read_status)

    def _read_status(self) -> None:
        answer = os.read(self._status, 16)
        self.returncode = int(answer) if answer else -signal.SIGKILL
        asyncio.get_running_loop().remove_reader(self._status)
        os.close(self._status)
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class WarmProgram:
    """A process that has imported a program's modules, and forks one of it for each request."""

    def __init__(self, name: str, environ: dict[str, str]) -> None:
        self.read_at_start = _read_at_start(environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, name, str(theirs.fileno())],
                # Without the mark of the first worker: all processes that have it are killed with it.
                env={"PATH": environ["PATH"], **self.read_at_start},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self, arguments: list[str], environ: dict[str, str], files: dict[int, int]) -> WarmProcess:
        """Fork with these arguments; `files` are descriptors here by the number that they have there."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        header = {"arguments": arguments, "environ": environ, "files": [*files], "folder": os.getcwd()}
        sent = array.array("i", [theirs.fileno(), *files.values()])
        with theirs:
            self._control.sendmsg(
                [json.dumps(header).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)]
            )
        pid = int(ours.recv(16))
        return WarmProcess(ours.detach(), pid)

    def close(self) -> None:
        self._control.close()
        self._process.wait(timeout=30)


class WarmPrograms:
    """Stands for `asyncio.create_subprocess_exec`; forks the workers and scripted models of this Python."""

    def __init__(self) -> None:
        self._programs: dict[str, WarmProgram] = {}
        self._start = asyncio.create_subprocess_exec

    async def start(self, *command: str, **options: Any) -> Any:
        """Start a program with the arguments of `asyncio.create_subprocess_exec`."""
        name = _name_of(command)
        if name is None:
            return await self._start(*command, **options)
        environ = options["env"]
        program = self._programs.get(name) or self._programs.setdefault(name, WarmProgram(name, environ))
        if program.read_at_start != _read_at_start(environ):
            return await self._start(*command, **options)
        if name == _SCRIPTED:
            return await _with_pipes(program, list(command[1:]), environ, options["limit"])
        passed = {descriptor: descriptor for descriptor in options["pass_fds"]}
        files = {0: _null(), 1: options["stdout"].fileno(), 2: options["stderr"].fileno(), **passed}
        process = program.start(["wander.worker", *command[4:]], environ, files)
        os.close(files[0])
        return process

    def close(self) -> None:
        for program in self._programs.values():
            program.close()


def _name_of(command: tuple[str, ...]) -> str | None:
    if command[0] != sys.executable:
        return None
    if command[1:4] == ("-P", "-m", "wander.worker"):
        return _WORKER
    return _SCRIPTED if command[1].endswith(_SCRIPTED) else None


def _read_at_start(environ: dict[str, str]) -> dict[str, str]:
    names = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "HOME")
    return {name: value for name, value in environ.items() if name.startswith(names)}


def _null() -> int:
    return os.open(os.devnull, os.O_RDWR)


async def _with_pipes(
    program: WarmProgram, arguments: list[str], environ: dict[str, str], limit: int
) -> WarmProcess:
    loop = asyncio.get_running_loop()
    (their_input, ours_in), (ours_out, their_output) = os.pipe(), os.pipe()
    process = program.start(arguments, environ, {0: their_input, 1: their_output, 2: 2})
    os.close(their_input)
    os.close(their_output)
    process.stdout = asyncio.StreamReader(limit=limit)
    reading = asyncio.StreamReaderProtocol(process.stdout)
    await loop.connect_read_pipe(lambda: reading, os.fdopen(ours_out, "rb"))
    transport, writing = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(ours_in, "wb")
    )
    process.stdin = asyncio.StreamWriter(transport, writing, None, loop)
    return process


def serve(name: str, control: socket.socket) -> Callable[[], object]:
    """Fork for each request, and report how the forks end. Returns in each fork, with its program."""
    program = _imported(name)
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report(running)
        if control not in ready:
            continue
        header, sent, _, _ = control.recvmsg(_HEADER_BYTES, socket.CMSG_SPACE(4 * _MOST_FILES))
        if not header:
            os._exit(0)
        received = array.array("i")
        for _level, _kind, content in sent:
            received.frombytes(content)
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            for descriptor in (woken, wake, *running.values()):
                os.close(descriptor)
            return _become(json.loads(header), list(received), program)
        for descriptor in received[1:]:
            os.close(descriptor)
        running[pid] = received[0]


def _report(running: dict[int, int]) -> None:
    for pid in [*running]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            descriptor = running.pop(pid)
            with suppress(OSError):  # nobody may be interested any more
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _imported(name: str) -> Callable[[], object]:
    if name == _WORKER:
        from wander.worker.__main__ import main
        from wander.worker.protocol import to_worker

        to_worker.rebuild()
        return main
    import wander.clients.scripted  # noqa: F401 - what the script imports
    from wander_client.models import scripted_host

    sys.path.insert(0, str(Path(scripted_host.__file__).parent))
    return _run_script


def _run_script() -> object:
    return runpy.run_path(sys.argv[0], run_name="__main__")


def _become(
    header: dict[str, Any], received: list[int], program: Callable[[], object]
) -> Callable[[], object]:
    if program is not _run_script:
        os.setsid()
    os.chdir(header["folder"])
    os.environ.clear()
    os.environ.update(header["environ"])
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(high[1:], header["files"], strict=True):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    sys.argv = header["arguments"]
    os.write(high[0], str(os.getpid()).encode())
    os.close(high[0])
    return program


if __name__ == "__main__":
    run = serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
    sys.exit(run())
