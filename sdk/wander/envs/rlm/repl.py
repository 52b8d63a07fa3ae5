"""A Python REPL in a separate process, for code that a model writes.

It always has its own process group, an empty environment, limits on memory, files and open handles, a time
limit per cell, and truncated output. With `sandbox="bwrap"`, it also lacks network access and cannot
write any file of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wander.errors import SandboxError
from wander.sandbox import launcher
from wander.sandbox.support import FIRST_UID, require_support
from wander.sandbox.visible import INSIDE, identify

MAX_MESSAGE = 64 << 20
"""Maximum size of a message from the process in bytes. A longer one means that something is wrong there."""
LEAVE_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""Seconds that a cell may exceed its time limit before the process is killed."""
START_SECONDS = 60.0
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
"""Memory address of an object, which differs between runs."""

Sandbox = Literal["none", "auto", "bwrap"]
"""`none`: an ordinary process with limits. `bwrap`: bubblewrap, or no REPL if it is missing. `auto`:
bubblewrap if it is installed."""

SCRATCH = "/tmp"  # noqa: S108 - an in-memory file system of the sandbox
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
"""All environment variables of the process. They contain no secrets of the host. The number of threads is 1
because linear algebra gives different bits with different thread counts."""


@dataclass(frozen=True)
class ReplLimits:
    """Resource limits of a REPL."""

    cell_seconds: float = 30.0
    """Seconds per cell, without waiting for answers to `llm_query`."""
    memory_mb: int = 2048
    """Address space of each process in MB. Not enforced on macOS."""
    file_mb: int = 16
    """Maximum size of each written file in MB, including the output."""
    output_chars: int = 8000
    """Maximum number of characters of a cell's output that the model sees: the beginning and the end."""


@dataclass(frozen=True)
class CellResult:
    """Result of one cell."""

    output: str
    """Output, cut to `output_chars` characters."""
    output_chars: int
    """Length of the whole output."""
    ended: Literal["ok", "error", "timeout", "died"]
    final: str | None = None
    """Argument of `FINAL` or `FINAL_VAR`, if called."""
    restarted: bool = False
    """Whether the process is gone, and its variables with it."""


@dataclass(frozen=True)
class Query:
    """A question that code asks the model."""

    prompt: str
    context: Any = None
    """Text or data that the question is about."""


Outcome = tuple[Literal["ok", "error", "timeout"], str | None]
"""How a cell ended, and its final answer, if any."""

Answerer = Callable[[list[Query]], Awaitable[list[str] | str]]
"""Callback that answers queries in order. If it returns a string, the cell raises this as an error."""


class ReplGone(Exception):
    """The process ended or violated the protocol."""


class AnswerTimeout(Exception):
    """The callback that answers a cell's queries timed out."""


class Repl:
    """A REPL that starts when it is first needed, and again after its process was killed."""

    def __init__(
        self,
        limits: ReplLimits,
        *,
        sandbox: Sandbox = "none",
        python: str | None = None,
        seed: int = 0,
        folders: Sequence[str] = (),
    ) -> None:
        self.limits = limits
        self.folders = tuple(folders)
        """Folders in memory that are empty at the start. In bubblewrap, code may write to them and to
        `/tmp`."""
        self.sandbox: Sandbox = sandbox
        self.python = python
        self.seed = seed
        self.loaded: dict[str, Any] = {}
        """Variables as JSON values that are loaded whenever the process starts."""
        self._running: _Running | None = None

    async def run(self, code: str, answer: Answerer) -> CellResult:
        """Run a cell. `answer` answers its queries.

        Errors of the code are not raised. Raises `SandboxError` if the process cannot be started, and any
        error raised by `answer`.
        """
        running = await self._start()
        try:
            ended, final = await self._finish_cell(running, code, answer)
        except (ReplGone, TimeoutError) as error:
            output, length = running.output(self.limits.output_chars)
            await self.close()
            how: Literal["timeout", "died"] = "timeout" if isinstance(error, TimeoutError) else "died"
            return CellResult(output, length, how, restarted=True)
        except BaseException:
            await self.close()  # otherwise the cell would wait for its answer forever
            raise
        output, length = running.output(self.limits.output_chars)
        return CellResult(output, length, ended, final)

    async def _finish_cell(self, running: _Running, code: str, answer: Answerer) -> Outcome:
        """Wait for the end of a cell. Waiting for answers does not count."""
        remaining = self.limits.cell_seconds + GRACE_SECONDS
        await running.send({"op": "run", "code": code, "seconds": self.limits.cell_seconds})
        while True:
            waiting = time.monotonic()
            message = await asyncio.wait_for(running.receive(), max(remaining, 0.01))
            remaining -= time.monotonic() - waiting
            if message.get("op") != "query":
                ended, final = message.get("ended"), message.get("final")
                if ended not in ("ok", "error", "timeout"):
                    raise ReplGone("an invalid outcome")
                return ended, final if isinstance(final, str) else None
            queries = message.get("queries")
            if not isinstance(queries, list) or not all(
                isinstance(query, dict) and isinstance(query.get("prompt"), str) for query in queries
            ):
                raise ReplGone("invalid queries")
            try:
                answers = await answer([Query(query["prompt"], query.get("context")) for query in queries])
            except TimeoutError as error:  # must not look like a timeout of the cell
                raise AnswerTimeout(str(error)) from error
            await running.send({"error": answers} if isinstance(answers, str) else {"replies": answers})

    async def value(self, name: str) -> str | None:
        """Return a variable as text, or None if it does not exist."""
        running = await self._start()
        try:
            answer = await asyncio.wait_for(running.ask({"op": "value", "name": name}), GRACE_SECONDS)
        except (ReplGone, TimeoutError):
            await self.close()
            return None
        value = answer.get("value")
        return value if isinstance(value, str) else None

    async def close(self) -> None:
        """Kill the process and everything that it started, and remove its folder."""
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    async def _start(self) -> _Running:
        if self._running is not None:
            return self._running
        running = self._running = await _Running.start(self)
        for name, value in self.loaded.items():
            try:
                ask = running.ask({"op": "load", "name": name, "value": value})
                await asyncio.wait_for(ask, START_SECONDS)
            except (ReplGone, TimeoutError) as error:
                output = running.output(500)[0].strip()
                await self.close()
                raise SandboxError(
                    f"the REPL's process ended while it loaded `{name}`: {output}",
                    hint=f"its limit is {self.limits.memory_mb} MB; raise `memory_mb` if that is too small",
                ) from error
        return running


