"""A Python REPL in a separate process, for code that a model writes.

It always has its own process group, an empty environment, limits on memory, files and open handles, a time
limit per cell, and truncated output. With `sandbox="bwrap"`, it runs in a box (`wander.boxes`) that shows the
interpreter's folders: it also lacks network access and cannot write any file of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.errors import SandboxError
from wander.sandbox.support import require_support
from wander.sandbox.visible import INSIDE
from wander.system.memory_files import open_memory_file

MAX_MESSAGE = 64 << 20
"""Maximum size of a message from the process in bytes. A longer one means that something is wrong there."""
GRACE_SECONDS = 3.0
"""Seconds that a cell may exceed its time limit before the process is killed."""
START_SECONDS = 60.0
_LIFETIME = 1e9
"""Seconds until a box ends. Only cells have a time limit."""
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
"""Memory address of an object, which differs between runs."""

Sandbox = Literal["none", "auto", "bwrap"]
"""`none`: an ordinary process with limits. `bwrap`: bubblewrap, or no REPL if it is missing. `auto`:
bubblewrap if it is installed."""

SCRATCH = "/tmp"  # noqa: S108 - in the memory of the box
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
    ) -> None:
        self.limits = limits
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
            async with asyncio.timeout(max(remaining, 0.01)):
                message = await running.receive()
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
            async with asyncio.timeout(GRACE_SECONDS):
                answer = await running.ask({"op": "value", "name": name})
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
                async with asyncio.timeout(START_SECONDS):
                    await ask
            except (ReplGone, TimeoutError) as error:
                output = running.output(500)[0].strip()
                await self.close()
                raise SandboxError(
                    f"the REPL's process ended while it loaded `{name}`: {output}",
                    hint=f"its limit is {self.limits.memory_mb} MB; raise `memory_mb` if that is too small",
                ) from error
        return running


class _Running:
    """A running process with its channel and its output."""

    def __init__(self, folder: str, output: IO[bytes]) -> None:
        self._folder = folder
        self._output = output
        self._resources: contextlib.AsyncExitStack
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, repl: Repl) -> _Running:
        """Start a process and wait until it is ready. Raises `SandboxError`."""
        async with contextlib.AsyncExitStack() as resources:
            output = resources.enter_context(open_memory_file("output"))
            # In append mode, so that it can be emptied between cells.
            fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)
            channel, inside = socket.socketpair()
            resources.enter_context(channel)
            with inside:
                folder = await _start_process(repl, inside, output.fileno(), resources)
            running = cls(folder, output)
            running._reader, running._writer = await asyncio.open_connection(sock=channel)
            resources.callback(running._writer.close)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await running.receive()
            except (ReplGone, TimeoutError) as error:
                raise SandboxError(
                    f"the REPL's process did not start: {running.output(2000)[0].strip() or 'no output'}",
                    hint="check that `python=` names an interpreter that the sandbox's user may run",
                ) from error
            running._resources = resources.pop_all()
        return running

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Raises `ReplGone`."""
        await self.send(message)
        return await self.receive()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises `ReplGone`."""
        data = json.dumps(message).encode()
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
        return message

    def output(self, chars: int) -> tuple[str, int]:
        """Return the output since the last call, cut to `chars` characters, and its full length."""
        file = self._output.fileno()
        text = os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", "replace")
        os.ftruncate(file, 0)
        length = len(text)
        if length > 8 * chars:
            text = text[: 4 * chars] + text[-4 * chars :]
        text = ADDRESS.sub("at 0x...", text.replace(self._folder, SCRATCH))
        return cut(text, chars, length), length

    async def close(self) -> None:
        """Kill the process and everything that it started in its group or box, and release its resources."""
        await self._resources.aclose()


async def _start_process(
    repl: Repl, channel: socket.socket, output: int, resources: contextlib.AsyncExitStack
) -> str:
    """Start the child with the channel as its standard input, and return its folder.

    Raises `SandboxError` if the child cannot be started, or if the required sandbox is not available.
    """
    limits, interpreter = repl.limits, repl.python or sys.executable
    # -s and -P exclude user packages and the current folder. -I would also ignore PYTHONHASHSEED.
    words = [interpreter, "-s", "-P", "-c", SOURCE.read_text(encoding="utf-8")]
    words += map(str, (limits.memory_mb, limits.file_mb, repl.seed))
    if _uses_box(repl.sandbox):
        box_limits = BoxLimits(
            memory_mb=max(16, limits.memory_mb), disk_mb=4 * limits.file_mb, seconds=_LIFETIME
        )
        spec = BoxSpec(working_folder=SCRATCH, limits=box_limits)
        box = await BubblewrapBackend().start(spec, _interpreter_roots(interpreter))
        command = asyncio.ensure_future(
            box.exec(
                words,
                seconds=_LIFETIME,
                environment={**ENVIRONMENT, "HOME": SCRATCH, "TMPDIR": SCRATCH},
                stdin=channel.dup(),
                output_file=output,
            )
        )
        resources.push_async_callback(lambda: asyncio.gather(command, return_exceptions=True))
        resources.push_async_callback(box.stop)
        return SCRATCH
    folder = os.path.realpath(tempfile.mkdtemp(prefix="wander-repl-"))  # noqa: ASYNC240 - a moment
    resources.callback(shutil.rmtree, folder, ignore_errors=True)
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=channel.fileno(),
            stdout=output,
            stderr=output,
            env={**ENVIRONMENT, "HOME": folder, "TMPDIR": folder},
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"the REPL's process cannot be started: {error}") from error

    async def kill() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    resources.push_async_callback(kill)
    return folder


def _uses_box(sandbox: Sandbox) -> bool:
    """Return whether the process runs in a box. Raises `SandboxError` if it must, and cannot.

    A worker's sandbox cannot contain another one. It already has no network and no writable files of the
    host, and the worker's memory is protected from it.
    """
    if sandbox == "none" or _is_confined():
        return False
    try:
        require_support()
    except SandboxError as error:
        if sandbox == "bwrap":
            error.hint = f'{error.hint}, or pass `sandbox="none"`'
            raise
        return False
    return True


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


def cut(text: str, chars: int, length: int) -> str:
    """Return at most `chars` characters of a text of `length` characters, with a note about the omission."""
    if len(text) <= chars:
        return text
    head = chars * 3 // 4
    tail = chars - head
    note = f"\n... [{length - chars} of {length} characters left out] ...\n"
    return text[:head] + note + text[len(text) - tail :]
