"""Connections that keep the hub waiting end soon, also without a proxy in front.

uvicorn waits for ever for the head of a first request, of any length, and for a client that does not read its
answer. Bodies have limits of their own (`http/bodies.py`).
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 64 * 1024


class HubProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits of the head of a request, and of the time for it and for reading an answer."""

    head_seconds = 20.0
    """From the connection, or the first byte of a later request, to the end of the head."""
    unread_seconds = 60.0
    """How long a client may read nothing of what is sent."""
    _head_timer: TimerHandle | None = None
    _unread_timer: TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head of a request is too long."""
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MOST_HEAD_BYTES and self._head_timer is not None:
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        """Stop to wait for the head, and begin to answer."""
        self._forget(self._head_timer)
        self._head_timer, self._head_bytes = None, 0
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with a client that reads."""
        self._forget(self._unread_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
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
