"""Notices a machine that has vanished, without taking one that is busy for it.

Two clocks: the kernels of both machines probe the connection (`keep_alive`), also while a process computes;
and processes whose event loop never runs an environment's code ping each other (`heartbeat`). That is a host
and a listening worker's own process: the environment's is a child of it, which may stand still for as long as
it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

PING_SECONDS = 5.0
SILENT_PINGS = 4
"""A host gives a listening worker up that has not answered for `PING_SECONDS * SILENT_PINGS` = 20 s."""
HOST_PING_SECONDS = 60.0
HOST_SILENT_PINGS = 10
"""A listening worker gives a host up after 600 s: it may load a model in between. One whose machine is gone
is noticed by the kernel after about 30 s."""
_IDLE, _BETWEEN, _PROBES = 10, 5, 4


def keep_alive(connection: Connection) -> None:
    """Let the kernel end the connection when the other machine has not answered for about 30 s."""
    own: socket.socket = connection.transport.get_extra_info("socket")
    settings = {
        "TCP_KEEPIDLE": _IDLE,
        "TCP_KEEPINTVL": _BETWEEN,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": (_IDLE + _BETWEEN * _PROBES) * 1000,
    }
    with contextlib.suppress(OSError):  # as far as the platform knows them; the pings tell as well
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in settings.items():
            if hasattr(socket, name):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def heartbeat(connection: Connection, seconds: float, silent: int) -> None:
    """Ping until no answer has come for `silent` intervals; then cut the connection and return.

    Intervals are counted, not measured: a loop that was itself held up counts one, however long that was.
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
    with contextlib.suppress(ConnectionClosed):  # whoever reads from it hears of that
        await (await connection.ping())
