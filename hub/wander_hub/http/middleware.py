"""What every answer carries: a request id, and headers that keep browsers strict."""

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
"""The id of the request that is being answered, for the log."""
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
"""The caching of what is answered to somebody who says who they are: nobody keeps it."""

_PROCESS, _NUMBERS = [secrets.token_hex(4)], itertools.count(1)
os.register_at_fork(after_in_child=lambda: _PROCESS.__setitem__(0, secrets.token_hex(4)))
_USABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class AnswerHeaders:
    """Plain ASGI middleware, so that streamed answers stay streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request and complete the headers of its answer."""
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
                    headers["Cache-Control"] = PRIVATE  # a file that anybody may have is no secret
                for name, value in BROWSER_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_completed)


def name_request(given: str | None = None) -> str:
    """Return, and have the log tell, the name of the request that is answered now.

    It is what a proxy in front gave it, or where that is none, or odd, one that no other request has: random
    per process, counted within.
    """
    # A token that was sent as a name would stand in the log.
    usable = given is not None and _USABLE_ID.fullmatch(given) and without_secrets(given) == given
    name = given if given is not None and usable else f"{_PROCESS[0]}{next(_NUMBERS):08x}"
    CURRENT_REQUEST.set(name)  # every request is answered in a context of its own
    return name