class _Running:
    """A running process with its channel, its output file and its folder."""

    def __init__(self, process: Process, folder: Path, output: int, parent: socket.socket) -> None:
        self.process = process
        self.folder = folder
        self._output = output
        self._parent = parent
        self.busy = True
        """Whether the process is running code, and would not notice that its channel closes."""
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, repl: Repl) -> _Running:
        """Start a process and wait until it is ready. Raises `SandboxError`."""
        folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="wander-repl-")))  # noqa: ASYNC240 - a moment
        # An unlinked file in append mode, so that it can be emptied between cells.
        output = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        (folder / "output").unlink()
        parent, child = socket.socketpair()
        try:
            process = await _spawn(repl, folder, output, child)
        except BaseException:
            parent.close()
            os.close(output)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            child.close()
        running = cls(process, folder, output, parent)
        try:
            running._reader, running._writer = await asyncio.open_connection(sock=parent)
            await asyncio.wait_for(running.receive(), START_SECONDS)
        except BaseException as error:
            output_text = running.output(2000)[0].strip() or "it printed nothing"
            await running.close()
            if isinstance(error, ReplGone | TimeoutError):
                raise SandboxError(
                    f"the REPL's process did not start: {output_text}",
                    hint="check that `python=` names an interpreter that the sandbox's user may run",
                ) from error
            raise
        return running

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Raises `ReplGone`."""
        await self.send(message)
        return await self.receive()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises `ReplGone`."""
        data = json.dumps(message).encode()
        self.busy = True
        try:
            self._writer.write(struct.pack(">I", len(data)) + data)
            await self._writer.drain()
        except OSError as error:
            raise ReplGone("the process ended") from error

    async def receive(self) -> dict[str, Any]:
        """Return the next message. Raises `ReplGone`, also for an invalid message."""
        try:
            (size,) = struct.unpack(">I", await self._reader.readexactly(4))
            if size > MAX_MESSAGE:
                raise ReplGone(f"a message of {size} bytes")
            message = json.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError, ValueError, RecursionError) as error:
            raise ReplGone("the process ended") from error
        if not isinstance(message, dict):
            raise ReplGone("a message that is not an object")
        self.busy = False
        return message

    def output(self, chars: int) -> tuple[str, int]:
        """Return the output since the last call, cut to `chars` characters, and its full length."""
        size = os.fstat(self._output).st_size
        text = os.pread(self._output, size, 0).decode("utf-8", "replace")
        os.ftruncate(self._output, 0)
        length = len(text)
        if length > 8 * chars:
            text = text[: 4 * chars] + text[-4 * chars :]
        text = ADDRESS.sub("at 0x...", text.replace(str(self.folder), "/tmp"))  # noqa: S108 - text only
        return cut(text, chars, length), length

    async def close(self) -> None:
        """End the process and its group in any state, and release their resources.

        An idle process exits by itself when its channel closes, so that bubblewrap can reap its children.
        """
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.close()
        self._parent.close()
        try:
            if not self.busy:
                with contextlib.suppress(TimeoutError):  # it is killed below
                    await asyncio.wait_for(self.process.wait(), LEAVE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            os.close(self._output)
            shutil.rmtree(self.folder, ignore_errors=True)
            await self.process.wait()


async def _spawn(repl: Repl, folder: Path, output: int, child: socket.socket) -> Process:
    """Start the child in `folder`. Raises `SandboxError`, also if the required sandbox is not available.

    Bubblewrap is never started as root, because in a user namespace the outer root keeps its rights over
    `/proc/sys`. A root host switches to an ordinary user first.
    """
    limits, interpreter = repl.limits, repl.python or sys.executable
    numbers = (limits.memory_mb, limits.file_mb, repl.seed)

    def command_for(descriptor: int) -> list[str]:
        # -s and -P exclude user packages and the current folder. -I would also ignore PYTHONHASHSEED.
        program = [interpreter, "-s", "-P", "-c", SOURCE.read_text(encoding="utf-8")]
        return [*program, *map(str, (descriptor, *numbers))]

    command, environment = (
        command_for(child.fileno()),
        ENVIRONMENT | {"HOME": str(folder), "TMPDIR": str(folder)},
    )
    support = None
    # A sandbox cannot contain another one. It already has no network and no writable files of the host, and
    # the worker's memory is protected from it.
    if repl.sandbox != "none" and not _is_confined():
        try:
            support = require_support()
        except SandboxError as error:
            if repl.sandbox == "bwrap":
                error.hint = f'{error.hint}, or pass `sandbox="none"`'
                raise
    if support is not None:
        roots = _interpreter_roots(interpreter)
        plan = {
            "groups": [],
            "limits": {},
            "uid": FIRST_UID if support.as_root else None,
            "descriptors": [child.fileno()],
            "binds": [identify(root) for root in roots],
            "program": dict(support.program),
            "command": [
                *support.command,
                *_profile(roots, limits.file_mb * 4, repl.folders),
                *("--", *command_for(launcher.FIRST_DESCRIPTOR)),
            ],
        }
        command = [sys.executable, "-I", "-S", str(launcher.__file__), json.dumps(plan)]
        environment = ENVIRONMENT
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            pass_fds=[child.fileno()],
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"the REPL's process cannot be started: {error}") from error


