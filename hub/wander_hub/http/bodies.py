"""Read request bodies and forms, and reject them as soon as they are too long or too slow.

File parts of a form go to temporary files, which are deleted with the request.
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
"""Limit of all text fields of an upload, which are kept in memory. twine sends the whole README as one
field."""
_MOST_PARTS = 2000
_SLICE = 32 * 1024
"""Number of bytes of a form that are parsed before other requests get a turn."""
_FORM_BYTES, _MOST_FIELDS = 16 * 1024, 50
"""Limits of a form on a page, sent without files."""
_PATIENCE, _SLOWEST = 20.0, 4096
"""Seconds that a body may take, and the number of received bytes that add one more second."""
_MOST = "wander.most_bytes"
"""Key of the request scope that holds the maximum number of body bytes to read."""


def arriving(scope: Scope, receive: Receive) -> Receive:
    """Return a wrapper of `receive` that enforces the time limit of the body.

    The bytes of the body are discarded unless the route reads it with `read_pieces`, which sets its size
    limit.
    """
    seen, waited, over = 0, 0.0, False

    async def receive_some() -> Message:
        nonlocal seen, waited, over
        if over:  # the body is complete; the next message is the disconnect
            return await receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE + seen / _SLOWEST - waited):
                message = await receive()
        except TimeoutError as error:
            detail = f"the body arrived too slowly: {seen:,} bytes so far"
            raise HTTPException(408, detail, {"Connection": "close"}) from error
        waited += time.monotonic() - began
        seen, over = seen + len(message.get("body", b"")), not message.get("more_body", False)
        if message.get("body") and _MOST not in scope:
            return {**message, "body": b""}
        if seen > scope.get(_MOST, 0):
            raise HTTPException(
                413, f"the body is larger than {scope[_MOST]:,} bytes", {"Connection": "close"}
            )
        return message

    return receive_some


def plain_body(description: str | None = None) -> dict[str, Any]:
    """Return the OpenAPI description of a binary body."""
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    described = {"description": description} if description else {}
    return {"requestBody": {"required": True, **described, "content": content}}


async def read_pieces(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives; raise `refusal` at the first byte over the limit.

    Raises a 400 problem if the client disconnected, which only the access log will show.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise refusal
    request.scope[_MOST], seen = max_bytes + _IN_MEMORY, 0  # larger, so that the check below fails first
    try:
        async for piece in request.stream():
            seen += len(piece)
            if seen > max_bytes:
                raise refusal
            yield piece
    except ClientDisconnect as error:
        raise HubProblem(
            400, "body_broken_off", "the connection closed before the body was complete"
        ) from error


async def read_body(request: Request, max_bytes: int, refusal: HubProblem) -> bytes:
    """Return the whole body; raise `refusal` if it is too long."""
    content = bytearray()
    async for piece in read_pieces(request, max_bytes, refusal):
        content += piece
    return bytes(content)


@asynccontextmanager
async def open_body(request: Request, max_bytes: int, refusal: HubProblem) -> AsyncIterator[BinaryIO]:
    """Provide the body as a temporary file; raise `refusal` if it is too long."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        async for piece in read_pieces(request, max_bytes, refusal):
            if file.tell() + len(piece) > _IN_MEMORY:
                await run_in_threadpool(file.write, piece)
            else:
                file.write(piece)
        file.seek(0)
        yield cast(BinaryIO, file)


async def form_fields(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form from one of the hub's pages."""
    refusal = HubProblem(413, "too_large", f"the form has more than {_FORM_BYTES:,} bytes")
    body = await read_body(request, _FORM_BYTES, refusal)
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise HubProblem(422, "invalid_request", f"the form has more than {_MOST_FIELDS} fields") from error
    return {name: [value.replace("\0", "") for value in values] for name, values in fields.items()}


def form_body(properties: dict[str, Any], required: str) -> dict[str, Any]:
    """Return the OpenAPI description of a form."""
    schema = {"type": "object", "required": [required], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


@asynccontextmanager
async def multipart_form(request: Request, *, max_bytes: int, max_files: int) -> AsyncIterator[FormData]:
    """Provide the parsed form. Raises a 413 problem over the limit, and 415 or 400 if the body is not a
    form."""
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
    """Yield smaller slices and let other requests run in between, because parsing can take a microsecond per
    byte."""
    async for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            yield piece[start : start + _SLICE]
            await asyncio.sleep(0)


class _Parser(MultiPartParser):
    """A parser that limits the total text of all fields instead of each field."""

    _text_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Count and process a piece of a part."""
        if self._current_part.file is None:
            self._text_bytes += end - start
            if self._text_bytes > _FIELD_BYTES:
                raise MultiPartException(f"its text is longer than {_FIELD_BYTES:,} bytes")
        super().on_part_data(data, start, end)


def too_large(max_bytes: int) -> HubProblem:
    """Return the problem of a body that is larger than the limit."""
    limit = f"{max_bytes / (1024 * 1024):,.0f} MiB"
    return HubProblem(413, "too_large", f"the upload is larger than this hub's limit of {limit}")
