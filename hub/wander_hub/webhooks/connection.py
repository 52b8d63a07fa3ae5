"""Outgoing connections that only go to verified addresses and end at a deadline.

A name is resolved once, its addresses are verified, and the connection uses one of these addresses. A name
server that changes its response afterwards has no effect. TLS and the `Host` header still use the name.
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
from wander.system.addresses import is_allowed

Resolve = Callable[[str, int], Sequence[str]]


class NotAllowed(Exception):
    """The hub may not connect to the address."""


def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, in the order of the system."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


class Guard(httpcore.NetworkBackend):
    """Connects only to allowed addresses, and limits a whole request to the deadline."""

    def __init__(self, networks: Sequence[str], deadline: float, resolver: Resolve = resolve) -> None:
        self._networks, self._resolver = networks, resolver
        self.deadline = deadline
        """Time when requests fail. Callers move it for several requests or long responses."""
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first allowed address of a host that accepts the connection."""
        try:
            resolved = [ip_address(address) for address in self._look_up(host, port)]
        except (OSError, ValueError, UnicodeError):
            resolved = []
        # An unknown name gets the same error as a name of a private address, so the error reveals no internal
        # names.
        allowed = [str(address) for address in dict.fromkeys(resolved) if is_allowed(address, self._networks)]
        if not allowed:
            raise NotAllowed(f"`{host}` has no address that this hub may call")
        for number, address in enumerate(allowed, start=1):
            try:
                return _Stream(self._backend.connect_tcp(address, port, self.left()), self)
            except httpcore.NetworkError:
                if number == len(allowed):
                    raise
        raise AssertionError("at least one address was allowed")

    def _look_up(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host; raise a timeout if the lookup takes longer than the deadline.

        Python cannot cancel a lookup. Its thread ends when the system gives up.
        """
        addresses: Future[Sequence[str]] = Future()

        def ask() -> None:
            try:
                addresses.set_result(self._resolver(host, port))
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                addresses.set_exception(error)

        threading.Thread(target=ask, name="look-up", daemon=True).start()
        if not wait([addresses], self.left()).done:
            raise httpcore.ConnectTimeout("the DNS lookup timed out")
        return addresses.result()

    def left(self) -> float:
        """Return the remaining seconds; raise a timeout if no time is left."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the response was not complete in time")
        return left


class _Stream(httpcore.NetworkStream):
    """A connection whose operations all share one deadline, so that a slow sender cannot prolong it."""

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
