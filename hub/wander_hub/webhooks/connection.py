"""Connections that the hub makes: to the very addresses that were checked, and no longer than a deadline.

A name is resolved once, its addresses are checked, and the connection goes to one of those: a name server
that answers otherwise a moment later gains nothing. TLS and `Host` keep the name.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from ipaddress import ip_address
from typing import Any

import httpcore

from wander_hub.webhooks.addresses import is_allowed

Resolve = Callable[[str, int], Sequence[str]]


class NotAllowed(Exception):
    """An address leads to where the hub may not call."""


def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, in the system's order."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


class Guard(httpcore.NetworkBackend):
    """Connects to allowed addresses alone, and gives all of a request no longer than the deadline."""

    def __init__(self, networks: Sequence[str], deadline: float, resolver: Resolve = resolve) -> None:
        self._networks, self._resolver = networks, resolver
        self.deadline = deadline
        """Whoever makes several requests, or reads long answers, moves it."""
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of a host that is allowed and answers."""
        try:
            found = [ip_address(one) for one in self._look_up(host, port)]
        except (OSError, ValueError, UnicodeError):
            found = []
        # A name that is not there is not told from one that leads inside: who asks learns no names.
        allowed = [str(one) for one in dict.fromkeys(found) if is_allowed(one, self._networks)]
        if not allowed:
            raise NotAllowed(f"`{host}` has no address that this hub may call")
        for number, one in enumerate(allowed, start=1):
            try:
                return _Stream(self._backend.connect_tcp(one, port, self.left()), self)
            except httpcore.NetworkError:
                if number == len(allowed):
                    raise
        raise AssertionError("one was allowed")

    def _look_up(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, unless the name server takes longer than the deadline.

        Python cannot stop a look-up; its thread ends by itself once the system gives it up.
        """
        found: Future[Sequence[str]] = Future()

        def ask() -> None:
            try:
                found.set_result(self._resolver(host, port))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                found.set_exception(error)

        threading.Thread(target=ask, name="look-up", daemon=True).start()
        if not wait([found], self.left()).done:
            raise httpcore.ConnectTimeout("no address came in time")
        return found.result()

    def left(self) -> float:
        """Return how many seconds are left; raise when none is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("no whole answer came in time")
        return left


class _Stream(httpcore.NetworkStream):
    """A connection all of whose waits end at one moment: a byte every few seconds does not prolong it."""

    def __init__(self, stream: httpcore.NetworkStream, guard: Guard) -> None:
        self._stream, self._guard = stream, guard

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._guard.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._guard.left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        inner = self._stream.start_tls(ssl_context, server_hostname, self._guard.left())
        return _Stream(inner, self._guard)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