def _interpreter_roots(interpreter: str) -> list[str]:
    """Return the interpreter's virtual environment and its base installation, unless they are in `/usr`."""
    path = Path(shutil.which(interpreter) or interpreter).absolute()
    roots = {path.parent.parent, path.resolve().parent.parent} - {Path("/usr"), Path("/")}
    return sorted(map(str, roots))


def _is_confined() -> bool:
    """Return whether this process runs in a worker's sandbox."""
    if os.environ.get("WANDER_CONFINED") != "bubblewrap":
        return False
    return INSIDE.encode() in Path("/proc/1/cmdline").read_bytes().split(b"\0")


def _profile(shown: Sequence[str], disk_mb: int, folders: Sequence[str] = ()) -> list[str | int]:
    """Return bubblewrap's arguments: no network, a read-only system, and `/tmp` and `folders` as writable
    folders.

    `shown` are the folders that are visible in addition to `/usr`. A number represents the descriptor of a
    folder.
    """
    variables = {**ENVIRONMENT, "HOME": SCRATCH, "TMPDIR": SCRATCH}
    system_folders: list[str] = []  # expected next to `/usr`: links into it, or folders
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            system_folders += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            system_folders += ["--ro-bind", str(path), str(path)]
    return [
        *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"),
        *("--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"),
        *(part for name, value in variables.items() for part in ("--setenv", name, value)),
        *("--ro-bind", "/usr", "/usr"),
        *system_folders,
        # Before the interpreter, which may be inside one of them.
        *(part for path in (SCRATCH, *folders) for part in ("--size", str(disk_mb << 20), "--tmpfs", path)),
        *(part for index, place in enumerate(shown) for part in ("--ro-bind-fd", index, place)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(16 << 20), "--tmpfs", "/dev/shm"),  # noqa: S108 - private to the sandbox
        *("--chdir", SCRATCH, "--remount-ro", "/"),
    ]


def cut(text: str, chars: int, length: int) -> str:
    """Return at most `chars` characters of a text of `length` characters, with a note about the omission."""
    if len(text) <= chars:
        return text
    head = chars * 3 // 4
    tail = chars - head
    note = f"\n... [{length - chars} of {length} characters left out] ...\n"
    return text[:head] + note + text[len(text) - tail :]
