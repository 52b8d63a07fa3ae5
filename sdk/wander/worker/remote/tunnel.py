"""Forwards calls of OpenAI clients in the code of a worker on another machine to the host.

The listener opens a port on its own loopback interface, and passes its address and a token to the
environment. Each request goes to the host in a text frame over the existing connection (frames of the
worker's process are binary). The host's endpoint handles it (`wander.worker.openai_proxy`), because the host
has the key and the record. The port belongs to the listener, because the event loop of the worker's process
is blocked while a synchronous client in its code waits.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydantic import ValidationError
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from wander.errors import LoadError
from wander.rollout.outside_calls import HEADER
from wander.worker.channel import send_frame
from wander.worker.openai_proxy import MOST_CONNECTIONS, TOKEN_REFUSED, as_response, refusal, token_variables
from wander.worker.protocol import PROTOCOL, OutsideAnswer, OutsideCall

if TYPE_CHECKING:
    from aiohttp import web

AnswerCall = Callable[[str, str, bytes, str], Awaitable[tuple[int, str]]]
"""Callback that handles the method, path, body and rollout id of a request. Returns a status and JSON."""
_SECONDS = 1800.0
"""Maximum seconds that a request waits for the host. It calls within 600 s, but its own limits may delay
it."""


class WorkerEnd:
    """The port on the worker's machine. Created by `open`, ended by `close`."""

    def __init__(self, host: Connection) -> None:
        self._host = host
        self._token = f"wander-{secrets.token_hex(16)}"
        self._waiting: dict[int, asyncio.Future[OutsideAnswer]] = {}
        self._next_id = 0
        self._server: web.Server
        self._listening: asyncio.Server

    @classmethod
    async def open(cls, host: Connection) -> WorkerEnd:
        """Listen on a free loopback port."""
        from aiohttp import web

        end = cls(host)
        end._server = web.Server(end._handle)
        loop = asyncio.get_running_loop()
        end._listening = await loop.create_server(end._protocol, "127.0.0.1", 0)
        return end

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that point the worker's clients to the port."""
        return token_variables(self._listening.sockets[0].getsockname(), self._token)

    def receive(self, text: str) -> None:
        """Handle a response of the host. Raises `LoadError` if it is invalid."""
        try:
            answer = OutsideAnswer.model_validate_json(text)
        except ValidationError:
            reason = f"the host sent an invalid message for protocol {PROTOCOL}, which this worker uses"
            raise LoadError(reason, hint="install the same wander-sdk on both machines") from None
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def close(self) -> None:
        """Close the port and its connections, and fail the requests that wait."""
        self._listening.close()
        for number, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_result(_failure(number, 502, "the host is gone"))
        await self._server.shutdown(2.0)

    def _protocol(self) -> asyncio.Protocol:
        full = len(self._server.connections) >= MOST_CONNECTIONS
        return _Refusing() if full else self._server()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return as_response(401, TOKEN_REFUSED)
        try:
            body = (await request.read()).decode()
        except UnicodeDecodeError:
            return as_response(400, refusal("the request is not JSON"))
        self._next_id += 1
        call = OutsideCall(
            id=self._next_id,
            method=request.method,
            path=_sendable(request.path),
            body=body,
            rollout_id=_sendable(request.headers.get(HEADER, "")),
        )
        waiting: asyncio.Future[OutsideAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = waiting
        try:
            await send_frame(self._host, call.model_dump_json())
            async with asyncio.timeout(_SECONDS):
                answer = await waiting
        except ConnectionClosed:
            answer = _failure(call.id, 502, "the host is gone")
        except TimeoutError:
            answer = _failure(call.id, 504, f"the host did not respond within {_SECONDS:g} s")
        finally:
            del self._waiting[call.id]
        return as_response(answer.status, answer.body)


class HostEnd:
    """The host's side of one connection, which gets responses from its endpoint. Ended by `close`."""

    def __init__(self, worker: Connection, answer: AnswerCall) -> None:
        self._worker = worker
        self._answer = answer
        self._calls: set[asyncio.Task[None]] = set()

    def receive(self, text: str) -> None:
        """Start to handle a request. Raises `ValidationError` if it is invalid."""
        request = OutsideCall.model_validate_json(text)
        call = asyncio.create_task(self._handle(request, full=len(self._calls) >= MOST_CONNECTIONS))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Stop answering."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _handle(self, request: OutsideCall, *, full: bool) -> None:
        try:
            if full:
                answer = _failure(request.id, 503, f"more than {MOST_CONNECTIONS} concurrent calls")
            else:
                response = await self._answer(
                    request.method, request.path, request.body.encode(), request.rollout_id
                )
                answer = OutsideAnswer(id=request.id, status=response[0], body=response[1])
        except Exception as error:
            # The caller must not wait forever. The details stay on the host, because they may be
            # confidential.
            logging.getLogger(__name__).exception("a call of a worker's code could not be handled")
            answer = _failure(request.id, 500, f"the host's endpoint raised `{type(error).__name__}`")
        try:
            await send_frame(self._worker, answer.model_dump_json())
        except ConnectionClosed:
            return  # the caller is gone too


class _Refusing(asyncio.Protocol):
    """Closes a connection that exceeds the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _sendable(text: str) -> str:
    """Return a header or path, which may contain any bytes, as text that JSON can represent."""
    return text.encode("utf-8", "replace").decode()


def _failure(number: int, status: int, message: str) -> OutsideAnswer:
    return OutsideAnswer(id=number, status=status, body=refusal(message))
