"""Starts workers, scripted models and the two commands as forks of a process that has imported their modules.

Each has the variables, the folder and the descriptors that it asked for, in a process that ends as any other,
but it does not spend processor time on imports: half a second for a worker, up to a second for `wander`, two
seconds for `wander-hub`. A program whose variables Python would read differently at its start is started as
usual.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_WORKER, _SCRIPTED = "wander.worker.__main__", "wander_client/models/scripted_host.py"
_PROBE = "wander.checks.probe"
_OF_A_CHECK = {"PYTHONHASHSEED", "TZ", "LANG"}
_COMMANDS = {"wander": "wander_client.main", "wander-hub": "wander_hub.cli.main"}
_TRAINING = "wander.train"
_STAND_IN = Path(__file__).with_name("stand_in.py")
_HEADER_BYTES, _MOST_FILES = 1 << 16, 16
_PID = b"pid "
"""Beginning of a fork's first answer. If the fork fails before, its exit status is the first answer."""


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


class ForkedCommand:
    """What `subprocess.Popen` offers of a command that another process forked."""

    def __init__(self, status: int, pid: int, command: list[str]) -> None:
        self.args, self.pid = command, pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            answer = os.read(self._status, 16)
            self.returncode = int(answer) if answer else -signal.SIGKILL
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmProgram:
    """A process that has imported a program's modules, and forks one of it for each request."""

    def __init__(self, name: str, environ: dict[str, str]) -> None:
        self.read_at_start = _read_at_start(environ)
        others = {name: environ[name] for name in ("HOME", "OMP_NUM_THREADS") if name in environ}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")  # to an abstract address, which is gone when nobody listens any more
        listener.listen()
        self.address = listener.getsockname()[1:].decode()
        """The abstract address where `stand_in.py` asks for forks, without its first byte, which is 0."""
        with theirs, listener:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, name, str(theirs.fileno()), str(listener.fileno())],
                # Without the mark of the first worker: all processes that have it are killed with it.
                env={"PATH": environ["PATH"], **others, **self.read_at_start},
                pass_fds=[theirs.fileno(), listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(
        self, arguments: list[str], environ: dict[str, str], files: dict[int, int], folder: Path | None = None
    ) -> tuple[int, int]:
        """Fork with these arguments; `files` are descriptors here by the number that they have there.

        Returns the descriptor that will give the exit status, and the number of the process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        header = {"arguments": arguments, "environ": environ, "files": [*files]}
        header["folder"] = str(folder or Path.cwd())
        with theirs:
            sent = [theirs.fileno(), *files.values()]
            socket.send_fds(self._control, [json.dumps(header).encode()], sent)
        answer = ours.recv(16)
        # Never take an exit status for the number of a process: to kill the group of process 1 kills all.
        if not answer.startswith(_PID):
            ours.close()
            raise RuntimeError(f"the fork of `{arguments[0]}` ended before it started ({answer!r})")
        return ours.detach(), int(answer.removeprefix(_PID))

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
        process = WarmProcess(*program.start(["wander.worker", *command[4:]], environ, files))
        os.close(files[0])
        return process

    def close(self) -> None:
        for program in self._programs.values():
            program.close()


class WarmCommands:
    """Stands for `live_hub.start_process`; forks each `wander` and `wander-hub` of this Python."""

    def __init__(self) -> None:
        self._programs: dict[str, WarmProgram] = {}

    def start(
        self,
        command: list[str],
        environ: dict[str, str],
        out: IO[bytes],
        err: IO[bytes] | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes] | ForkedCommand:
        """Start a program with the arguments of `live_hub.start_process`."""
        from live_hub import start_process  # which the warm processes cannot import

        program = Path(command[0])
        if program.parent == Path(sys.executable).parent and (name := _COMMANDS.get(program.name)):
            warm = self.warm(name, environ)
            if warm.read_at_start == _read_at_start(environ):
                files = {0: _null(), 1: out.fileno(), 2: (err or out).fileno()}
                forked = ForkedCommand(*warm.start(command, environ, files, folder), command)
                os.close(files[0])
                return forked
        return start_process(command, environ, out, err, folder)

    def warm(self, name: str, environ: dict[str, str]) -> WarmProgram:
        """Return the warm process of a program, and start it first if necessary."""
        return self._programs.get(name) or self._programs.setdefault(name, WarmProgram(name, environ))

    def write_scripts(self, folder: Path, environ: dict[str, str]) -> None:
        """Write a `wander` and a `wander-hub` for shells, which have the warm processes fork the commands."""
        folder.mkdir()
        for program, name in _COMMANDS.items():
            _write_script(folder / program, self.warm(name, environ))

    def close(self) -> None:
        for program in self._programs.values():
            program.close()


@contextmanager
def warm_training(folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """Have the `wander` of `WarmCommands.write_scripts` fork from a process that has imported PyTorch too."""
    warm = WarmProgram(_TRAINING, environ)
    _write_script(folder / "wander", warm)
    yield
    warm.close()


class WarmProbes:
    """Stands for `wander.worker.process.program._run_in_session`; forks the processes of checks.

    The two processes of a check differ in their hash seed, time zone and language. Each has its warm process.
    """

    def __init__(
        self, run_in_session: Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]
    ) -> None:
        self._programs: dict[frozenset[tuple[str, str]], WarmProgram] = {}
        self._run_in_session = run_in_session

    @contextmanager
    def run_in_session(
        self, command: Sequence[str], **options: Any
    ) -> Iterator[subprocess.Popen[bytes] | ForkedCommand]:
        environ, passed = options["env"], options["pass_fds"]
        read = _read_at_start(environ)
        # A path of modules, for example, is that of one test.
        if [*command[:4]] != [sys.executable, "-P", "-m", _PROBE] or not read.keys() <= _OF_A_CHECK:
            with self._run_in_session(command, **options) as process:
                yield process
            return
        key = frozenset(read.items())
        program = self._programs.get(key) or self._programs.setdefault(key, WarmProgram(_PROBE, environ))
        out = options["stdout"].fileno()
        files = {0: _null(), 1: out, 2: out, **{descriptor: descriptor for descriptor in passed}}
        started = program.start([_PROBE, *command[4:]], environ, files, Path(options["cwd"]))
        os.close(files[0])
        forked = ForkedCommand(*started, [*command])
        try:
            yield forked
        finally:
            with suppress(ProcessLookupError):
                os.killpg(forked.pid, signal.SIGKILL)
            forked.wait()

    def close(self) -> None:
        for program in self._programs.values():
            program.close()


def _write_script(path: Path, warm: WarmProgram) -> None:
    command = Path(sys.executable).with_name(path.name)
    words = map(str, (sys.executable, "-IS", _STAND_IN, warm.address, command))
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)


def _name_of(command: tuple[str, ...]) -> str | None:
    if command[0] != sys.executable:
        return None
    if command[1:4] == ("-P", "-m", "wander.worker"):
        return _WORKER
    return _SCRIPTED if command[1].endswith(_SCRIPTED) else None


def _read_at_start(environ: dict[str, str]) -> dict[str, str]:
    names = ["PYTHON", "LC_", "LANG", "TZ", "LD_"]
    if Path(environ.get("HOME", "/"), ".local/lib").exists():  # modules of the user
        names.append("HOME")
    return {name: value for name, value in environ.items() if name.startswith(tuple(names))}


def _null() -> int:
    return os.open(os.devnull, os.O_RDWR)


async def _with_pipes(
    program: WarmProgram, arguments: list[str], environ: dict[str, str], limit: int
) -> WarmProcess:
    loop = asyncio.get_running_loop()
    (their_input, ours_in), (ours_out, their_output) = os.pipe(), os.pipe()
    process = WarmProcess(*program.start(arguments, environ, {0: their_input, 1: their_output, 2: 2}))
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


def serve(name: str, control: socket.socket, listener: socket.socket) -> Callable[[], object]:
    """Fork for each request, and report how the forks end. Returns in each fork, with its program.

    A request comes through `control` with the descriptor to answer on, or through a connection of its own.
    """
    program = _imported(name)
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}
    poll = select.poll()
    for descriptor in (control, listener, woken):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if woken in ready:
            os.read(woken, 4096)
            _report(running)
        if control.fileno() in ready:
            header, received, _, _ = socket.recv_fds(control, _HEADER_BYTES, _MOST_FILES)
            if not header:
                os._exit(0)
        elif listener.fileno() in ready:
            connection, _ = listener.accept()
            header, received, _, _ = socket.recv_fds(connection, _HEADER_BYTES, _MOST_FILES)
            received.insert(0, connection.detach())
            asked, own = json.loads(header)["environ"], dict(os.environ)
            if _read_at_start(asked) != _read_at_start(own):
                raise RuntimeError("a block changed a variable that Python reads at its start")
        else:
            continue
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            listener.close()
            for descriptor in (woken, wake, *running.values()):
                os.close(descriptor)
            if name in (_WORKER, _PROBE):
                os.setsid()
            _become(json.loads(header), received)
            return program
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
    if name == _PROBE:
        from wander.checks.probe import main as probe_main

        return probe_main
    if name in (*_COMMANDS.values(), _TRAINING):
        # The console script's folder comes first, as for the script itself.
        sys.path.insert(0, str(Path(sys.executable).parent))
        if name == _TRAINING:
            _import_training()
        return _imported_hub() if name == _COMMANDS["wander-hub"] else _imported_client()
    import wander.clients.scripted  # noqa: F401 - what the script imports
    from wander_client.models import scripted_host

    sys.path.insert(0, str(Path(scripted_host.__file__).parent))
    return _run_script


def _imported_hub() -> Callable[[], object]:
    import wander_hub.cli.serving
    import wander_hub.fsck.derivation
    import wander_hub.server.serve
    import wander_hub.server.work  # noqa: F401 - what its commands import
    from wander_hub import app
    from wander_hub.cli.main import main

    # After 20 s each hub builds the search index of its docs, which takes 2 s of processor time; the first
    # search builds it too.
    app._SEARCH_SECONDS = 3600.0
    app._routes()
    return main


def _imported_client() -> Callable[[], object]:
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # these two as `main` does it
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    import httpcore  # noqa: F401 - what httpx imports when it connects
    import wander.checks
    import wander.clients
    import wander.environment
    import wander.evals
    import wander.loading
    import wander.worker.host
    import wander_client
    from wander_client.main import main

    for package in (wander_client, wander.checks, wander.clients, wander.evals, wander.worker.host):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", "scripted_host")):
                importlib.import_module(module.name)
    return main


def _import_training() -> None:
    import wander.models
    import wander.train

    for package in (wander.models, wander.train):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _run_script() -> object:
    return runpy.run_path(sys.argv[0], run_name="__main__")


def _become(header: dict[str, Any], received: list[int]) -> None:
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
    os.write(high[0], _PID + str(os.getpid()).encode())
    os.close(high[0])


if __name__ == "__main__":
    run = serve(sys.argv[1], *(socket.socket(fileno=int(number)) for number in sys.argv[2:]))
    sys.exit(run())
