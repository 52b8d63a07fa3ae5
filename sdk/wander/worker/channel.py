"""Lines over a websocket. Lines that wait to be sent share one frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

FRAME = 1 << 20
"""Maximum size of a frame in bytes, so that reading one frame does not block for long."""
QUEUE_LIMIT = 8 << 20
"""Minimum number of queued bytes that makes senders wait in `room`."""

OPTIONS: dict[str, Any] = {
    # On one machine compression gains nothing, and messages with images may have any size.
    "compression": None,
    "max_size": None,
    # An environment may block its event loop for minutes. A dead process closes the socket.
    "ping_interval": None,
    "close_timeout": 1,
}
"""Options of the websocket on both ends. A side that does not trust the other sets `max_size`.

Unread frames are limited by the queue of websockets (16), and then by the kernel's buffers: a side that sends
faster than the other side reads has to wait.
"""


class Channel:
    """One end of a connection. `send` never waits, and `run` writes until the connection ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[bytes] = []
        self._size = 0
        self._awake = asyncio.Event()
        self._sent = asyncio.Event()
        self._ended = False
        self.too_long = False
        """Whether the connection ended because a message was longer than this side accepts."""

    def send(self, message: str) -> None:
        """Queue a message of one line. Callers that send many messages wait for `room` first."""
        line = message.encode()
        self._waiting.append(line)
        self._size += len(line)
        self._awake.set()

    async def room(self) -> None:
        """Wait while too many queued bytes have not been sent."""
        while self._size > QUEUE_LIMIT and not self._ended:
            self._sent.clear()
            await self._sent.wait()

    async def run(self) -> None:
        """Write queued messages, frame by frame, until the connection closes."""
        while not self._ended:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                try:
                    await self._write()
                except ConnectionClosed:
                    return

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield every received line until the connection closes for any reason."""
        try:
            while True:
                frame = await self._connection.recv(decode=False)
                for line in frame.split(b"\n"):
                    yield line
        except ConnectionClosed as closed:
            self.too_long = closed.sent is not None and closed.sent.code == CloseCode.MESSAGE_TOO_BIG
            self.stop()

    def stop(self) -> None:
        """Make `run` return. Nothing more is written."""
        self._ended = True
        self._awake.set()
        self._sent.set()

    async def close(self) -> None:
        """Send the queued messages and close the connection."""
        try:
            while self._waiting:
                await self._write()
        except ConnectionClosed:
            return
        await self._connection.close()

    async def _write(self) -> None:
        """Send the next queued messages in one frame: as many as fit, but at least one."""
        size, count = 0, 0
        for message in self._waiting:
            size += len(message) + 1
            if count and size > FRAME:
                break
            count += 1
        frame = b"\n".join(self._waiting[:count])
        del self._waiting[:count]
        self._size -= len(frame) - (count - 1)
        await send_frame(self._connection, frame)
        self._sent.set()


async def send_frame(connection: Connection, frame: bytes) -> None:
    """Send a frame. A long one is sent in fragments, so that heartbeats can get through."""
    if len(frame) <= 2 * FRAME:
        await connection.send(frame)
    else:
        await connection.send(frame[start : start + FRAME] for start in range(0, len(frame), FRAME))
