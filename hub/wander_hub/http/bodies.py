"""Reads bodies and forms of requests that may be long, and refuses them as soon as they are too long or slow.

File parts of a form go to temporary files on disk, which vanish with the request.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qs

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from wander_hub.http.problems import HubProblem

_IN_MEMORY = 4 * 1024 * 1024
_FIELD_BYTES = 4 * 1024 * 1024
"""Limit of the text fields of an upload together: twine sends the whole README as one. They are in memory."""
_MOST_PARTS = 2000
_SLICE = 32 * 1024
"""Bytes of a form that are parsed before other requests get a turn."""
_FORM_BYTES, _MOST_FIELDS = 16 * 1024, 50
"""Limits of a form on a page, which has no files."""
_PATIENCE, _SLOWEST = 20.0, 4096
"""Seconds that a body may keep the hub waiting, and the bytes that buy it one more."""
_MOST = "wander.most_bytes"
"""The key of a request that holds how many bytes of its body are read."""


def arriving(scope: Scope, receive: Receive) -> Receive:
    """Return what receives a request whose body has to arrive in time.

    The bytes of the body are dropped unless the route reads it by `read_pieces`, which sets their limit.
    """
    seen, waited, over = 0, 0.0, False

    async def receive_some() -> Message:
        nonlocal seen, waited, over
        if over:  # only the end of the connection is waited for
            return await receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE + seen / _SLOWEST - waited):
                message = await receive()
        except TimeoutError as error:
            detail = f"the body kept the hub waiting: {seen:,} bytes of it arrived"
            raise HTTPException(408, detail, {"Connection": "close"}) from error
        waited += time.monotonic() - began
        seen, over = seen + len(message.get("body", b"")), not message.get("more_body", False)
        if message.get("body") and _MOST not in scope:
            return {**message, "body": b""}
        if seen > scope.get(_MOST, 0):
            raise HTTPException(413, f"the body is over {scope[_MOST]:,} bytes", {"Connection": "close"})
        return message

    return receive_some


def plain_body(description: str | None = None) -> dict[str, Any]:
    """Return how OpenAPI tells of a body of plain bytes."""
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    told = {"description": description} if description else {}
    return {"requestBody": {"required": True, **told, "content": content}}


async def read_pieces(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives; raise the refusal with the first byte that is too many.

    Raises a 400 where the client broke off, which nobody reads and the access log shows.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise refusal
    request.scope[_MOST], seen = max_bytes + _IN_MEMORY, 0  # the refusal below comes first
    try:
        async for piece in request.stream():
            seen += len(piece)
            if seen > max_bytes:
                raise refusal
            yield piece
    except ClientDisconnect as error:
        raise HubProblem(400, "body_broken_off", "the connection ended within the body") from error


async def read_body(request: Request, max_bytes: int, refusal: HubProblem) -> bytes:
    """Return the body, or raise the refusal when it is too long."""
    content = bytearray()
    async for piece in read_pieces(request, max_bytes, refusal):
        content += piece
    return bytes(content)


@asynccontextmanager
async def open_body(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncIterator[BinaryIO]:
    """Give the body as a file that vanishes with the request, or raise the refusal when it is too long."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        async for piece in read_pieces(request, max_bytes, refusal):
            if file.tell() + len(piece) > _IN_MEMORY:
                await run_in_threadpool(file.write, piece)
            else:
                file.write(piece)
        file.seek(0)
        yield cast(BinaryIO, file)


async def form_fields(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form that a page of the hub sends."""
    refusal = HubProblem(413, "too_large", f"the form has more than {_FORM_BYTES:,} bytes")
    body = await read_body(request, _FORM_BYTES, refusal)
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise HubProblem(422, "invalid_request", f"the form has more than {_MOST_FIELDS} fields") from error
    return {name: [one.replace("\0", "") for one in values] for name, values in fields.items()}


def form_body(properties: dict[str, Any], required: str) -> dict[str, Any]:
    """Return how OpenAPI tells of a form."""
    schema = {"type": "object", "required": [required], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


@asynccontextmanager
async def multipart_form(request: Request, *, max_bytes: int, max_files: int) -> AsyncIterator[FormData]:
    """Give the parsed form; raise 413 past the limit, 415 or 400 for what is no form."""
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        raise HubProblem(415, "not_a_form", "the body must be multipart/form-data")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes + _FIELD_BYTES:
        raise too_large(max_bytes)
    parser = _Parser(
        request.headers,
        _slices(read_pieces(request, max_bytes + _FIELD_BYTES, too_large(max_bytes))),
        max_files=max_files,
        max_fields=_MOST_PARTS,
        max_part_size=_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError) as error:
        raise HubProblem(400, "bad_form", f"the form cannot be read: {error}") from error
    try:
        yield form
    finally:
        await form.close()


async def _slices(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield pieces in slices, with other requests in between: some bytes take a microsecond to parse."""
    async for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            yield piece[start : start + _SLICE]
            await asyncio.sleep(0)


class _Parser(MultiPartParser):
    """Bounds the text of all fields together, and not of each alone."""

    _text_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Take in a piece of a part."""
        if self._current_part.file is None:
            self._text_bytes += end - start
            if self._text_bytes > _FIELD_BYTES:
                raise MultiPartException(f"its text is over {_FIELD_BYTES:,} bytes")
        super().on_part_data(data, start, end)


def too_large(max_bytes: int) -> HubProblem:
    """Return the refusal of a body over the limit."""
    limit = f"{max_bytes / (1024 * 1024):,.0f} MiB"
    return HubProblem(413, "too_large", f"the upload is over this hub's limit of {limit}")
