"""Lines over a websocket: what waits to be sent leaves together in one frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

_FRAME = 1 << 20
"""A frame is closed once it is this long, so that one read does not hold everything up."""

OPTIONS: dict[str, Any] = {
    # Nothing is gained by compressing on one machine, and images make messages of any size.
    "compression": None,
    "max_size": None,
    # An environment may compute for minutes without a turn of its event loop; a dead one closes the socket.
    "ping_interval": None,
    "close_timeout": 1,
}
"""How both ends open the websocket."""


class Channel:
    """One end of a connection. `send` never waits; `run` writes until the connection ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[bytes] = []
        self._awake = asyncio.Event()
        self._ended = False

    def send(self, message: str) -> None:
        """Queue one message of one line.

        The queue needs no bound of its own: each rollout has at most one message under way in each direction.
        """
        self._waiting.append(message.encode())
        self._awake.set()

    async def run(self) -> None:
        """Write what is queued, frame by frame, until the connection closes."""
        while not self._ended:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                try:
                    await self._connection.send(self._frame())
                except ConnectionClosed:
                    return

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield every line that comes in, until the connection closes in whatever way."""
        try:
            while True:
                frame = await self._connection.recv(decode=False)
                for line in frame.split(b"\n"):
                    yield line
        except ConnectionClosed:
            self.stop()

    def stop(self) -> None:
        """Let `run` end; nothing more is written."""
        self._ended = True
        self._awake.set()

    async def close(self) -> None:
        """Send what is queued and close the connection."""
        try:
            while self._waiting:
                await self._connection.send(self._frame())
        except ConnectionClosed:
            return
        await self._connection.close()

    def _frame(self) -> bytes:
        """Take the next messages from the queue: as many as fit, at least one."""
        size, count = 0, 0
        for message in self._waiting:
            size += len(message) + 1
            if count and size > _FRAME:
                break
            count += 1
        frame = b"\n".join(self._waiting[:count])
        del self._waiting[:count]
        return frame
