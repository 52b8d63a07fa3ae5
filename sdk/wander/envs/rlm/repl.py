"""A Python REPL in a process of its own, for code that a model writes.

Always: its own process group, an empty environment, limits on memory, files and open handles, a time limit a
cell, output that is cut. With `sandbox="bwrap"` also no network and nothing of the host's files to write.
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
from wander.sandbox.visible import INSIDE

MAX_MESSAGE = 64 << 20
"""Bytes of one message from the process; a longer one means that something is wrong in there."""
LEAVE_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""How long a cell may ignore its time limit before the process is killed."""
START_SECONDS = 60.0
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
"""Where an object lies in memory; no second run has it in the same place."""

Sandbox = Literal["none", "auto", "bwrap"]
"""`none`: an ordinary process with limits. `bwrap`: bubblewrap, or no REPL at all. `auto`: bubblewrap where
it is installed."""

SCRATCH = "/tmp"  # noqa: S108 - a file system of the sandbox's own, in memory
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
"""All that the process sees of the environment; secrets of the host are not in it. Threads are one because
linear algebra gives other bits with other thread counts."""


@dataclass(frozen=True)
class ReplLimits:
    """What one REPL may use."""

    cell_seconds: float = 30.0
    """Time of one cell; what the model takes to answer `llm_query` is not counted."""
    memory_mb: int = 2048
    """Address space of each process; not enforced on macOS."""
    file_mb: int = 16
    """Size of each file it writes, its output included."""
    output_chars: int = 8000
    """What the model is shown of one cell's output: the beginning and the end."""


@dataclass(frozen=True)
class CellResult:
    """What came of one cell."""

    output: str
    """As much as `output_chars` allows."""
    output_chars: int
    """Length of the whole output."""
    ended: Literal["ok", "error", "timeout", "died"]
    final: str | None = None
    """What `FINAL` or `FINAL_VAR` was called with."""
    restarted: bool = False
    """True when the process is gone, and the variables with it."""


@dataclass(frozen=True)
class Query:
    """One question that code asks the model."""

    prompt: str
    context: Any = None
    """A piece of text or data that the question is about."""


Outcome = tuple[Literal["ok", "error", "timeout"], str | None]
"""How a cell ended, and the final answer that it gave."""

Answerer = Callable[[list[Query]], Awaitable[list[str] | str]]
"""Answers queries in order; a plain text is an error that is raised in the cell."""


class ReplGone(Exception):
    """The process ended or broke the protocol."""


class AnswerTimeout(Exception):
    """Whoever answers a cell's queries timed out."""


