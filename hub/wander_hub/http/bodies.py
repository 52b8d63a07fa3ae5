"""Reads bodies of requests that may be long, and refuses them as soon as they are too long."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, cast

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from wander_hub.http.problems import HubProblem

_IN_MEMORY = 4 * 1024 * 1024


def plain_body(description: str | None = None) -> dict[str, Any]:
    """Return how OpenAPI tells of a body of plain bytes."""
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    told = {"description": description} if description else {}
    return {"requestBody": {"required": True, **told, "content": content}}


async def pieces(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives; raise the refusal with the first byte that is too many."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise refusal
    seen = 0
    async for piece in request.stream():
        seen += len(piece)
        if seen > max_bytes:
            raise refusal
        yield piece


async def whole(request: Request, max_bytes: int, refusal: HubProblem) -> bytes:
    """Return the body, or raise the refusal when it is too long."""
    content = bytearray()
    async for piece in pieces(request, max_bytes, refusal):
        content += piece
    return bytes(content)


@asynccontextmanager
async def open_body(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncIterator[BinaryIO]:
    """Give the body as a file that vanishes with the request, or raise the refusal when it is too long."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        async for piece in pieces(request, max_bytes, refusal):
            if file.tell() + len(piece) > _IN_MEMORY:
                await run_in_threadpool(file.write, piece)
            else:
                file.write(piece)
        file.seek(0)
        yield cast(BinaryIO, file)
