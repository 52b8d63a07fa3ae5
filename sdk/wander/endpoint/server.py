"""The HTTP server that a program in a box calls as its model.

It serves listening sockets that the box opens for it. Every key is accepted, because only the box's programs
can connect. Requests are untrusted: the size and depth of each, the connections, and the bytes of all open
calls together are limited.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wander.endpoint.anthropic import MessagesRequest
from wander.endpoint.chat import ChatRequest
from wander.endpoint.dialect import DialectRequest, Refused, object_of, to_json
from wander.endpoint.responses import ResponsesRequest
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.wire.untrusted_text import MIB, RefusedText, TextKind, read_json

if TYPE_CHECKING:
    from aiohttp import web

REQUEST = TextKind("the request", 16 * MIB, 400_000, most_nodes=200_000)
MOST_CONNECTIONS = 64
"""Maximum number of open connections of a box."""
MOST_OPEN_BYTES = 64 * MIB
"""Maximum size of the requests that wait for their reply at the same time."""
_BODY_SECONDS = 60.0
"""Seconds in which the body of a request must arrive."""
PATIENCE_SECONDS = 5.0
"""Seconds for which a stream does not begin, so that an early refusal is an ordinary error response."""
KEEP_ALIVE_SECONDS = 10.0
_CLOSING_SECONDS = 0.05
"""Seconds for which handlers may still run when the endpoint closes. For zero, aiohttp waits forever."""
_DIALECTS: dict[str, type[DialectRequest]] = {
    "/chat/completions": ChatRequest,
    "/responses": ResponsesRequest,
    "/messages": MessagesRequest,
}
_COUNT = "/messages/count_tokens"
_NO_RETRY = {"x-should-retry": "false"}
"""Header with which the clients of OpenAI and Anthropic do not repeat a request."""
_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class ModelEndpoint:
    """Serves the model calls of a box in the dialects of OpenAI and Anthropic.

    `next_call` returns the calls in the order of their arrival. Several calls may wait for their `answer`
    at the same time. `model` is the name under which the model is listed; calls of any other name are
    answered as well.
    """

    def __init__(self, model: str = "policy") -> None:
        self.model = model
        self._ids = itertools.count()
        self._arrived: asyncio.Queue[EndpointCall] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[EndpointReply]] = {}
        self._open_bytes = 0
        self._server: web.Server | None = None
        self._listeners: list[asyncio.Server] = []

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve listening sockets, which `close` closes."""
        from aiohttp import web

        loop = asyncio.get_running_loop()

        def make_request(
            message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
        ) -> web.BaseRequest:
            size = REQUEST.most_bytes
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=size)

        # aiohttp cancels the handler when the program hangs up, so its call is not played in vain.
        self._server = web.Server(
            self._handle, request_factory=make_request, handler_cancellation=True, access_log=None
        )
        for listening in sockets:
            listening.setblocking(False)
            self._listeners.append(await loop.create_server(self._accept, sock=listening))

    async def next_call(self) -> EndpointCall:
        """Wait for the next call. Calls of programs that have hung up are skipped."""
        while True:
            call = await self._arrived.get()
            if call.call_id in self._waiting:
                return call

    def answer(self, reply: EndpointReply) -> None:
        """Answer a call. Does nothing if the program has hung up."""
        waiting = self._waiting.get(reply.call_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    async def close(self) -> None:
        """Stop the server and close its connections. May be called repeatedly."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(_CLOSING_SECONDS)
            self._server = None

    def _accept(self) -> asyncio.Protocol:
        if self._server is None or len(self._server.connections) >= MOST_CONNECTIONS:
            return _Refusal()
        return self._server()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/").removeprefix("/v1")
        kind = _DIALECTS.get(path, ChatRequest)
        if path.startswith("/messages") or "anthropic-version" in request.headers:
            kind = MessagesRequest
        try:
            if request.method in ("GET", "HEAD"):
                return self._describe(path, kind)
            if request.method != "POST" or (path not in _DIALECTS and path != _COUNT):
                known = ", ".join(f"/v1{name}" for name in (*_DIALECTS, _COUNT))
                raise Refused(f"{request.method} {request.path} is not served, only POST {known}", status=404)
            body = await self._read_body(request)
            translated = kind(body, f"call-{next(self._ids)}")
            if path == _COUNT and isinstance(translated, MessagesRequest):
                return _json(translated.count_tokens())
            return await self._answer(request, translated, len(await request.read()))
        except Refused as refused:
            return _json(kind.error(refused), refused.status)

    def _describe(self, path: str, kind: type[DialectRequest]) -> web.Response:
        """Return the list of models, or one of them."""
        if path == "":
            return _json({"service": "wander"})
        if path != "/models" and not path.startswith("/models/"):
            raise Refused(f"GET /v1{path} is not served", status=404)
        name = path.removeprefix("/models").strip("/")
        model: dict[str, Any]
        page: dict[str, Any]
        if kind is MessagesRequest:
            model = {"type": "model", "id": name or self.model, "display_name": name or self.model}
            model["created_at"] = "1970-01-01T00:00:00Z"
            page = {"has_more": False, "first_id": self.model, "last_id": self.model}
        else:
            model = {"id": name or self.model, "object": "model", "created": 0, "owned_by": "wander"}
            page = {"object": "list"}
        return _json(model if name else {"data": [model], **page})

    async def _read_body(self, request: web.BaseRequest) -> dict[str, Any]:
        from aiohttp import web

        try:
            async with asyncio.timeout(_BODY_SECONDS):
                text = await request.read()
            return object_of(read_json(text, REQUEST), "body")
        except web.HTTPRequestEntityTooLarge:
            raise Refused(f"the request has over {REQUEST.most_bytes:,} bytes", status=413) from None
        except TimeoutError:
            raise Refused(f"the request did not arrive in {_BODY_SECONDS:.0f} s", status=408) from None
        except RefusedText as error:
            raise Refused(str(error), status=413 if error.too_large else 400) from None

    async def _answer(
        self, request: web.BaseRequest, translated: DialectRequest, size: int
    ) -> web.StreamResponse:
        """Wait for the reply to a call, and send it."""
        if self._open_bytes + size > MOST_OPEN_BYTES:
            raise Refused(f"the open calls have over {MOST_OPEN_BYTES:,} bytes", status=503)
        call_id = translated.call_id
        waiting = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        self._open_bytes += size
        self._arrived.put_nowait(translated.call)
        try:
            if not translated.streams:
                reply = await waiting
                if reply.message is None:
                    raise Refused.by(reply)
                return _json(translated.response(reply))
            await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)
            if waiting.done():
                return _whole_stream(translated, waiting.result())
            return await _stream(request, translated, waiting)
        finally:
            self._open_bytes -= size
            del self._waiting[call_id]


class _Refusal(asyncio.Protocol):
    """Closes a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    from aiohttp import web

    headers = _NO_RETRY if status >= 400 and status != 503 else None
    return web.Response(text=to_json(body), status=status, headers=headers, content_type="application/json")


def _whole_stream(translated: DialectRequest, reply: EndpointReply) -> web.Response:
    """Return a stream whose events are all known."""
    from aiohttp import web

    if reply.message is None:
        raise Refused.by(reply)
    events = (*translated.opening(), *translated.events(reply))
    return web.Response(body=b"".join(event.encode() for event in events), headers=_STREAM)


async def _stream(
    request: web.BaseRequest, translated: DialectRequest, waiting: asyncio.Future[EndpointReply]
) -> web.StreamResponse:
    """Send events while the model works, and then its completion."""
    from aiohttp import web

    response = web.StreamResponse(headers=_STREAM)
    await response.prepare(request)
    await response.write(b"".join(event.encode() for event in translated.opening()))
    while not (await asyncio.wait([waiting], timeout=KEEP_ALIVE_SECONDS))[0]:
        await response.write(translated.keep_alive())
    reply = waiting.result()
    if reply.message is None:
        events = translated.failure(Refused.by(reply))
    else:
        events = list(translated.events(reply))
    await response.write(b"".join(event.encode() for event in events))
    await response.write_eof()
    return response
