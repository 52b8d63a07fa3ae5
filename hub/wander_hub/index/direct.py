"""A shortcut for public index pages, metadata and files that bypasses all routing.

It handles only the plain case: GET or HEAD without a token and without a query string, for a public page or
file under the normalized name. Everything else, errors included, is left to the routes, which give the same
responds more slowly; a test compares the two.

Small responses, files included, are cached until anything in the database changes.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Scope, Send

from wander_hub.environments.models import File
from wander_hub.http.middleware import BROWSER_HEADERS, PRIVATE, REQUEST_ID_HEADER, name_request
from wander_hub.http.problems import HubProblem
from wander_hub.http.responses import (
    IMMUTABLE,
    REVALIDATE,
    etag_matches,
    from_beginning,
    parse_range,
    redirect_object,
    send_object,
)
from wander_hub.index.anonymous import AnonymousReader, PublicFile
from wander_hub.index.downloads import DownloadCounter
from wander_hub.index.namespaces import covers
from wander_hub.index.negotiation import PLAIN_HTML, choose_encoding, negotiate
from wander_hub.index.schemas import IndexedProject, RenderedPage
from wander_hub.names import BUNDLED_OWNER
from wander_hub.settings import Settings
from wander_hub.storage import Storage

_PROJECT = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_PAGE = re.compile(rf"(?:/([a-z0-9-]{{1,39}}))?/simple/({_PROJECT})/|/([a-z0-9-]{{1,39}})/simple/")
_SOLE = re.compile(rf"/([a-z0-9-]{{1,39}})/index/({_PROJECT})/")
"""An owner's only index has the same pages as its own index, at addresses of the same depth."""
_FILE = re.compile(rf"(?:/([a-z0-9-]{{1,39}}))?/files/({_PROJECT})/([A-Za-z0-9._+!-]+?)(\.metadata)?")
_LONGEST_PATH = 600
_SAFE = frozenset({"GET", "HEAD"})
_SMALL = 64 * 1024
_KEPT_BYTES, _KEPT_OVERHEAD = 32 * 1024 * 1024, 2048
"""Memory that cached responses may take, and the overhead of each response in addition to its body."""
_ASKED = frozenset({b"accept", b"accept-encoding", b"if-none-match", b"range", b"if-range", b"x-request-id"})
_CREDENTIALS = frozenset({b"authorization", b"cookie"})
"""Requests with credentials are left to the routes."""

Asked: TypeAlias = dict[bytes, str]
"""The request headers that affect the response."""
Headers: TypeAlias = list[tuple[bytes, bytes]]


def _encode(headers: dict[str, str]) -> Headers:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


