"""Pages of the index behind the hub, for names that the hub itself does not have.

A page is requested now and then and cached with its digests. It lists the upstream's own addresses, from
which installers download the files. If the upstream does not respond, cached pages stay in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import logging
import re
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from starlette.concurrency import run_in_threadpool
from wander.wire.untrusted_text import UPSTREAM_PAGE, read_json

from wander_hub.http.outbound import SharedQuestions
from wander_hub.http.problems import HubProblem
from wander_hub.index import rendering, repository
from wander_hub.index.negotiation import HTML_V1, JSON_V1
from wander_hub.index.schemas import RenderedPage

if TYPE_CHECKING:  # most hubs do not use an upstream index
    import httpx

logger = logging.getLogger("wander_hub")

_ACCEPT = f"{JSON_V1}, {HTML_V1};q=0.2, text/html;q=0.1"
_FOUND_SECONDS, _MISSING_SECONDS, _SILENT_SECONDS = 300.0, 30.0, 10.0
"""Lifetimes of a cached page, of the absence of a page, and of the silence of the upstream."""
_KEPT_BYTES = 64 * 1024 * 1024
_AT_ONCE = 8
"""Pages requested at the same time; each may have several megabytes."""
_TIMEOUT_SECONDS, _CONNECT_SECONDS = 20.0, 5.0
_LINK = re.compile(r"<(a|base)\b([^<>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([a-z-]+)(?:\s*=\s*("[^"]*"|'[^']*'))?""", re.IGNORECASE)
_OWN_KEYS = ("requires-python", "size", "upload-time", "yanked", "core-metadata", "dist-info-metadata")
"""Keys of a file entry that are kept in addition to its name, address and digests (PEP 691, 700, 714)."""


class _KeptPages(NamedTuple):
    """The upstream's pages of a name, by format and encoding; empty if it does not have the name."""

    pages: dict[tuple[str, str | None], RenderedPage]
    until: float

    @property
    def size(self) -> int:
        return sum(len(page.body) for page in self.pages.values()) + 1024


class Upstream:
    """The package index behind a hub, if the hub has one."""

    def __init__(self, url: str | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = f"{url.rstrip('/')}/" if url else None
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._kept: OrderedDict[str, _KeptPages] = OrderedDict()
        self._kept_bytes = 0
        self._questions = SharedQuestions[_KeptPages]()
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._silent_until = 0.0
        self._decoys = secrets.token_bytes(16)
        """Key of the names that are sent in place of hidden names."""

    async def page(
        self, project: str, media_type: str, encoding: str | None, *, hidden: bool = False
    ) -> RenderedPage | None:
        """Return the page of a normalized name, or None if it is missing; raise a 503 if the upstream is
        silent.

        A hidden name is never sent to the upstream, which is asked for a random name that stands for it. So
        neither the response nor its time reveals that the hub hides the name, whatever state the upstream is
        in.
        """
        if self.url is None:
            return None
        if hidden:
            project = hashlib.blake2b(project.encode(), key=self._decoys, digest_size=16).hexdigest()
        kept = self._kept.get(project)
        if kept is None or kept.until < time.monotonic():
            before = kept
            kept = await self._questions.ask(project, lambda: self._refresh(project, before))
        else:
            self._kept.move_to_end(project)
        form = JSON_V1 if media_type == JSON_V1 else HTML_V1
        page = kept.pages.get((form, encoding)) or kept.pages.get((form, None))
        return page._replace(media_type=media_type) if page is not None and not hidden else None

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _refresh(self, project: str, kept: _KeptPages | None) -> _KeptPages:
        import httpx

        now = time.monotonic()
        try:
            if now < self._silent_until:
                raise httpx.ConnectError("it did not respond a moment ago")
            async with self._places:
                answer = await self._ask(project)
        except (httpx.HTTPError, ValueError) as error:
            if now >= self._silent_until:
                logger.warning("cannot read pages of the upstream index `%s`: %s", self.url, error)
                if isinstance(error, httpx.TransportError):
                    # Read the clock again: the failed request may have taken longer than the pause.
                    self._silent_until = time.monotonic() + _SILENT_SECONDS
            if kept is None:
                raise _silence() from error
            answer = _KeptPages(kept.pages, now + _SILENT_SECONDS)
        self._keep(project, answer)
        return answer

    def _keep(self, project: str, pages: _KeptPages) -> None:
        before = self._kept.pop(project, None)
        self._kept_bytes += pages.size - (before.size if before else 0)
        self._kept[project] = pages
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size

    async def _ask(self, project: str) -> _KeptPages:
        import httpx

        if self._http is None:
            timeout = httpx.Timeout(_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS)
            options: dict[str, Any] = {"timeout": timeout, "follow_redirects": True, "max_redirects": 5}
            self._http = httpx.AsyncClient(transport=self._transport, **options)
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                self._http.stream("GET", f"{self.url}{project}/", headers={"Accept": _ACCEPT}) as answer,
            ):
                if answer.status_code in (404, 410):
                    return _KeptPages({}, time.monotonic() + _MISSING_SECONDS)
                answer.raise_for_status()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    UPSTREAM_PAGE.check_size(len(body))
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no complete response within {_TIMEOUT_SECONDS:g} s") from error
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        pages = await run_in_threadpool(_read, project, kind, bytes(body), str(answer.url))
        return _KeptPages(pages, time.monotonic() + _FOUND_SECONDS)


