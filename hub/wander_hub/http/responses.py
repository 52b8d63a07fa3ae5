"""Responses with entity tags and byte ranges, shared by the index, distribution files and artifacts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.storage import CHUNK, Storage, object_key

IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
SHARED = "public, no-transform, max-age=0, s-maxage=5"
"""Caching of a public page: browsers revalidate it on every request, proxies after five seconds."""
VARY = "Accept, Accept-Encoding, Cookie, Authorization"
"""Request headers that a page depends on."""

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_PRIVATE_SECONDS = 60
"""Lifetime of a presigned address of a private object, because anyone who learns the address can use it."""
_AT_ONCE = 256 * 1024
"""Largest file that is read with a single switch to a thread."""


def etag_matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` matches this entity tag."""
    if if_none_match is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in tags or "*" in tags


def not_modified(request: Request, etag: str, headers: Mapping[str, str]) -> Response | None:
    """Return a 304 response if the client has this entity, otherwise None."""
    if not etag_matches(request.headers.get("if-none-match"), etag):
        return None
    return Response(status_code=304, headers=headers)


def parse_range(
    range_header: str | None, if_range: str | None, etag: str, size: int
) -> tuple[int, int] | None:
    """Return start and end of a requested range, or None for the whole file.

    Several ranges, another unit, a malformed range and a changed entity all get the whole file (RFC 9110,
    14.2). Raises a 416 problem if the range is outside of the file.
    """
    match = _RANGE.fullmatch((range_header or "").strip())
    if match is None or not any(match.groups()) or (if_range is not None and if_range != etag):
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise HubProblem(416, "range_not_satisfiable", "the range is outside of the file", headers=headers)
    return start, end


def from_beginning(range_header: str | None) -> bool:
    """Return whether a request for a file that another program sends includes the file's first byte."""
    match = _RANGE.fullmatch((range_header or "").strip())
    if match is None or not any(match.groups()):
        return True
    first = match.group(1)
    return bool(first) and not first.strip("0")


def stored_object(
    request: Request,
    storage: Storage,
    sha256: str,
    size: int,
    media_type: str,
    headers: Mapping[str, str],
    *,
    private: bool = False,
) -> Response:
    """Return the response for an object: 304, the whole object, a range, or a reference to nginx or the
    object store."""
    settings: Settings = request.app.state.settings
    etag = f'"{sha256}"'
    headers = {**headers, "ETag": etag, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    if (same := not_modified(request, etag, headers)) is not None:
        return same
    elsewhere = redirect_object(settings, storage, sha256, request.method, private=private)
    if elsewhere is not None:
        status, name, value = elsewhere
        if status == 302:
            headers = {"Cache-Control": "no-store"}
        return Response(status_code=status, headers={**headers, name: value}, media_type=media_type)
    asked = None
    if request.method == "GET":
        asked = parse_range(request.headers.get("range"), request.headers.get("if-range"), etag, size)
    return ObjectResponse(storage, sha256, size, asked, media_type, headers)


def redirect_object(
    settings: Settings, storage: Storage, sha256: str, method: str, *, private: bool = False
) -> tuple[int, str, str] | None:
    """Return status, header name and value of a response that lets nginx or the object store send the object.

    Returns None if the hub sends the object itself. A presigned address only works for GET, so the hub always
    answers HEAD.
    """
    if settings.accel_prefix and storage.local_path(sha256) is not None:
        return 200, "X-Accel-Redirect", f"{settings.accel_prefix.rstrip('/')}/{object_key(sha256)}"
    if settings.presigned_seconds and method == "GET":
        longest = _PRIVATE_SECONDS if private else settings.presigned_seconds
        address = storage.presign(sha256, min(settings.presigned_seconds, longest))
        return (302, "Location", address) if address else None
    return None


class ObjectResponse(Response):
    """Streams an object or a range of it, with only one chunk in memory at a time."""

    def __init__(
        self,
        storage: Storage,
        sha256: str,
        size: int,
        asked: tuple[int, int] | None,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        start, end = asked or (0, size)
        lengths = {"Content-Length": str(end - start)}
        if asked:
            lengths["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        super().__init__(
            status_code=206 if asked else 200, headers={**headers, **lengths}, media_type=media_type
        )
        self._storage, self._sha256, self._range = storage, sha256, (start, end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the headers and the body."""
        head: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        start, end = self._range if scope["method"] != "HEAD" else (0, 0)
        await send_object(send, head, self._storage, self._sha256, start, end)


async def send_object(send: Send, head: Message, storage: Storage, sha256: str, start: int, end: int) -> None:
    """Send the response head and the bytes of an object from `start` up to but not including `end`.

    The head is sent after the first bytes are read, so that a missing object can still become an error
    response.
    """
    path = storage.local_path(sha256)
    if start >= end:
        await send(head)
        await send({"type": "http.response.body", "body": b""})
    elif path is None:
        started = False
        async for piece in storage.stream(sha256, start, end):
            if not started:
                await send(head)
                started = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    elif end - start <= _AT_ONCE:
        body = await run_in_threadpool(_read, path, start, end - start)
        await send(head)
        await send({"type": "http.response.body", "body": body})
    else:
        await _send_large(send, head, path, start, end)


async def _send_large(send: Send, head: Message, path: Path, start: int, end: int) -> None:
    file = await run_in_threadpool(_open, path, start)
    try:
        await send(head)
        while start < end:
            piece = await run_in_threadpool(file.read, min(CHUNK, end - start))
            if not piece:
                raise OSError(f"`{path}` is shorter than when it was stored")
            start += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": start < end})
    finally:
        file.close()


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        body = file.read(length)
    if len(body) != length:
        raise OSError(f"`{path}` is shorter than when it was stored")
    return body


def _open(path: Path, start: int) -> BinaryIO:
    file = path.open("rb")
    file.seek(start)
    return file
