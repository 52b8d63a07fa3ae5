"""Timeouts for slow connections, which protect the hub even without a proxy in front of it.

uvicorn by itself waits forever for the head of the first request, accepts a head of any length, and waits
forever for a client that does not read its response. Bodies have their own limits (`http/bodies.py`).
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 64 * 1024


class HubProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a size limit for request heads and timeouts for heads and unread responses."""

    head_seconds = 20.0
    """Seconds from the connection, or from the first byte of a later request, to the end of the head."""
    unread_seconds = 60.0
    """Seconds that a client may stop reading its response."""
    _head_timer: TimerHandle | None = None
    _unread_timer: TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request's head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse received data, unless the request head is too long."""
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MOST_HEAD_BYTES and self._head_timer is not None:
            self.send_400_response("The request head is too long.")

    def on_headers_complete(self) -> None:
        """Stop the timer of the head and start the response."""
        self._forget(self._head_timer)
        self._head_timer, self._head_bytes = None, 0
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer of a client that reads again."""
        self._forget(self._unread_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._forget(self._head_timer)
        self._forget(self._unread_timer)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    @staticmethod
    def _forget(timer: TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
