"""How many requests a minute a token may make, or an address without one.

Each process counts its own, in memory: with `--workers 4`, or several hubs, as many times more pass. That
keeps floods out for a look into a dictionary; what must hold exactly is a quota, which the database counts.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.responses import JSONResponse
from starlette.types import Scope

from wander_hub.http.hosts import answer_early
from wander_hub.settings import Settings

_WINDOW = 60
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_UPLOADS = ("/api/v1/uploads", "/api/v1/postings")
"""Beginnings of the paths that take in parts of something large, of which there are many."""

_FOR_ANYBODY = frozenset(
    {
        *(
            "/api/v1/leaks",
            "/login",
            "/login/password",
            "/login/oidc",
            "/login/oidc/callback",
            "/logout",
            "/_/oidc/mint-token",
        ),
        *("/health", "/live", "/ready"),
    }
)
"""Paths where nobody looks at credentials, so that made-up ones would count as somebody new each time."""


class Budget:
    """So many requests a minute for each who makes some; 0 is no limit."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self._window, self._spent = 0, Counter[str]()

    def spend(self, who: str, cost: int = 1) -> bool:
        """Take from the budget; False when there is nothing left."""
        window = int(time.monotonic() // _WINDOW)
        if window != self._window:
            self._window, self._spent = window, Counter()
        self._spent[who] += cost
        return not self.most or self._spent[who] <= self.most

    def headers(self, who: str) -> dict[str, str]:
        """Return what is left and until when (draft-ietf-httpapi-ratelimit-headers)."""
        ends = math.ceil(_WINDOW - time.monotonic() % _WINDOW)
        left = max(0, self.most - self._spent[who])
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.most};w={_WINDOW}',
            "RateLimit": f'"{self.name}";r={left};t={ends}',
            "Retry-After": str(ends),
        }


class Limits:
    """The budgets of one process: reading, writing, uploads and failed authentication."""

    def __init__(self, settings: Settings) -> None:
        self._reads = Budget("reads", settings.reads_per_minute)
        self._writes = Budget("writes", settings.writes_per_minute)
        self._uploads = Budget("uploads", settings.uploads_per_minute)
        self._failures = Budget("failures", settings.failures_per_minute)

    def refuse(self, scope: Scope) -> JSONResponse | None:
        """Return the answer to a request that is one too many; None for all others."""
        address, secret = _sender(scope)
        if secret is not None and not self._failures.spend(address, 0):
            return _refusal(self._failures, address, "many requests from here had tokens that are not good")
        budget = self._budget_for(scope)
        who = secret or address
        if budget.spend(who):
            return None
        sender = "this token" if secret else "this address"
        return _refusal(budget, who, f"{sender} made more than {budget.most:,} requests in a minute")

    def note(self, scope: Scope, status: int) -> None:
        """Take an answer into account: a token that was not good costs its sender's address."""
        if status == 401:
            address, secret = _sender(scope)
            if secret is not None:
                self._failures.spend(address)

    def _budget_for(self, scope: Scope) -> Budget:
        path: str = scope["path"]
        if scope["method"] in _SAFE:
            return self._reads
        if path.startswith(_UPLOADS) or path.rstrip("/").endswith("/legacy"):
            return self._uploads
        return self._writes


def sender_of(scope: Scope) -> str:
    """Return the address that a request comes from; of IPv6 the network."""
    host = scope["client"][0] if scope.get("client") else ""
    return network_of(host) if ":" in host else host


def _sender(scope: Scope) -> tuple[str, str | None]:
    """Return the address that a request comes from, and what stands for its credentials."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    if scope["path"].rstrip("/") in _FOR_ANYBODY:
        given = None
    secret = hashlib.blake2b(given, digest_size=16).hexdigest() if given is not None else None
    return sender_of(scope), secret


def network_of(host: str) -> str:
    """Return what one sender has: an address of IPv4, a network of 64 bits of IPv6."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped  # so a hub that listens on `::` sees senders of IPv4
    return str(mapped or IPv6Address(int(address) >> 64 << 64))


def _refusal(budget: Budget, who: str, detail: str) -> JSONResponse:
    headers = budget.headers(who)
    setting = f"WANDER_HUB_{budget.name.upper()}_PER_MINUTE"
    hint = f"wait {headers['Retry-After']} seconds; the hub's operator sets `{setting}`"
    return answer_early(429, "Too Many Requests", "too_many_requests", detail, hint, headers)
