"""Connects a host to a worker that it starts itself, over a socket in a private folder."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterable, Mapping
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

T = TypeVar("T")

_NO_PYTHON = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
"""Error codes for a missing or damaged interpreter."""
PREFIX = "wander-worker-"
_SOCKET_LIMIT = 100
"""Maximum length of a Unix socket's path. On macOS, the limit is 104 bytes."""


@dataclass(frozen=True)
class WorkerOptions:
    """Environment that a worker loads, and settings of the worker."""

    python: Path | None
    load: Load
    environ: tuple[str, ...]
    log_path: Path
    startup_timeout: float
    variables: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables for the worker."""
    sandbox: Sandbox | None = None
    address: WorkerPlace | None = None
    """Address of a listening worker to use instead of starting one. Then only `load` and
    `startup_timeout` matter."""
    notices: Notices | None = None
    """Receiver of reports about rollouts without progress. `load` holds the number of seconds."""


def make_socket_folder() -> LockedFolder:
    """Make a folder with a path short enough for a socket. macOS has long temporary paths."""
    place = Path(tempfile.gettempdir())
    if len(str(place / f"{PREFIX}0123456789abcdef" / "s")) > _SOCKET_LIMIT:
        place = Path("/tmp")  # noqa: S108 - the folder in it has a random name
    return LockedFolder.make(place, PREFIX)


class LocalLink:
    """A local worker process and its connection. Created by `open`, ended by `close`."""

    def __init__(self, folder: LockedFolder, message_limit: int) -> None:
        self._folder = folder
        self._path = folder.path / "s"
        # A worker may connect long before it greets. `startup_timeout` limits the whole start instead.
        self._options = {**OPTIONS, "max_size": message_limit + FRAME, "open_timeout": None}
        self._mark = secrets.token_hex(8)
        self._server: Server | None = None
        self._control: asyncio.Future[socket.socket] | None = None
        """Socket that a confined worker connects to. The worker listens on it in the sandbox for this
        process."""
        self._connected: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        self.process: WorkerProcess

    @classmethod
    async def open(cls, options: WorkerOptions) -> LocalLink:
        """Start a worker that will connect. Raises `LoadError` if its interpreter does not start."""
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
        start_options: dict[str, Any] = {
            "environ": options.environ,
            "log_path": options.log_path,
            "variables": variables,
        }
        if options.sandbox is None:
            self._server = await unix_serve(self._accept, str(self._path), **self._options)
            return await WorkerProcess.start(options.python, self._path, **start_options)
        from wander.worker.process.sandboxed import SandboxedWorker  # costs what most workers do not need

        source = None if options.load.path is None else Path(options.load.path)
        started = await SandboxedWorker.start_in(options.sandbox, source=source, **start_options)
        self._control = started.control
        return started

    async def wait_for_connection(self) -> Connection:
        """Wait for the worker's connection. Raises `LoadError` if the worker ends before."""

        async def wait() -> Connection:
            if self._control is not None:
                # The end of the process closes the original. A server whose own socket is closed never ends.
                listening = (await asyncio.shield(self._control)).dup()
                self._server = await serve(self._accept, sock=listening, **self._options)
            return await asyncio.shield(self._connected)

        if (connection := await until_ended(self.process, wait())) is None:
            raise explain_early_end(self.process)
        return connection

    def last_words(self) -> LastWords | None:
        """Return the evidence about a worker that was ended by a rollout's code, or because of it."""
        play, words = read_note(self._note())
        if words is None and play is not None and self.process.ended_itself():
            return LastWords(play=play, seconds=0.0)
        return words

    def last_silence(self) -> Silence | None:
        """Return the rollout without progress that the worker left in its note, if any."""
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
        """Close the connection. The worker then tears its environment down and exits."""
        self._done.set()
        if self._server is not None:  # None if the server could not be opened
            self._server.close()
            await self._server.wait_closed()

    async def close(self) -> None:
        """Close the connection, remove the socket, and end all processes left by the worker."""
        await self.disconnect()
        self._folder.close()
        end_marked_processes(self._mark)

    async def _accept(self, connection: ServerConnection) -> None:
        if self._connected.done():
            return  # only one worker may connect
        self._connected.set_result(connection)
        if self._control is not None and self._server is not None:
            self._server.close(close_connections=False)  # accept no other connection
        await self._done.wait()


async def until_ended(process: WorkerProcess, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if the process ends first.

    Both are watched, because children of the process may keep its connection open.
    """
    task, ended = asyncio.create_task(work), asyncio.create_task(process.wait())
    try:
        both: Iterable[asyncio.Task[Any]] = (task, ended)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        # The last message may still be on its way.
        await asyncio.wait({task}, timeout=1.0)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        ended.cancel()
        await asyncio.gather(task, ended, return_exceptions=True)


def explain_early_end(process: WorkerProcess) -> LoadError:
    """Return the error for a process that ended before it had loaded its environment."""
    return load_error(f"the environment's process {process.ending()} before it was loaded", process)


def load_error(reason: str, process: WorkerProcess) -> LoadError:
    """Return an error about the start that includes the log."""
    return LoadError(
        process.with_log(reason),
        hint="install the environment again if its virtual environment is incomplete; otherwise read the log",
    )
