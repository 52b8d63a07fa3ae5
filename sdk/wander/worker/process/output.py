"""What a sandboxed process prints, into a log of bounded size."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

_CHUNK = 1 << 16
_HEAD = 4096
_PAUSE = 0.05
"""Once the log is full: between two reads, so that a flood costs the sandbox time and not this process."""


class CappedLog:
    """Appends what comes from a pipe to a file, until the file is full; goes on reading then, slowly."""

    def __init__(self, pipe: int, path: Path, limit: int) -> None:
        """Take the pipe over. `limit` is the file's size in bytes, the note at its end left aside."""
        self._pipe = pipe
        self._file = path.open("ab")
        self._room = max(0, limit - self._file.tell())
        self._full = False
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.head = b""
        """The first bytes."""
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    async def ended(self, seconds: float) -> None:
        """Wait until nobody can write any more, but not for ever, and close the log."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading; safe to call twice."""
        if self._pipe < 0:
            return
        self._loop.remove_reader(self._pipe)
        if self._later is not None:
            self._later.cancel()
        os.close(self._pipe)
        self._pipe = -1
        self._file.close()
        self._ended.set()

    def _read(self) -> None:
        try:
            found = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        if not found:
            self.close()
            return
        if len(self.head) < _HEAD:
            self.head += found[: _HEAD - len(self.head)]
        self._write(found)
        if self._full:
            self._loop.remove_reader(self._pipe)
            self._later = self._loop.call_later(_PAUSE, self._loop.add_reader, self._pipe, self._read)

    def _write(self, found: bytes) -> None:
        if self._full:
            return
        self._file.write(found[: self._room])
        self._room -= len(found)
        if self._room < 0:
            self._full = True
            self._file.write(f"\n[the log is full at {self._limit} bytes; the rest is dropped]\n".encode())
        self._file.flush()
