"""The check of host names in requests, against DNS rebinding.

A foreign page whose own name resolves to the hub's address could otherwise make a visitor's browser talk to a
hub on their machine or in their network as if it were the page's own server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import Scope
from wander.wire import Problem

from wander_hub.http.middleware import BROWSER_HEADERS, REQUEST_ID_HEADER, name_request
from wander_hub.settings import Settings

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_KEPT = 256


class Hosts:
    """The hub's own host names: those of `public_url`, of the bind address and of the setting `hosts`."""

    def __init__(self, settings: Settings, address: str | None) -> None:
        bound = urlsplit(address).hostname if address is not None else None
        public = urlsplit(settings.public_url).hostname if settings.public_url else None
        self._checked = bound is not None
        self._open = bound in _EVERY_ADDRESS
        self._names = {name.lower() for name in (bound, public, *settings.hosts) if name}
        if self._open or bound in _LOOPBACK:
            self._names |= _LOOPBACK
        self._known: set[bytes] = set()

    def accepts(self, scope: Scope) -> bool:
        """Return whether a request names this hub, or no host at all, as old programs do, which is
        harmless."""
        for name, value in scope["headers"]:
            if name == b"host" and self._checked and value not in self._known:
                if not self._is_own(value.decode("latin-1").lower()):
                    return False
                if len(self._known) < _KEPT:
                    self._known.add(value)
        return True

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").removesuffix(".")
        # An attacker cannot have a page under an IP address or, publicly, under a name without a dot.
        return name in self._names or (self._open and ("." not in name or _is_address(name)))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def misdirected() -> JSONResponse:
    """Return the response to a request for another host name."""
    hint = (
        "the hub's operator can set `WANDER_HUB_PUBLIC_URL` to the address that users know, or add the name "
        "to `WANDER_HUB_HOSTS`"
    )
    detail = "this hub does not serve that host name"
    return early_problem(421, "Misdirected Request", "unknown_host", detail, hint)


def early_problem(
    status: int, title: str, code: str, detail: str, hint: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a problem response for a request that is rejected before routing."""
    request_id = name_request()
    problem = Problem(title=title, status=status, detail=detail, code=code, hint=hint, request_id=request_id)
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status,
        headers={**BROWSER_HEADERS, REQUEST_ID_HEADER: request_id, **(headers or {})},
        media_type="application/problem+json",
    )
