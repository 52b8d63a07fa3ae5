"""The host's end of the connections that code in a sandbox opens to the endpoint for other models."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable

TakeCall = Callable[[socket.socket], None]
"""Takes over a connected socket and speaks HTTP on it."""


class CallSockets:
    """Receives descriptors over a pair of sockets, as `inside.py` sends them, and hands good ones on."""

    def __init__(self, take: TakeCall) -> None:
        self._take = take
        self._host, self.inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._host, self._received)

    def close(self) -> None:
        """Take no more; safe to call twice."""
        if self._host.fileno() >= 0:
            self._loop.remove_reader(self._host)
        self._host.close()
        self.inside.close()

    def _received(self) -> None:
        try:
            word, descriptors, _, _ = socket.recv_fds(self._host, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            word, descriptors = b"", []
        if not word and not descriptors:
            self.close()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            if _is_stream(descriptor):
                self._take(socket.socket(fileno=descriptor))
            else:
                os.close(descriptor)


def _is_stream(descriptor: int) -> bool:
    """Only a pair of stream sockets is taken: the other side may be hostile."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    probe = socket.socket(fileno=os.dup(descriptor))
    with probe:
        return (probe.family, probe.type) == (socket.AF_UNIX, socket.SOCK_STREAM)
