"""Reads bodies of requests that may be long, and refuses them as soon as they are too long."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import Request

from wander_hub.http.problems import HubProblem


async def pieces(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives; raise the refusal with the first byte that is too many."""
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
