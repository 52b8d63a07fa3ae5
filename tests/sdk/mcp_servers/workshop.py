"""An MCP server with a counter, over stdio (`workshop.py stdio`) or streamable HTTP (`workshop.py http`).

Over HTTP the port is free and printed on the first line of standard output.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("workshop", log_level="CRITICAL")
counts: dict[str, int] = {}


def session_of(ctx: Context) -> str:
    """Over HTTP every session has its own id; over stdio the process is the session."""
    headers = ctx.headers or {}
    return headers.get("mcp-session-id", "stdio")


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def count(ctx: Context) -> str:
    """Count the calls of this session."""
    key = session_of(ctx)
    counts[key] = counts.get(key, 0) + 1
    return str(counts[key])


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


@server.tool()
def point(x: float) -> dict[str, float]:
    """Return a structured value."""
    return {"x": x}


@server.tool()
def picture() -> Image:
    """Return an image."""
    return Image(data=b"\x89PNG", format="png")


@server.tool(name="odd.name")
def odd() -> str:
    """A name that endpoints refuse."""
    return "odd"


@server.tool()
async def slow() -> str:
    """Take very long."""
    await asyncio.sleep(600)
    return "done"


@server.tool()
def die() -> str:
    """End the server's process."""
    os._exit(3)


async def serve_http() -> None:
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # who reads the port may connect at once, before the server below takes it up
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app()
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1:] == ["stdio"]:
        server.run("stdio")
    else:
        anyio.run(serve_http)
