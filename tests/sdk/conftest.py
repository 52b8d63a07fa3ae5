"""A real HTTP server on loopback that speaks the chat-completions protocol, with every fault a test wants."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
Reply = str | dict[str, Any] | web.Response | Fault


class ChatServer:
    """Answers with `script(body, number of the request)`: text, a message, a response, or a fault."""

    def __init__(self) -> None:
        self.script: Callable[[dict[str, Any], int], Reply] = lambda body, number: "ok"
        self.models: Reply = web.json_response({"object": "list", "data": [{"id": "m"}]})
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.delay = 0.0
        self.asked = asyncio.Event()
        """Set by the first request."""
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list_models)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.asked.set()
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            reply = self.script(body, len(self.requests))
            if self.delay:
                await asyncio.sleep(self.delay)
            return await answered(request, reply)
        finally:
            self.in_flight -= 1

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        return await answered(request, self.models)


async def answered(request: web.Request, reply: Reply) -> web.StreamResponse:
    if isinstance(reply, web.Response):
        # A response object can be sent once only.
        return web.Response(body=reply.body, status=reply.status, headers=reply.headers)
    if not isinstance(reply, str | dict):
        return await reply(request)
    message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return web.json_response(
        {
            "id": "c",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    )


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def cut_off(request: web.Request) -> web.StreamResponse:
    """Promise 1,000 bytes, send a few, and close the connection."""
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


def status(code: int, text: str = "", **headers: str) -> web.Response:
    body = json.dumps({"error": {"message": text or f"status {code}", "code": None}})
    return web.Response(
        status=code, text=body, headers={"Content-Type": "application/json"} | _dashed(headers)
    )


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


HTML = web.Response(text="<!DOCTYPE html><html><body>Welcome</body></html>", content_type="text/html")
FAULTS: dict[str, Reply] = {
    "401": status(401, "bad key"),
    "403": status(403, "no access"),
    "404": status(404, "The model `m` does not exist."),
    "429": status(429, "slow down", Retry_After="0"),
    "quota": status(429, "You exceeded your current quota (insufficient_quota).", Retry_After="1"),
    "tomorrow": status(429, "come again tomorrow", Retry_After="86400"),
    "500": status(500, "kaboom"),
    "503": status(503, "overloaded"),
    "html": HTML,
    "truncated": web.Response(body=b'{"choices": [{"mess', content_type="application/json"),
    "empty": web.Response(body=b"", content_type="application/json"),
    "no_choices": web.json_response({"choices": []}),
    "error_in_200": web.json_response({"error": {"message": "upstream is busy", "code": 502}}),
    "list": web.json_response([1, 2]),
    "number_content": web.json_response({"choices": [{"message": {"content": 5}}]}),
    "context": status(400, "This model's maximum context length is 4096 tokens."),
    "cut_off": cut_off,
    "hang": hang,
}


@pytest.fixture
async def chat_server() -> AsyncIterator[ChatServer]:
    server = ChatServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
def faults() -> dict[str, Reply]:
    return FAULTS


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Open more files than `select` can watch, so that new descriptors have higher numbers."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * 1024), most))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
