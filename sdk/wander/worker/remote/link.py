"""The host's link to a worker that listens on another machine (`wander.worker.listener`)."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import InvalidHandshake, InvalidStatus

from wander.errors import LoadError, WorkerRefusedToken, WorkerUnreachable, name_option
from wander.types import start_lower
from wander.worker.channel import FRAME, OPTIONS
from wander.worker.process.start import WorkerProcess
from wander.worker.protocol import LastWords
from wander.worker.remote.address import WorkerAddress
from wander.worker.remote.heartbeat import PING_SECONDS, SILENT_PINGS, heartbeat, keep_alive

_CONNECT_SECONDS = 20.0


class RemoteProcess(WorkerProcess):
    """Represents the process on the other machine. It lives as long as the connection."""

    def __init__(self, connection: ClientConnection, address: WorkerAddress) -> None:
        self._connection = connection
        self._address = address
        self.silent = False
        """Whether the other machine no longer responds to heartbeats."""

    def find_on_host(self, path: str) -> str | None:
        """Return None, because the worker sees the folders of its own machine."""
        return None

    async def wait(self) -> None:
        """Wait until the connection is closed."""
        await self._connection.wait_closed()

    def kill(self) -> None:
        """Cut the connection. The listener then kills the process and everything that it started."""
        self._connection.transport.abort()

    def ending(self) -> str:
        """Describe how the worker ended."""
        words = self.last_words()
        how = (words.ending if words else self._connection.close_reason) or "closed its connection"
        if self.silent:
            how = f"did not respond for {PING_SECONDS * SILENT_PINGS:g} s"
        return f"at `{self._address}` {how}"

    def last_words(self) -> LastWords | None:
        """Return what the listener reported when it closed the connection."""
        try:
            return LastWords.model_validate_json(self._connection.close_reason or "")
        except ValidationError:
            return None

    def with_log(self, reason: str) -> str:
        """Add to a reason where the log is."""
        return f"{reason}; its log is on that machine"

    def whole_trace(self) -> str:
        """Return where more details about an error are."""
        return f"the complete traceback is in the log of {self._address}"


class RemoteLink:
    """A connection to a listening worker. Created by `open`, ended by `close`."""

    def __init__(self, connection: ClientConnection, address: WorkerAddress) -> None:
        self._connection = connection
        self.process = RemoteProcess(connection, address)
        self._heart = asyncio.create_task(self._beat())

    @classmethod
    async def open(cls, address: WorkerAddress, *, message_limit: int, seconds: float) -> RemoteLink:
        """Connect to a worker.

        Raises `WorkerUnreachable` if no worker responds, `WorkerRefusedToken` if the worker rejects the
        token, and another `LoadError` if something else responds.
        """
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        most = {"max_size": message_limit + FRAME}
        try:
            reach = partial(unix_connect, address.path) if address.path else connect
            connection = await reach(
                uri=address.url,
                additional_headers=headers,
                proxy=None,
                open_timeout=min(_CONNECT_SECONDS, seconds),
                **{**OPTIONS, **most},
            )
        except InvalidStatus as error:
            raise _refusal(address, error) from error
        except (InvalidHandshake, EOFError) as error:
            reason = f"`{address}` responds, but is not a worker: {error}"
            raise LoadError(reason, hint=_start(address)) from error
        except (OSError, TimeoutError) as error:
            reason = _system_reason(error)
            raise WorkerUnreachable(
                f"no worker responds at `{address}`: {reason}", hint=_start(address)
            ) from error
        keep_alive(connection)
        return cls(connection, address)

    async def wait_for_connection(self) -> Connection:
        """Return the connection."""
        return self._connection

    def last_words(self) -> LastWords | None:
        """Return the evidence about a worker that was ended by a rollout's code, or because of it."""
        words = self.process.last_words()
        return words if words is not None and words.play is not None else None

    def last_silence(self) -> None:
        """Return None, because the worker's note is on the other machine."""

    async def close(self) -> None:
        """Close the connection."""
        self._heart.cancel()
        await asyncio.gather(self._heart, return_exceptions=True)
        await self._connection.close()

    async def _beat(self) -> None:
        await heartbeat(self._connection, PING_SECONDS, SILENT_PINGS)
        self.process.silent = True


def _system_reason(error: OSError) -> str:
    """Return why a connection failed. asyncio puts the address into the text, so use the system's text."""
    if isinstance(error, ConnectionError) and error.errno:
        return start_lower(os.strerror(error.errno))
    return error.strerror or str(error) or "no response in time"


def _refusal(address: WorkerAddress, error: InvalidStatus) -> LoadError:
    """Return the error for a response that refuses the websocket."""
    status, body = error.response.status_code, bytes(error.response.body or b"").decode("utf-8", "replace")
    reason = body.strip().partition("\n")[0][:200]
    if status == 401:
        hint: str = "pass the token file that it was started with: " + name_option(
            "worker_token_file", "FILE"
        )
        return WorkerRefusedToken(f"the worker at `{address}` refused the token: {reason}", hint=hint)
    if status == 503:
        hint = "request fewer workers, or start it with more: `wander worker ENVIRONMENT --workers N`"
        return WorkerUnreachable(f"the worker at `{address}` is busy: {reason}", hint=hint)
    return LoadError(f"`{address}` responds, but is not a worker: HTTP {status}", hint=_start(address))


def _start(address: WorkerAddress) -> str:
    if address.path:
        return f"start a worker there: `wander worker ENVIRONMENT --listen {address}`"
    return (
        f"start a worker there: `wander worker ENVIRONMENT --listen 0.0.0.0:{address.port} --token-file FILE`"
    )
