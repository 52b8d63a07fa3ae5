"""How a host reaches a worker: one that it starts itself, over a socket in a folder of its own."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve

from wander.errors import LoadError
from wander.rollout.activity import Notices, Silence
from wander.system.locked_folders import LockedFolder
from wander.system.marked_processes import MARK, end_marked_processes
from wander.worker.channel import FRAME, OPTIONS
from wander.worker.note import NOTE_FILE, read_note, read_silence
from wander.worker.process.start import WorkerProcess
from wander.worker.protocol import LastWords, Load
from wander.worker.remote.address import WorkerPlace

if TYPE_CHECKING:
    from wander.worker.process.sandboxed import Sandbox
    from wander.worker.remote.tunnel import AnswerCall

T = TypeVar("T")

_NO_PYTHON = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
"""What the system answers where an interpreter is missing or damaged."""
PREFIX = "wander-worker-"
_SOCKET_LIMIT = 100
"""Longest path of a Unix socket that macOS takes is 104 bytes."""


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker runs, and with what."""

    python: Path | None
    load: Load
    environ: tuple[str, ...]
    log_path: Path
    startup_timeout: float
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are the worker's alone."""
    sandbox: Sandbox | None = None
    address: WorkerPlace | None = None
    """Where a listening worker is asked instead of one started here; then only `load`, `startup_timeout` and
    `answer_call` count."""
    answer_call: AnswerCall | None = None
    """Answers the OpenAI clients of code on another machine; None lets nobody answer."""
    notices: Notices | None = None
    """To whom rollouts without progress are reported; `load` holds the seconds."""


def make_socket_folder() -> LockedFolder:
    """Make a folder whose path leaves room for a socket; macOS has long temporary paths."""
    place = Path(tempfile.gettempdir())
    if len(str(place / f"{PREFIX}0123456789abcdef" / "s")) > _SOCKET_LIMIT:
        place = Path("/tmp")  # noqa: S108 - the folder in it has a random name
    return LockedFolder.make(place, PREFIX)


class LocalLink:
    """A process started here and its connection. Made by `open`, ended by `close`."""

    aside: Callable[[str], None] | None = None
    """Takes text frames: a worker that is started here sends none."""

    def __init__(self, folder: LockedFolder, message_limit: int) -> None:
        self._folder = folder
        self._path = folder.path / "s"
        # A worker's connection may wait before it greets, and `startup_timeout` bounds the whole start.
        self._options = {**OPTIONS, "max_size": message_limit + FRAME, "open_timeout": None}
        self._mark = secrets.token_hex(8)
        self._server: Server | None = None
        self._control: asyncio.Future[socket.socket] | None = None
        """Where a confined worker connects; there it listens itself, for this process."""
        self._connected: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        self.process: WorkerProcess

    @classmethod
    async def open(cls, options: WorkerOptions) -> LocalLink:
        """Start a worker that will connect; raises `LoadError` when its interpreter does not start."""
        link = cls(make_socket_folder(), options.load.message_limit)
        try:
            link.process = await link._start(options)
        except BaseException as error:
            await link.close()
            if isinstance(error, OSError):
                hint = "install the environment again: its virtual environment is incomplete"
                raise LoadError(
                    f"cannot start `{options.python or sys.executable}`: {error.strerror}",
                    hint=hint if error.errno in _NO_PYTHON else None,
                ) from error
            raise
        return link

    async def _start(self, options: WorkerOptions) -> WorkerProcess:
        variables = {**options.variables, MARK: self._mark}
        given: dict[str, Any] = {
            "environ": options.environ,
            "log_path": options.log_path,
            "variables": variables,
        }
        if options.sandbox is None:
            self._server = await unix_serve(self._accept, str(self._path), **self._options)
            return await WorkerProcess.start(options.python, self._path, **given)
        from wander.worker.process.sandboxed import SandboxedWorker  # costs what most workers do not need

        source = None if options.load.path is None else Path(options.load.path)
        started = await SandboxedWorker.start_in(options.sandbox, source=source, **given)
        self._control = started.control
        return started

    async def wait_for_connection(self) -> Connection:
        """Wait for the worker; raises `LoadError` when it ends before."""

        async def wait() -> Connection:
            if self._control is not None:
                listening = await asyncio.shield(self._control)
                self._server = await serve(self._accept, sock=listening, **self._options)
            return await asyncio.shield(self._connected)

        if (connection := await until_ended(self.process, wait())) is None:
            raise explain_early_end(self.process)
        return connection

    def last_words(self) -> LastWords | None:
        """Return what is known of a worker that a rollout ended: itself, or by the code that it ran."""
        play, words = read_note(self._note())
        if words is None and play is not None and self.process.ended_itself():
            return LastWords(play=play, seconds=0.0)
        return words

    def last_silence(self) -> Silence | None:
        """Return the rollout that the worker left in its note, since it makes no progress."""
        return read_silence(self._note())

    def _note(self) -> bytes:
        note = self.process.note()
        if note is not None:
            return note
        try:
            return (self._folder.path / NOTE_FILE).read_bytes()
        except OSError:
            return b""

    async def disconnect(self) -> None:
        """Close the connection: the worker then tears its environment down and ends."""
        self._done.set()
        if self._server is not None:  # none, where it could not even be opened
            self._server.close()
            await self._server.wait_closed()

    async def close(self) -> None:
        """Close the connection, remove the socket, and end what the worker's process has left."""
        await self.disconnect()
        self._folder.close()
        end_marked_processes(self._mark)

    async def _accept(self, connection: ServerConnection) -> None:
        if self._connected.done():
            return  # one worker only
        self._connected.set_result(connection)
        if self._control is not None and self._server is not None:
            self._server.close(close_connections=False)  # nobody else may so much as greet
        await self._done.wait()


async def until_ended(process: WorkerProcess, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what the work gives, or None where the process ends before that.

    Both are watched, since children of the process may hold its connection open.
    """
    task, ended = asyncio.create_task(work), asyncio.create_task(process.wait())
    try:
        both: Iterable[asyncio.Task[Any]] = (task, ended)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        # What it said last may still be on its way.
        await asyncio.wait({task}, timeout=1.0)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        ended.cancel()
        await asyncio.gather(task, ended, return_exceptions=True)


def explain_early_end(process: WorkerProcess) -> LoadError:
    """Return the error for a process that ended before it had loaded anything."""
    return load_error(f"the environment's process {process.ending()} before it was loaded", process)


def load_error(reason: str, process: WorkerProcess) -> LoadError:
    """Return an error of the start, with the log."""
    return LoadError(
        process.with_log(reason),
        hint="install the environment again if its virtual environment is incomplete; else see the log",
    )
