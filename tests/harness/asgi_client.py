"""A client of an application in this process, without a socket."""

from __future__ import annotations

from typing import Any

import httpx


def asgi_client(
    app: Any, url: str = "http://hub.test", *, raises: bool = True, **options: Any
) -> httpx.AsyncClient:
    """Return a client of an ASGI application. Unless it `raises`, an unexpected error is a response."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=raises)
    return httpx.AsyncClient(transport=transport, base_url=url, **options)
