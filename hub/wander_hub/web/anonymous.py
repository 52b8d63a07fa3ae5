"""Caches pages for readers who are not signed in, before routing.

Such a page depends on its address, the request's `Accept` and `Accept-Encoding`, the release of the hub and
the content of the database. The database counts its changes (`ContentRevision`), so the entity tag is known
before anything else is read: a browser that holds the page gets a 304, and a page that was drawn since the
last change is sent again unchanged. The tag also holds a span of time, since some changes, such as downloads,
are not counted. Only responses with the `SHARED` cache header are kept. `Visit.page` makes them.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from functools import cache
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import wander_hub
from wander_hub.http.middleware import REQUEST_ID_HEADER, name_request
from wander_hub.http.responses import SHARED, VARY, etag_matches
from wander_hub.index.anonymous import AnonymousReader

SPAN_SECONDS = 300
"""How long a page may miss a change that is not counted."""
_MOST_BYTES, _LARGEST = 32 * 2**20, 2**20
"""Bytes of all pages that are kept, and of the largest one."""
_CREDENTIALS = (b"authorization", b"cookie")
_LONGEST_HEADER, _LONGEST_ADDRESS = 300, 1000


class AnonymousPages:
    """ASGI middleware around the application's routes, with a cache in the memory of one process."""

    def __init__(self, app: ASGIApp, reader: AnonymousReader, settings: str) -> None:
        self._app, self._reader = app, reader
        self._release = hashlib.sha256(f"{_program()} {settings}".encode()).hexdigest()
        self._kept = OrderedDict[str, tuple[str, list[tuple[bytes, bytes]], bytes]]()
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the cached page, or have the page drawn and cache it."""
        address = _address_of(scope)
        revision = await self._reader.revision() if address is not None else None
        if address is None or revision is None:
            await self._app(scope, receive, send)
            return
        span = int(time.time() // SPAN_SECONDS)
        tag = hashlib.sha256(f"{self._release} {revision} {span} {address}".encode()).hexdigest()[:32]
        held = Headers(scope=scope).get("if-none-match")
        if etag_matches(held, f'"{tag}"'):
            headers = [(b"etag", f'W/"{tag}"'.encode()), *_SHARED]
            await _send(scope, send, 304, headers, b"")
            return
        kept = self._kept.get(address)
        if kept is not None and kept[0] == tag:
            self._kept.move_to_end(address)
            await _send(scope, send, 200, kept[1], kept[2])
            return
        await self._app(scope, receive, self._keeping(address, tag, send))

    def _keeping(self, address: str, tag: str, send: Send) -> Send:
        """Return a `send` that adds the entity tag to a page, and caches a page whose body is one message."""
        started: Message | None = None

        async def send_and_keep(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                if not _is_kept(message):
                    await send(message)
                    return
                headers = MutableHeaders(scope=message)
                headers["ETag"] = f'W/"{tag}"'
                started = message
            elif started is not None and not message.get("more_body"):
                body = message.get("body", b"")
                names = [(name, value) for name, value in started["headers"] if name != _REQUEST_ID]
                self._keep(address, (tag, names, body))
            await send(message)
            if message["type"] == "http.response.body":
                started = None

        return send_and_keep

    def _keep(self, address: str, page: tuple[str, list[tuple[bytes, bytes]], bytes]) -> None:
        if len(page[2]) > _LARGEST:
            return
        before = self._kept.pop(address, None)
        self._bytes += len(page[2]) - (len(before[2]) if before is not None else 0)
        self._kept[address] = page
        while self._bytes > _MOST_BYTES:
            _, (_, _, body) = self._kept.popitem(last=False)
            self._bytes -= len(body)


_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()
_SHARED = [(b"cache-control", SHARED.encode()), (b"vary", VARY.encode())]


def _address_of(scope: Scope) -> str | None:
    """Return the cache key of a page, or None if the request is not for a page that is cached."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    parts = [scope.get("scheme", ""), scope["path"], scope["query_string"].decode("latin-1")]
    for name, value in scope["headers"]:
        if name in _CREDENTIALS:
            return None
        if name in (b"host", b"accept", b"accept-encoding"):
            if len(value) > _LONGEST_HEADER:
                return None
            parts.append(f"{name.decode()} {value.decode('latin-1')}")
    address = "\n".join(parts)
    return address if len(address) <= _LONGEST_ADDRESS else None


def _is_kept(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("cache-control") == SHARED and "set-cookie" not in headers


async def _send(
    scope: Scope, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    request_id = name_request(Headers(scope=scope).get(REQUEST_ID_HEADER))
    named = [*headers, (_REQUEST_ID, request_id.encode())]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})


@cache
def _program() -> str:
    """Return a digest of the hub's code, templates and styles, since other releases draw other pages."""
    digest = hashlib.sha256()
    for path in sorted(Path(wander_hub.__file__).parent.rglob("*")):
        if path.is_file() and path.suffix in (".py", ".html", ".css", ".js", ".xml"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
