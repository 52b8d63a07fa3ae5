"""Middleware that compresses pages and data with gzip. Files are sent as they are stored."""

from __future__ import annotations

import gzip
import re
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wander_hub.http.cookies import SAFE_METHODS

_TEXT = (
    *("text/html", "text/css", "text/javascript", "text/plain", "text/markdown"),
    *("application/json", "application/problem+json", "application/xml"),
)
_LEAST = 1024
"""Size in bytes below which compression does not pay off."""
_LONG = 64 * 1024
"""Smallest size in bytes that is compressed in a thread."""
_EFFORT = 3
"""Level of zlib. Level 5 takes twice as long, and makes a leaderboard only a tenth smaller."""
_TAKEN = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.I)


class Compression:
    """ASGI middleware that compresses complete texts, but neither streams nor files with byte ranges."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compress responses with gzip if the client accepts it."""
        if (
            scope["type"] != "http"
            or scope["method"] not in SAFE_METHODS
            or not _TAKEN.search(Headers(scope=scope).get("accept-encoding", ""))
        ):
            await self._app(scope, receive, send)
            return
        started: Message | None = None

        async def send_compressed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start" and _is_text(message):
                started = message  # the first body message shows how long the text is
                return
            if started is not None:
                begin, started = started, None
                body = message.get("body", b"")
                if not message.get("more_body") and len(body) >= _LEAST:
                    # Compressing a long text would block all other requests.
                    pack = partial(gzip.compress, body, _EFFORT, mtime=0)
                    packed = pack() if len(body) < _LONG else await run_in_threadpool(pack)
                    message = {**message, "body": packed}
                    headers = MutableHeaders(scope=begin)
                    if (etag := headers.get("etag", "W/")).startswith('"'):
                        headers["ETag"] = (
                            f"W/{etag}"  # weak, because the bytes differ from the uncompressed ones
                        )
                    headers["Content-Encoding"] = "gzip"
                    headers["Content-Length"] = str(len(message["body"]))
                await send(begin)
            await send(message)

        await self._app(scope, receive, send_compressed)


def _is_text(start: Message) -> bool:
    headers = MutableHeaders(scope=start)
    kind = headers.get("content-type", "").partition(";")[0]
    if kind not in _TEXT or "accept-ranges" in headers or "content-encoding" in headers:
        return False
    if "accept-encoding" not in headers.get("vary", "").lower():
        headers.add_vary_header("Accept-Encoding")
    return True
