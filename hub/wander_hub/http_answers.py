"""Answers with entity tags and byte ranges, shared by the index, distribution files and artifacts."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from wander_hub.problems import HubProblem
from wander_hub.storage import Storage

IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def not_modified(request: Request, etag: str, headers: dict[str, str]) -> Response | None:
    """Return a 304 when the client holds this very entity."""
    held = request.headers.get("if-none-match")
    if held is None:
        return None
    tags = {tag.strip().removeprefix("W/") for tag in held.split(",")}
    return Response(status_code=304, headers=headers) if etag in tags or "*" in tags else None


def stored_object(
    request: Request, storage: Storage, sha256: str, size: int, media_type: str, headers: dict[str, str]
) -> Response:
    """Send an object: conditional, whole, or one range of it."""
    etag = f'"{sha256}"'
    headers = {**headers, "ETag": etag, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    if (same := not_modified(request, etag, headers)) is not None:
        return same
    path = storage.local_path(sha256)
    if path is not None:
        return FileResponse(path, headers=headers, media_type=media_type)
    wanted = _wanted_range(request, etag, size)
    start, end = wanted or (0, size)
    headers["Content-Length"] = str(end - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    body = storage.stream(sha256, start, end if request.method != "HEAD" else start)
    return StreamingResponse(body, 206 if wanted else 200, headers=headers, media_type=media_type)


def _wanted_range(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """Return the one range asked for; several ranges, or a changed entity, get the whole."""
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or not any(match.groups()) or request.headers.get("if-range", etag) != etag:
        return None
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise HubProblem(416, "range_not_satisfiable", "the range lies outside the file", headers=headers)
    return start, end
