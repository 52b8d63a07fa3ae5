"""Middleware for every response: a request id, and security headers for browsers."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from contextvars import ContextVar

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wander_hub.security import without_secrets

REQUEST_ID_HEADER = "X-Request-ID"
CURRENT_REQUEST = ContextVar("current_request", default="-")
"""Id of the current request, for the log."""
PAGE_CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
BROWSER_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": PAGE_CSP,
}
PRIVATE = "private, no-store"
"""Caching of responses to authenticated requests: they must not be stored."""

_PROCESS, _NUMBERS = [secrets.token_hex(4)], itertools.count(1)
os.register_at_fork(after_in_child=lambda: _PROCESS.__setitem__(0, secrets.token_hex(4)))
_USABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ResponseHeaders:
    """Plain ASGI middleware that adds headers and leaves streamed responses unbuffered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Assign an id to the request and add headers to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id")
        request_id = name_request(next(given, None))
        scope.setdefault("state", {})["request_id"] = request_id
        authenticated = any(name in (b"authorization", b"cookie") for name, _ in scope["headers"])

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                if authenticated and not headers.get("Cache-Control", "").startswith("public"):
                    headers["Cache-Control"] = PRIVATE  # except for public files, which are not confidential
                for name, value in BROWSER_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_completed)


def name_request(given: str | None = None) -> str:
    """Return the id of the current request and set it for the log.

    It is the id from a proxy's header if that is valid. Otherwise it is a unique id: a random value of the
    process and a counter.
    """
    # A token sent as the id would end up in the log.
    usable = given is not None and _USABLE_ID.fullmatch(given) and without_secrets(given) == given
    name = given if given is not None and usable else f"{_PROCESS[0]}{next(_NUMBERS):08x}"
    CURRENT_REQUEST.set(name)  # every request runs in its own context
    return name
