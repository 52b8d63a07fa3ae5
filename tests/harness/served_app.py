"""Serves an application of this process over HTTP, on loopback; a test may replace its answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

Answer = tuple[int, dict[str, str], bytes]


class Door:
    """The served application; `on_request` may answer instead of it."""

    def __init__(self, app: Any) -> None:
        self.app, self.url = app, ""
        self.asked: list[str] = []
        self.on_request: Callable[[str], Answer | None] = lambda _path: None

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        path = scope["path"]
        self.asked.append(path)
        instead = self.on_request(path)
        if instead is None:
            await self.app(scope, receive, send)
            return
        status, headers, body = instead
        told = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Door]:
    """Serve an application that is already started until the block ends."""
    door = Door(app)
    listener = socket.create_server(("127.0.0.1", 0))
    door.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(door, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield door
    finally:
        server.should_exit = True
        await task
        listener.close()
