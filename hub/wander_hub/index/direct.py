"""The short way for what anybody may read: index pages, metadata and files, ahead of all routing.

It answers only the plain case: GET or HEAD without a token, without a query, a name in its normal spelling,
something that is there and open to all. Everything else, errors included, goes on to the routes, which say
the same things the long way; a test holds the two against each other.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from starlette.types import Scope, Send

from wander_hub.http_answers import holds, send_object, sent_by_another, wanted_range
from wander_hub.index.anonymous import AnonymousReader, Place, PublicFile
from wander_hub.index.caching import PAGE_HEADERS, file_caching
from wander_hub.index.negotiation import PLAIN_HTML, encoding_for, negotiated
from wander_hub.middleware import BROWSER_HEADERS, REQUEST_ID_HEADER, fresh_id, usable_id
from wander_hub.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.storage import Storage

_PROJECT = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_PAGE = re.compile(rf"(?:/([a-z0-9-]{{1,39}}))?/simple/({_PROJECT})/")
_FILE = re.compile(rf"(?:/([a-z0-9-]{{1,39}}))?/files/({_PROJECT})/([A-Za-z0-9._+!-]+?)(\.metadata)?")
_LONGEST_PATH = 600
_ASKED = frozenset({b"accept", b"accept-encoding", b"if-none-match", b"range", b"if-range", b"x-request-id"})
_CREDENTIALS = frozenset({b"authorization", b"cookie"})
"""Who says who they are is answered by the routes."""

Asked: TypeAlias = dict[bytes, str]
"""The headers of a request that matter here."""
Headers: TypeAlias = list[tuple[bytes, bytes]]


def _encoded(headers: dict[str, str]) -> Headers:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


_PAGE_HEADERS = _encoded({**BROWSER_HEADERS, **PAGE_HEADERS})
_FILE_HEADERS = _encoded(BROWSER_HEADERS)
_BYTES = (b"content-type", b"application/octet-stream")
_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()


class DirectIndex:
    """Answers what it can at once; the application asks it first."""

    def __init__(self, reader: AnonymousReader, storage: Storage, settings: Settings) -> None:
        self._reader = reader
        self._storage = storage
        self._settings = settings

    async def answered(self, scope: Scope, send: Send) -> bool:
        """Answer, or leave the request untouched and return False."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or scope["query_string"]:
            return False
        path = scope["path"]
        if len(path) > _LONGEST_PATH or scope.get("root_path"):
            return False
        if found := _PAGE.fullmatch(path):
            asked = _asked(scope)
            return asked is not None and await self._page(scope, send, Place(*found.groups()), asked)
        if found := _FILE.fullmatch(path):
            asked = _asked(scope)
            owner, project, filename, metadata = found.groups()
            place = Place(owner, project)
            return asked is not None and await self._file(scope, send, place, filename, metadata, asked)
        return False

    async def _page(self, scope: Scope, send: Send, place: Place, asked: Asked) -> bool:
        media_type = negotiated(asked.get(b"accept"))
        if media_type is None:
            return False
        encoding = encoding_for(asked.get(b"accept-encoding"))
        held = asked.get(b"if-none-match")
        if held is not None:
            etag = await self._reader.page_etag(place, media_type, encoding)
            if etag is not None and holds(held, f'"{etag}"'):
                await _send(scope, send, 304, [*_PAGE_HEADERS, *_own(asked, etag)])
                return True
        page = await self._reader.page(place, media_type, encoding)
        if page is None:
            return False
        content_type = f"{media_type}; charset=utf-8" if media_type == PLAIN_HTML else media_type
        headers = [*_PAGE_HEADERS, *_own(asked, page.etag), (b"content-type", content_type.encode())]
        if page.encoded and encoding:
            headers.append((b"content-encoding", encoding.encode()))
        await _send(scope, send, 200, headers, page.body)
        return True

    async def _file(
        self, scope: Scope, send: Send, place: Place, filename: str, metadata: str | None, asked: Asked
    ) -> bool:
        file = await self._reader.file(place, filename)
        if file is None or (metadata and file.core_metadata is None):
            return False
        etag = str(file.core_metadata_sha256) if metadata else file.sha256
        headers = [*_FILE_HEADERS, *_own(asked, etag)]
        headers.append((b"cache-control", file_caching(place.owner, place.project).encode()))
        if not metadata:
            headers.append((b"accept-ranges", b"bytes"))
        if holds(asked.get(b"if-none-match"), f'"{etag}"'):
            await _send(scope, send, 304, headers)
        elif metadata and file.core_metadata is not None:
            await _send(scope, send, 200, [*headers, _BYTES], file.core_metadata.encode())
        else:
            return await self._object(scope, send, file, [*headers, _BYTES], asked)
        return True

    async def _object(
        self, scope: Scope, send: Send, file: PublicFile, headers: Headers, asked: Asked
    ) -> bool:
        method, sha256 = scope["method"], file.sha256
        if self._storage.local_path(sha256) is None:
            return False  # an object store may have to be asked for an address first
        if (elsewhere := sent_by_another(self._settings, self._storage, sha256, method)) is not None:
            status, name, value = elsewhere
            headers.append((name.lower().encode(), value.encode()))
            await _send(scope, send, status, headers)
            return True
        part = None
        if method == "GET" and b"range" in asked:
            try:
                part = wanted_range(asked[b"range"], asked.get(b"if-range"), f'"{sha256}"', file.size)
            except HubProblem:
                return False
        start, end = part or (0, file.size)
        headers.append((b"content-length", str(end - start).encode()))
        if part is not None:
            headers.append((b"content-range", f"bytes {start}-{end - 1}/{file.size}".encode()))
        head = {"type": "http.response.start", "status": 206 if part else 200, "headers": headers}
        try:
            await send_object(send, head, self._storage, sha256, start, end if method == "GET" else start)
        except FileNotFoundError:
            return False  # the routes say and log it
        return True


def _asked(scope: Scope) -> Asked | None:
    """Return the headers that matter; None for a caller who sends credentials."""
    found: Asked = {}
    for name, value in scope["headers"]:
        if name in _ASKED:
            text = value.decode("latin-1")
            found[name] = f"{found[name]}, {text}" if name in found else text
        elif name in _CREDENTIALS:
            return None
    return found


def _own(asked: Asked, etag: str) -> Headers:
    """Return the headers that differ from one answer to the next."""
    request_id = usable_id(asked.get(b"x-request-id")) or fresh_id()
    return [(b"etag", f'"{etag}"'.encode()), (_REQUEST_ID, request_id.encode())]


async def _send(scope: Scope, send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    if status != 304:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
