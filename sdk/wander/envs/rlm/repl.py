"""A Python REPL in a process of its own, for code that a model writes.

Always: its own process group, an empty environment, limits on memory, files and open handles, a time limit a
cell, output that is cut. With `sandbox="bwrap"` also no network and nothing of the host's files to write.
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
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wander.envs.rlm.repl_command import Launch, Sandbox, launch
from wander.errors import SandboxError

MAX_MESSAGE = 64 << 20
"""Bytes of one message from the process; a longer one means that something is wrong in there."""
LEAVE_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""How long a cell may ignore its time limit before the process is killed."""
START_SECONDS = 60.0
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
"""Where an object lies in memory; no second run has it in the same place."""


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
        self, limits: ReplLimits, *, sandbox: Sandbox = "none", python: str | None = None, seed: int = 0
    ) -> None:
        self.limits = limits
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
            return await self._lose("timeout" if isinstance(error, TimeoutError) else "died")
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
                return _outcome(message)
            answers = await _ours(answer(_queries(message)))
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

    async def _lose(self, ended: Literal["timeout", "died"]) -> CellResult:
        assert self._running is not None
        output, length = self._running.output(self.limits.output_chars)
        await self.close()
        return CellResult(output, length, ended, restarted=True)

    async def _start(self) -> _Running:
        if self._running is None:
            self._running = await _Running.start(self)
            for name, value in self.loaded.items():
                await self._load(self._running, name, value)
        return self._running

    async def _load(self, running: _Running, name: str, value: Any) -> None:
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
        output = _output_file(folder)
        parent, child = socket.socketpair()
        limits = repl.limits
        arguments = [str(each) for each in (child.fileno(), limits.memory_mb, limits.file_mb, repl.seed)]
        try:
            how = launch(repl.sandbox, repl.python, folder, arguments, disk_mb=limits.file_mb * 4)
            process = await _spawn(how, folder, output, child)
        except BaseException:
            parent.close()
            os.close(output)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            child.close()
        running = cls(process, folder, output, parent)
        try:
            await running._greet()
        except BaseException:
            await running.close()
            raise
        return running

    async def _greet(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._parent)
        try:
            await asyncio.wait_for(self.receive(), START_SECONDS)
        except (ReplGone, TimeoutError) as error:
            said = self.output(2000)[0].strip() or "it said nothing"
            raise SandboxError(
                f"the REPL's process did not start: {said}",
                hint="see whether `python=` names an interpreter that the sandbox's user may run",
            ) from error

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
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.process.wait(), LEAVE_SECONDS)
        finally:
            _kill_group(self.process.pid)
            os.close(self._output)
            shutil.rmtree(self.folder, ignore_errors=True)
            await self.process.wait()


async def _spawn(how: Launch, folder: Path, output: int, child: socket.socket) -> Process:
    taken_on: dict[str, Any] = {}
    if how.user is not None:
        taken_on = {"user": how.user, "group": how.user, "extra_groups": []}
        os.chown(folder, how.user, how.user)
    try:
        return await asyncio.create_subprocess_exec(
            *how.command,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env=how.environment,
            cwd=folder,
            pass_fds=[child.fileno()],
            start_new_session=True,
            **taken_on,
        )
    except OSError as error:
        raise SandboxError(f"the REPL's process cannot be started: {error}") from error


def _output_file(folder: Path) -> int:
    """Open a file without a name; writes go to its end, so that it can be emptied between cells."""
    path = folder / "output"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    path.unlink()
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _queries(message: dict[str, Any]) -> list[Query]:
    queries = message.get("queries")
    if not isinstance(queries, list) or not all(
        isinstance(each, dict) and isinstance(each.get("prompt"), str) for each in queries
    ):
        raise ReplGone("queries that are none")
    return [Query(each["prompt"], each.get("context")) for each in queries]


async def _ours(answer: Awaitable[list[str] | str]) -> list[str] | str:
    """Await an answer; a timeout of its own must not be taken for one of the cell."""
    try:
        return await answer
    except TimeoutError as error:
        raise AnswerTimeout(str(error)) from error


def _outcome(message: dict[str, Any]) -> Outcome:
    ended, final = message.get("ended"), message.get("final")
    if ended not in ("ok", "error", "timeout"):
        raise ReplGone("an outcome that is none")
    return ended, final if isinstance(final, str) else None


def cut(text: str, chars: int, length: int) -> str:
    """Return at most `chars` characters of a text that had `length`, and a note on what was left out."""
    if len(text) <= chars:
        return text
    head = chars * 3 // 4
    tail = chars - head
    note = f"\n... [{length - chars} of {length} characters left out] ...\n"
    return text[:head] + note + text[len(text) - tail :]
