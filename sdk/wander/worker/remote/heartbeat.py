"""Detects a machine that has vanished, without mistaking a busy one for it.

There are two mechanisms. The kernels of both machines probe the connection (`keep_alive`), even while a
process computes. And processes whose event loop never runs environment code ping each other (`heartbeat`): a
host, and the process of a listening worker. The environment runs in a child of that process, which may block
for any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

PING_SECONDS = 5.0
SILENT_PINGS = 4
"""Number of missed pings after which a host gives up a listening worker: `PING_SECONDS * SILENT_PINGS` = 20
s."""
HOST_PING_SECONDS = 60.0
HOST_SILENT_PINGS = 10
"""Number of missed pings after which a listening worker gives up a host: 600 s, because the host may be
loading a model. The kernel detects a vanished machine after about 30 s."""
_IDLE, _BETWEEN, _PROBES = 10, 5, 4


def keep_alive(connection: Connection) -> None:
    """Make the kernel end the connection if the other machine has not responded for about 30 s."""
    own: socket.socket = connection.transport.get_extra_info("socket")
    settings = {
        "TCP_KEEPIDLE": _IDLE,
        "TCP_KEEPINTVL": _BETWEEN,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": (_IDLE + _BETWEEN * _PROBES) * 1000,
    }
    with contextlib.suppress(OSError):  # not every platform has all of them, and the pings detect it too
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in settings.items():
            if hasattr(socket, name):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def heartbeat(connection: Connection, seconds: float, silent: int) -> None:
    """Ping until `silent` intervals have passed without a response. Then cut the connection and return.

    Intervals are counted, not measured: if this event loop was blocked, that counts as only one interval.
    """
    answer: asyncio.Task[None] | None = None
    missed = 0
    try:
        while missed < silent:
            if answer is None or answer.done():
                answer, missed = asyncio.create_task(_wait_for_pong(connection)), 0
            await asyncio.sleep(seconds)
            missed = 0 if answer.done() else missed + 1
        connection.transport.abort()
    finally:
        if answer is not None:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)


async def _wait_for_pong(connection: Connection) -> None:
    with contextlib.suppress(ConnectionClosed):  # the reader of the connection handles this
        await (await connection.ping())
