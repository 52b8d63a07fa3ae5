"""The host's link to a worker that listens on another machine (`wander.worker.listener`)."""

from __future__ import annotations

import asyncio
from functools import partial

from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import InvalidHandshake, InvalidStatus

from wander.errors import LoadError, WorkerRefusedToken, WorkerUnreachable
from wander.worker.channel import FRAME, OPTIONS
from wander.worker.process.start import WorkerProcess
from wander.worker.protocol import LastWords
from wander.worker.remote.address import WorkerAddress
from wander.worker.remote.heartbeat import PING_SECONDS, SILENT_PINGS, heartbeat, keep_alive
from wander.worker.remote.tunnel import AnswerCall, HostEnd

_CONNECT_SECONDS = 20.0


class RemoteProcess(WorkerProcess):
    """Stands for the process on the other machine: it lives as long as the connection."""

    def __init__(self, connection: ClientConnection, address: WorkerAddress) -> None:
        self._connection = connection
        self._address = address
        self.silent = False
        """Set when heartbeats were not answered any more."""

    async def wait(self) -> None:
        """Wait until the connection is closed."""
        await self._connection.wait_closed()

    def kill(self) -> None:
        """Cut the connection; the listener then kills the process and what it started."""
        self._connection.transport.abort()

    def ending(self) -> str:
        """Say in words how the worker ended."""
        words = self.last_words()
        how = (words.ending if words else self._connection.close_reason) or "closed its connection"
        if self.silent:
            how = f"answered nothing for {PING_SECONDS * SILENT_PINGS:g} s"
        return f"at `{self._address}` {how}"

    def last_words(self) -> LastWords | None:
        """Return what the listener said when it closed the connection."""
        try:
            return LastWords.model_validate_json(self._connection.close_reason or "")
        except ValidationError:
            return None

    def with_log(self, reason: str) -> str:
        """Say how the worker ended, and where its log is."""
        return f"{reason}; its log is on that machine"

    def whole_trace(self) -> str:
        """Say where more about an error is to be found."""
        return f"the whole trace is in the log of {self._address}"


class RemoteLink:
    """A connection to a listening worker. Made by `open`, ended by `close`."""

    def __init__(
        self, connection: ClientConnection, address: WorkerAddress, answer: AnswerCall | None
    ) -> None:
        self._connection = connection
        self.process = RemoteProcess(connection, address)
        self._calls = None if answer is None else HostEnd(connection, answer)
        self.aside = None if self._calls is None else self._calls.receive
        """Takes text frames: what the listener asks itself."""
        self._heart = asyncio.create_task(self._beat())

    @classmethod
    async def open(
        cls, address: WorkerAddress, *, message_limit: int, seconds: float, answer: AnswerCall | None = None
    ) -> RemoteLink:
        """Connect; raises `WorkerUnreachable` where no worker answers, `WorkerRefusedToken` where it
        does not take this one, and another `LoadError` where something else answers.

        `answer` is asked by OpenAI clients of the worker's code.
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
            said = f"what answers at `{address}` is no worker: {error}"
            raise LoadError(said, hint=_start(address)) from error
        except (OSError, TimeoutError) as error:
            said = getattr(error, "strerror", None) or str(error) or "no answer"
            raise WorkerUnreachable(
                f"no worker answers at `{address}`: {said}", hint=_start(address)
            ) from error
        keep_alive(connection)
        return cls(connection, address, answer)

    async def wait_for_connection(self) -> Connection:
        """Return the connection."""
        return self._connection

    def last_words(self) -> LastWords | None:
        """Return what is known of a worker that a rollout ended."""
        words = self.process.last_words()
        return words if words is not None and words.play is not None else None

    def last_silence(self) -> None:
        """Return None: what a worker leaves for its host is on the other machine."""

    async def close(self) -> None:
        """Close the connection."""
        self._heart.cancel()
        await asyncio.gather(self._heart, return_exceptions=True)
        if self._calls is not None:
            await self._calls.close()
        await self._connection.close()

    async def _beat(self) -> None:
        await heartbeat(self._connection, PING_SECONDS, SILENT_PINGS)
        self.process.silent = True


def _refusal(address: WorkerAddress, error: InvalidStatus) -> LoadError:
    """Return the error for an answer that is no websocket's."""
    status, body = error.response.status_code, bytes(error.response.body or b"").decode("utf-8", "replace")
    said = body.strip().partition("\n")[0][:200]
    if status == 401:
        hint = "give the file that it was started with: `worker_token_file`"
        return WorkerRefusedToken(f"the worker at `{address}` refused the token: {said}", hint=hint)
    if status == 503:
        hint = "ask for fewer, or start it with more: `wander worker ENVIRONMENT --workers N`"
        return WorkerUnreachable(f"the worker at `{address}` is busy: {said}", hint=hint)
    return LoadError(f"what answers at `{address}` is no worker: HTTP {status}", hint=_start(address))


def _start(address: WorkerAddress) -> str:
    if address.path:
        return f"start one there: `wander worker ENVIRONMENT --listen {address}`"
    return f"start one there: `wander worker ENVIRONMENT --listen 0.0.0.0:{address.port} --token-file FILE`"