_PAGE_HEADERS = _encode(
    {
        **BROWSER_HEADERS,
        "Cache-Control": REVALIDATE,
        "Vary": "Accept, Accept-Encoding",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
)
"""pip and uv obey `Cache-Control` on pages: any max-age would hide a version that was just published."""
_FILE_HEADERS = _encode(BROWSER_HEADERS)
_BYTES = (b"content-type", b"application/octet-stream")
_NOTHING: Message = {"type": "http.response.body", "body": b""}
_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()


class CachedResponse(NamedTuple):
    """A response that is the same for everyone who requests it in the same format and encoding."""

    etag: str
    """Entity tag, with quotes."""
    unchanged: Headers
    """Headers of a 304."""
    headers: Headers
    """Headers of a 200, without the content length if a file is sent."""
    body: bytes
    version_id: int | None = None
    """Version whose file this is, for counting downloads; None if the response is not a file."""
    file: PublicFile | None = None
    """The file, if the hub itself sends it, whole or in part; a small file is also in `body`."""


class DirectIndex:
    """Handles the requests that need no routing; the application tries it first."""

    def __init__(
        self, reader: AnonymousReader, storage: Storage, settings: Settings, downloads: DownloadCounter
    ) -> None:
        self._reader = reader
        self._downloads = downloads
        self._storage = storage
        self._settings = settings
        self._kept: dict[tuple[str, ...], CachedResponse] = {}
        self._kept_bytes, self._kept_at = 0, -1

    async def answer(self, scope: Scope, send: Send) -> bool:
        """Send the response, or leave the request untouched and return False."""
        if scope["type"] != "http" or scope["method"] not in _SAFE or scope["query_string"]:
            return False
        path = scope["path"]
        asked = _read_headers(scope)
        if asked is None or len(path) > _LONGEST_PATH or scope.get("root_path"):
            return False
        media_type = negotiate(asked.get(b"accept"))
        encoding = choose_encoding(asked.get(b"accept-encoding"))
        key = (path, media_type or "", encoding or "")
        change = self._reader.last_change()
        if change != self._kept_at:
            self._forget(change)
        answer = self._kept.get(key)
        if answer is None:
            answer = await self._find(path, media_type, encoding)
            if answer is None:
                return False
            self._keep(key, answer, change)
        return await self._send(scope, send, answer, asked)

    def _keep(self, key: tuple[str, ...], answer: CachedResponse, change: int | None) -> None:
        # The number of the last change was read before the response, so the response includes that change.
        if change is None or change != self._kept_at:
            return
        size = len(answer.body) + _KEPT_OVERHEAD
        if self._kept_bytes + size > _KEPT_BYTES:
            self._forget(change)
        self._kept[key] = answer
        self._kept_bytes += size

    def _forget(self, change: int | None) -> None:
        self._kept.clear()
        self._kept_bytes, self._kept_at = 0, -1 if change is None else change

    async def _find(self, path: str, media_type: str | None, encoding: str | None) -> CachedResponse | None:
        if path == "/simple/" and media_type:
            return page_response(await self._reader.combined_root(media_type))
        if match := _PAGE.fullmatch(path):
            owner, project, listed = match.groups()
            if media_type is None:
                return None
            page = await self._reader.page(
                IndexedProject(listed or owner, project or ""), media_type, encoding
            )
            return page_response(page) if page is not None else None
        if (match := _SOLE.fullmatch(path)) and media_type:
            page = await self._reader.page(IndexedProject(*match.groups()), media_type, encoding)
            return page_response(page) if page is not None else None
        if match := _FILE.fullmatch(path):
            owner, project, filename, metadata = match.groups()
            return await self._file(IndexedProject(owner, project), filename, metadata)
        return None

    async def _file(
        self, place: IndexedProject, filename: str, metadata: str | None
    ) -> CachedResponse | None:
        file = await self._reader.file(place, filename)
        if file is None or (metadata and file.core_metadata is None):
            return None
        caching = file_caching(place.owner, place.project)
        if metadata:
            return metadata_response(file, caching)
        if self._storage.local_path(file.sha256) is None:
            return None  # an object store may have to supply an address first
        etag, unchanged = _unchanged(file.sha256, caching)
        unchanged.append((b"accept-ranges", b"bytes"))
        headers = [*unchanged, _BYTES]
        if (elsewhere := redirect_object(self._settings, self._storage, file.sha256, "GET")) is None:
            return CachedResponse(etag, unchanged, headers, await self._small(file), file.version_id, file)
        _status, name, value = elsewhere  # for nginx, because the store is a folder
        headers += [(name.lower().encode(), value.encode()), _length(0)]
        return CachedResponse(etag, unchanged, headers, b"", file.version_id)

    async def _small(self, file: PublicFile) -> bytes:
        """Return the bytes of a small file, or none if they are missing or truncated; sending reports
        that."""
        if file.size > _SMALL:
            return b""
        try:
            body = await run_in_threadpool(self._storage.read, file.sha256)
        except FileNotFoundError:
            return b""
        return body if len(body) == file.size else b""

    async def _send(self, scope: Scope, send: Send, answer: CachedResponse, asked: Asked) -> bool:
        named = (_REQUEST_ID, name_request(asked.get(b"x-request-id")).encode())
        held = asked.get(b"if-none-match")
        if held is not None and (held == answer.etag or etag_matches(held, answer.etag)):
            headers = [*answer.unchanged, named]
            await send({"type": "http.response.start", "status": 304, "headers": headers})
            await send(_NOTHING)
            return True
        headers = [*answer.headers, named]
        if answer.file is not None:
            if not answer.body or b"range" in asked:
                return await self._object(scope, send, answer, headers, asked)
            headers.append(_length(answer.file.size))
        if from_beginning(asked.get(b"range")):  # nginx sends the range itself
            self._count(scope, answer)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = answer.body
        await send({"type": "http.response.body", "body": body} if scope["method"] == "GET" else _NOTHING)
        return True

    async def _object(
        self, scope: Scope, send: Send, answer: CachedResponse, headers: Headers, asked: Asked
    ) -> bool:
        file = answer.file
        assert file is not None
        method, sha256 = scope["method"], file.sha256
        part = None
        if method == "GET" and b"range" in asked:
            try:
                part = parse_range(asked[b"range"], asked.get(b"if-range"), f'"{sha256}"', file.size)
            except HubProblem:
                return False
        start, end = part or (0, file.size)
        headers.append(_length(end - start))
        if part is not None:
            headers.append((b"content-range", f"bytes {start}-{end - 1}/{file.size}".encode()))
        head = {"type": "http.response.start", "status": 206 if part else 200, "headers": headers}
        try:
            await send_object(send, head, self._storage, sha256, start, end if method == "GET" else start)
        except FileNotFoundError:
            return False  # the routes report and log the missing file
        if start == 0:
            self._count(scope, answer)
        return True

    def _count(self, scope: Scope, answer: CachedResponse) -> None:
        if answer.version_id is not None and scope["method"] == "GET":
            self._downloads.note(answer.version_id)


def _read_headers(scope: Scope) -> Asked | None:
    """Return the headers that affect the response, or None if the request has credentials."""
    asked: Asked = {}
    for name, value in scope["headers"]:
        if name in _ASKED:
            text = value.decode("latin-1")
            asked[name] = f"{asked[name]}, {text}" if name in asked else text
        elif name in _CREDENTIALS:
            return None
    return asked


def file_caching(owner: str | None, project: str, *, private: bool = False) -> str:
    """Return the `Cache-Control` value for a file; `owner` is None for the combined index.

    Files never change, except those of the hub's own packages, which are rebuilt under the same version
    during development.
    """
    if covers(BUNDLED_OWNER, project) if owner is None else owner == BUNDLED_OWNER:
        return REVALIDATE
    return PRIVATE if private else IMMUTABLE


def page_response(page: RenderedPage) -> CachedResponse:
    """Return the response with a page."""
    kind = f"{page.media_type}; charset=utf-8" if page.media_type == PLAIN_HTML else page.media_type
    etag = f'"{page.etag}"'
    unchanged = [*_PAGE_HEADERS, (b"etag", etag.encode())]
    headers = [*unchanged, (b"content-type", kind.encode()), _length(len(page.body))]
    if page.encoding:
        headers.append((b"content-encoding", page.encoding.encode()))
    return CachedResponse(etag, unchanged, headers, page.body)


def metadata_response(file: PublicFile | File, caching: str) -> CachedResponse | None:
    """Return the response with a wheel's METADATA, or None for a file without separate metadata."""
    if file.core_metadata is None:
        return None
    body = file.core_metadata.encode()
    etag, unchanged = _unchanged(file.core_metadata_sha256 or "", caching)
    return CachedResponse(etag, unchanged, [*unchanged, _BYTES, _length(len(body))], body)


def _unchanged(digest: str, caching: str) -> tuple[str, Headers]:
    etag = f'"{digest}"'
    return etag, [*_FILE_HEADERS, (b"etag", etag.encode()), (b"cache-control", caching.encode())]


def _length(size: int) -> tuple[bytes, bytes]:
    return b"content-length", str(size).encode()