class Repl:
    """A REPL that starts when it is first needed, and again after its process had to be killed."""

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
        """Where code may write in bubblewrap beside `/tmp`: empty folders in memory."""
        self.sandbox: Sandbox = sandbox
        self.python = python
        self.seed = seed
        self.loaded: dict[str, Any] = {}
        """Variables, as JSON values, that are there whenever the process starts."""
        self._running: _Running | None = None

    async def run(self, code: str, answer: Answerer) -> CellResult:
        """Run one cell; its queries are answered by `answer`.

        Never raises for what the code does. Raises `SandboxError` when no process can be had, and whatever
        `answer` raises.
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
            await self.close()  # the cell would wait for its answer for ever
            raise
        output, length = running.output(self.limits.output_chars)
        return CellResult(output, length, ended, final)

    async def _finish_cell(self, running: _Running, code: str, answer: Answerer) -> Outcome:
        """Wait for the end of a cell; only the time in which it does not wait for answers counts."""
        left = self.limits.cell_seconds + GRACE_SECONDS
        await running.send({"op": "run", "code": code, "seconds": self.limits.cell_seconds})
        while True:
            waiting = time.monotonic()
            message = await asyncio.wait_for(running.receive(), max(left, 0.01))
            left -= time.monotonic() - waiting
            if message.get("op") != "query":
                ended, final = message.get("ended"), message.get("final")
                if ended not in ("ok", "error", "timeout"):
                    raise ReplGone("an outcome that is none")
                return ended, final if isinstance(final, str) else None
            queries = message.get("queries")
            if not isinstance(queries, list) or not all(
                isinstance(each, dict) and isinstance(each.get("prompt"), str) for each in queries
            ):
                raise ReplGone("queries that are none")
            try:
                answers = await answer([Query(each["prompt"], each.get("context")) for each in queries])
            except TimeoutError as error:  # not to be taken for one of the cell
                raise AnswerTimeout(str(error)) from error
            await running.send({"error": answers} if isinstance(answers, str) else {"replies": answers})

    async def value(self, name: str) -> str | None:
        """Return a variable as text, or None when there is none of that name."""
        running = await self._start()
        try:
            answer = await asyncio.wait_for(running.ask({"op": "value", "name": name}), GRACE_SECONDS)
        except (ReplGone, TimeoutError):
            await self.close()
            return None
        value = answer.get("value")
        return value if isinstance(value, str) else None

    async def close(self) -> None:
        """Kill the process and everything it started, and remove its folder."""
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
                said = running.output(500)[0].strip()
                await self.close()
                raise SandboxError(
                    f"the REPL's process ended while `{name}` was loaded: {said}",
                    hint=f"it may use {self.limits.memory_mb} MB; raise `memory_mb` if that is too little",
                ) from error
        return running


class _Running:
    """One live process with its channel, its output file and its folder."""

    def __init__(self, process: Process, folder: Path, output: int, parent: socket.socket) -> None:
        self.process = process
        self.folder = folder
        self._output = output
        self._parent = parent
        self.busy = True
        """True while it runs something and would not notice that its channel closes."""
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, repl: Repl) -> _Running:
        """Start a process and wait until it is ready; raises `SandboxError`."""
        folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="wander-repl-")))  # noqa: ASYNC240 - a moment
        # A file without a name; writes go to its end, so that it can be emptied between cells.
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
            said = running.output(2000)[0].strip() or "it said nothing"
            await running.close()
            if isinstance(error, ReplGone | TimeoutError):
                raise SandboxError(
                    f"the REPL's process did not start: {said}",
                    hint="see whether `python=` names an interpreter that the sandbox's user may run",
                ) from error
            raise
        return running

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer; raises `ReplGone`."""
        await self.send(message)
        return await self.receive()

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message; raises `ReplGone`."""
        data = json.dumps(message).encode()
        self.busy = True
        try:
            self._writer.write(struct.pack(">I", len(data)) + data)
            await self._writer.drain()
        except OSError as error:
            raise ReplGone("the process ended") from error

    async def receive(self) -> dict[str, Any]:
        """Return the next message; raises `ReplGone` also for one that no honest process sends."""
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
        """Return what was printed since the last call, cut to `chars`, and its whole length."""
        size = os.fstat(self._output).st_size
        text = os.pread(self._output, size, 0).decode("utf-8", "replace")
        os.ftruncate(self._output, 0)
        length = len(text)
        if length > 8 * chars:
            text = text[: 4 * chars] + text[-4 * chars :]
        text = ADDRESS.sub("at 0x...", text.replace(str(self.folder), "/tmp"))  # noqa: S108 - text only
        return cut(text, chars, length), length

    async def close(self) -> None:
        """End the process and its group, whatever they do, and free what belongs to them.

        An idle process leaves by itself when its channel closes, so that bubblewrap reaps its own.
        """
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.close()
        self._parent.close()
        try:
            if not self.busy:
                with contextlib.suppress(TimeoutError):  # then it is killed
                    await asyncio.wait_for(self.process.wait(), LEAVE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            os.close(self._output)
            shutil.rmtree(self.folder, ignore_errors=True)
            await self.process.wait()


async def _spawn(repl: Repl, folder: Path, output: int, child: socket.socket) -> Process:
    """Start the child in `folder`; raises `SandboxError`, also when the sandbox cannot be had.

    Bubblewrap is never started as root: in a user namespace the root outside keeps its rights over
    `/proc/sys`. A root host takes on an ordinary user first.
    """
    limits, interpreter = repl.limits, repl.python or sys.executable
    numbers = (limits.memory_mb, limits.file_mb, repl.seed)

    def command_for(descriptor: int) -> list[str]:
        # -s and -P keep user packages and the current folder out; -I would also ignore PYTHONHASHSEED.
        program = [interpreter, "-s", "-P", "-c", SOURCE.read_text(encoding="utf-8")]
        return [*program, *map(str, (descriptor, *numbers))]

    command, environment = (
        command_for(child.fileno()),
        ENVIRONMENT | {"HOME": str(folder), "TMPDIR": str(folder)},
    )
    support = None
    # In a sandbox no other can be made. It has no network and nothing of the host's to write either, and the
    # worker's memory is closed to it.
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
            "binds": [_identify(root) for root in roots],
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
    """Return the interpreter's virtual environment and its base, where they are not in `/usr`."""
    found = Path(shutil.which(interpreter) or interpreter).absolute()
    roots = {found.parent.parent, found.resolve().parent.parent} - {Path("/usr"), Path("/")}
    return sorted(map(str, roots))


def _identify(root: str) -> tuple[str, int, int]:
    """Return a folder's path without symbolic links, its device and its inode."""
    real = os.path.realpath(root)
    found = os.stat(real)
    return real, found.st_dev, found.st_ino


def _is_confined() -> bool:
    """Tell whether this process runs in the sandbox of a worker."""
    if os.environ.get("WANDER_CONFINED") != "bubblewrap":
        return False
    return INSIDE.encode() in Path("/proc/1/cmdline").read_bytes().split(b"\0")


def _profile(shown: Sequence[str], disk_mb: int, folders: Sequence[str] = ()) -> list[str | int]:
    """Return bubblewrap's arguments: no network, a read-only system, `/tmp` and `folders` as places to write.

    `shown` are the folders that are visible in addition to `/usr`. A number stands for the descriptor of one.
    """
    variables = {**ENVIRONMENT, "HOME": SCRATCH, "TMPDIR": SCRATCH}
    beside: list[str] = []  # what programs expect beside `/usr`: links into it, or folders of their own
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            beside += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            beside += ["--ro-bind", str(path), str(path)]
    return [
        *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"),
        *("--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"),
        *(part for name, value in variables.items() for part in ("--setenv", name, value)),
        *("--ro-bind", "/usr", "/usr"),
        *beside,
        # Before the interpreter, which may lie below one of them.
        *(part for each in (SCRATCH, *folders) for part in ("--size", str(disk_mb << 20), "--tmpfs", each)),
        *(part for index, place in enumerate(shown) for part in ("--ro-bind-fd", index, place)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(16 << 20), "--tmpfs", "/dev/shm"),  # noqa: S108 - the sandbox's own
        *("--chdir", SCRATCH, "--remount-ro", "/"),
    ]


def cut(text: str, chars: int, length: int) -> str:
    """Return at most `chars` characters of a text that had `length`, and a note on what was left out."""
    if len(text) <= chars:
        return text
    head = chars * 3 // 4
    tail = chars - head
    note = f"\n... [{length - chars} of {length} characters left out] ...\n"
    return text[:head] + note + text[len(text) - tail :]