def _silence() -> HubProblem:
    return HubProblem(
        503,
        "upstream_silent",
        "this hub does not have this name, and the index behind it does not respond",
        hint="try again in a moment",
        headers={"Retry-After": str(int(_SILENT_SECONDS))},
    )


def _read(project: str, kind: str, body: bytes, base: str) -> dict[tuple[str, str | None], RenderedPage]:
    """Return an upstream page in every format and encoding; raises `ValueError` for an invalid page."""
    if kind == JSON_V1:
        data = read_json(body, UPSTREAM_PAGE)
        listed = data.get("files") if isinstance(data, dict) else None
        if not isinstance(listed, list):
            raise ValueError(f"its page of `{project}` does not list files")
    else:
        listed, relative_to = _read_links(body.decode(errors="replace"))
        base = urljoin(base, relative_to)
    usable = [entry for file in listed if (entry := _entry_of(project, file, base)) is not None]
    if not usable:  # some networks answer every request with a sign-in page, which lists no files
        return {}
    entries = [entry for entry, _ in usable]
    title = f"Links for {html.escape(project)}"
    bodies = {
        JSON_V1: _render_json(project, entries, [version for _, version in usable]),
        HTML_V1: rendering.list_html(title, list(map(rendering.link_to, entries))),
    }
    pages: dict[tuple[str, str | None], RenderedPage] = {}
    for form, plain in bodies.items():
        tag = repository.etag_of(plain)
        gzip, zstd = repository.compress(plain)
        pages[form, None] = RenderedPage(plain, form, tag)
        for encoding, packed in (("gzip", gzip), ("zstd", zstd)):
            if packed is not None:
                pages[form, encoding] = RenderedPage(packed, form, f"{tag}-{encoding}", encoding)
    return pages


def _entry_of(project: str, file: Any, base: str) -> tuple[dict[str, Any], str] | None:
    """Return a file's entry and version; None for a file of another project or without a usable address."""
    if not isinstance(file, dict):
        return None
    filename, url = str(file.get("filename", "")), urljoin(base, str(file.get("url", "")))
    parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
    try:
        name, version, *_ = parse(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    if name != project or urlsplit(url).scheme not in ("https", "http"):
        return None
    hashes = file.get("hashes")
    entry = {"filename": filename, "url": url, "hashes": hashes if isinstance(hashes, dict) else {}}
    return entry | {key: file[key] for key in _OWN_KEYS if file.get(key) is not None}, str(version)


def _render_json(project: str, entries: list[dict[str, Any]], versions: list[str]) -> bytes:
    versioned = all("size" in entry for entry in entries)
    # The client must know that the page is not the hub's; an index may add such keys (PEP 691).
    meta = {"api-version": "1.1" if versioned else "1.0", "_upstream": True}
    page: dict[str, Any] = {"meta": meta, "name": project, "files": entries}
    if versioned:
        page["versions"] = list(dict.fromkeys(versions))
    return rendering.dump(page)


def _read_links(page: str) -> tuple[list[dict[str, Any]], str]:
    """Return the links of a PEP 503 page as PEP 691 entries, and the base URL of relative links."""
    files: list[dict[str, Any]] = []
    base = ""
    for tag, written in _LINK.findall(page):
        attributes = {name.lower(): html.unescape(value[1:-1]) for name, value in _ATTRIBUTE.findall(written)}
        href = attributes.get("href", "")
        if tag.lower() == "base":
            base = base or href
            continue
        if not href:
            continue
        url, fragment = urldefrag(href)
        name, _, digest = fragment.partition("=")
        entry: dict[str, Any] = {"filename": unquote(urlsplit(url).path.rpartition("/")[2]), "url": url}
        entry["hashes"] = {name: digest} if digest else {}
        if "data-requires-python" in attributes:
            entry["requires-python"] = attributes["data-requires-python"]
        if "data-yanked" in attributes:
            entry["yanked"] = attributes["data-yanked"] or True
        core = attributes.get("data-core-metadata") or attributes.get("data-dist-info-metadata")
        if core:
            entry["core-metadata"] = {"sha256": core[7:]} if core.startswith("sha256=") else True
        files.append(entry)
    return files, base
