"""Lines over a websocket: what waits to be sent leaves together in one frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

FRAME = 1 << 20
"""A frame is closed once it is this long, so that one read does not hold everything up."""
QUEUE_LIMIT = 8 << 20
"""So many bytes may wait to be sent before `room` makes senders wait."""

OPTIONS: dict[str, Any] = {
    # Nothing is gained by compressing on one machine, and images make messages of any size.
    "compression": None,
    "max_size": None,
    # An environment may compute for minutes without a turn of its event loop; a dead one closes the socket.
    "ping_interval": None,
    "close_timeout": 1,
}
"""How both ends open the websocket. A side that does not trust the other sets `max_size`.

Frames that were not read yet are bounded by websockets' own queue (16), then by the kernel's buffers: whoever
sends faster than the other side reads has to wait.
"""


class Channel:
    """One end of a connection. `send` never waits; `run` writes until the connection ends."""

    def __init__(self, connection: Connection, aside: Callable[[str], None] | None = None) -> None:
        """Speak over a connection; `aside` takes its text frames, which are no lines of this channel."""
        self._connection = connection
        self._aside = aside
        self._waiting: list[bytes] = []
        self._size = 0
        self._awake = asyncio.Event()
        self._sent = asyncio.Event()
        self._ended = False
        self.too_long = False
        """Set when the connection ended over a message longer than this side takes."""

    def send(self, message: str) -> None:
        """Queue one message of one line; whoever may send many of them waits for `room` before."""
        line = message.encode()
        self._waiting.append(line)
        self._size += len(line)
        self._awake.set()

    async def room(self) -> None:
        """Wait while much is queued that the other side has not taken."""
        while self._size > QUEUE_LIMIT and not self._ended:
            self._sent.clear()
            await self._sent.wait()

    async def run(self) -> None:
        """Write what is queued, frame by frame, until the connection closes."""
        while not self._ended:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                try:
                    await self._write()
                except ConnectionClosed:
                    return

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield every line that comes in, until the connection closes in whatever way."""
        try:
            while True:
                frame = await self._connection.recv()
                if isinstance(frame, str):
                    if self._aside is not None:
                        self._aside(frame)
                        continue
                    frame = frame.encode()
                for line in frame.split(b"\n"):
                    yield line
        except ConnectionClosed as closed:
            self.too_long = closed.sent is not None and closed.sent.code == CloseCode.MESSAGE_TOO_BIG
            self.stop()

    def stop(self) -> None:
        """Let `run` end; nothing more is written."""
        self._ended = True
        self._awake.set()
        self._sent.set()

    async def close(self) -> None:
        """Send what is queued and close the connection."""
        try:
            while self._waiting:
                await self._write()
        except ConnectionClosed:
            return
        await self._connection.close()

    async def _write(self) -> None:
        """Send the next messages of the queue in a frame: as many as fit, at least one."""
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


async def send_frame(connection: Connection, frame: str | bytes) -> None:
    """Send a frame; in parts where it is long, which lets heartbeats through."""
    if len(frame) <= 2 * FRAME:
        await connection.send(frame)
    else:
        await connection.send(frame[start : start + FRAME] for start in range(0, len(frame), FRAME))
