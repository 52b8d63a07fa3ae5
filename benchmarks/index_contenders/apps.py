"""Serves a page or a file without a hub, from memory: as a bare ASGI application, and with FastAPI.

uvicorn runs them. `BENCHMARK_STATIC` names the folder that nginx also serves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse

STATIC = Path(os.environ["BENCHMARK_STATIC"])
JSON_V1 = "application/vnd.pypi.simple.v1+json"
PAGES = {path.parent.name: path.read_bytes() for path in STATIC.glob("simple/*/index.json")}
TAG = '"same"'

app = FastAPI(openapi_url=None)


@app.get("/simple/{name}/")
async def page(name: str, request: Request) -> Response:
    headers = {"ETag": TAG, "Vary": "Accept"}
    if request.headers.get("if-none-match") == TAG:
        return Response(status_code=304, headers=headers)
    return Response(PAGES[name], media_type=JSON_V1, headers=headers)


@app.get("/files/{name}")
async def file(name: str) -> FileResponse:
    return FileResponse(STATIC / "files" / name)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Answer every path with the page that it names."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = PAGES[scope["path"].split("/")[2]]
    headers = [(b"content-type", JSON_V1.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
