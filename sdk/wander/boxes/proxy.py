"""The way out of a box to single hosts: a proxy for TLS connections, which only the host can open.

The proxy listens on 127.0.0.1 inside the box (`HTTPS_PROXY`), but runs outside. It resolves names itself and
connects only to public addresses, so that an allowed name cannot lead to the host's own network.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence

from wander.errors import SandboxError

PROXY_PORT = 3128
HTTPS_PORT = 443
_RULE = re.compile(r"(\*|(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::(\d{1,5}))?")
_REQUEST = re.compile(rb"CONNECT ([A-Za-z0-9.-]+):(\d{1,5}) HTTP/1\.[01]\r\n")
_SECONDS = 10.0
"""Time for a request, and for a connection."""
_HEAD_BYTES = 16 << 10
_MOST_CONNECTIONS = 64
_CHUNK = 64 << 10
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def allows(rules: Iterable[str], host: str, port: int) -> bool:
    """Return whether one of the rules allows a host.

    A rule is a name or an IPv4 address, `*.NAME` for all names below it, or `*` for all names. Without a
    port, it allows port 443. Raises `SandboxError` for an invalid rule.
    """
    return any(_matches(*_read_rule(rule), host.lower().rstrip("."), port) for rule in rules)


def find_unlisted(wanted: Iterable[str], rules: Sequence[str]) -> str | None:
    """Return the first wanted rule that goes beyond the other rules, or None."""
    return next((rule for rule in wanted if not allows(rules, *_read_rule(rule))), None)


def _read_rule(rule: str) -> tuple[str, int]:
    found = _RULE.fullmatch(rule.lower())
    if found is None or int(found[2] or HTTPS_PORT) > 65535:
        raise SandboxError(
            f"`{rule}` is not a host that a box can reach",
            hint="write a name such as `pypi.org`, `*.example.org` or `example.org:8443`",
        )
    return found[1], int(found[2] or HTTPS_PORT)


def _matches(name: str, allowed_port: int, host: str, port: int) -> bool:
    if port != allowed_port:
        return False
    if name == host:
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return False  # a pattern is for names only
    return name == "*" or (name.startswith("*.") and host.endswith(name[1:]))


def proxy_variables() -> dict[str, str]:
    """Return the variables by which programs find the proxy."""
    names = ("HTTPS_PROXY", "https_proxy")
    own = {"NO_PROXY": "localhost,127.0.0.1", "no_proxy": "localhost,127.0.0.1"}
    return {**dict.fromkeys(names, f"http://127.0.0.1:{PROXY_PORT}"), **own}


class Proxy:
    """Connects the programs of a box with the hosts that its rules allow."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._rules = rules
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Answer on a listening socket of the box."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_HEAD_BYTES)

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            if len(self._connections) > _MOST_CONNECTIONS:
                return
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                answer, outside = await self._connect(head)
            writer.write(b"HTTP/1.1 " + answer + b"\r\n\r\n")
            if outside is not None:
                await _join((reader, writer), outside)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the program in the box sees the end of the connection
        finally:
            await _end(writer)

    async def _connect(
        self, head: bytes
    ) -> tuple[bytes, tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
        """Return the status line for a request, and the connection to the host that it names."""
        request = _REQUEST.match(head)
        if request is None:
            return b"405 only CONNECT is supported", None
        host, port = request[1].decode().lower().rstrip("."), int(request[2])
        if not allows(self._rules, host, port):
            return b"403 the box may not reach this host", None
        try:
            addresses = await _resolve(host, port)
            public = [one for one in addresses if _is_public(one) or allows(self._rules, str(one), port)]
            if not public:
                return b"403 the host has no public address", None
            for address in public:
                with contextlib.suppress(OSError):
                    return b"200 connected", await asyncio.open_connection(str(address), port)
        except OSError:
            pass
        return b"502 the host cannot be reached", None


async def _resolve(host: str, port: int) -> list[Address]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(entry[4][0]) for entry in found]


def _is_public(address: Address) -> bool:
    """Return whether an address is on the internet, and leads to no other network by IPv4 inside IPv6."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None and not _is_public(inner):
            return False
    return address.is_global and not address.is_multicast


async def _join(
    inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy both directions until both ends have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(inside[0], outside[1]))
            group.create_task(_copy(outside[0], inside[1]))
    except* OSError:
        pass  # one side ended the connection
    finally:
        await _end(outside[1])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
