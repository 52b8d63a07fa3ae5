"""Boxes for the processes of a check, which may be sandboxed and then cannot start boxes themselves.

The process that runs the check starts them. Requests and answers are lines of JSON on a socket, as between a
worker and its host.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from wander.boxes.base import Box, BoxSpec
from wander.clients.base import Client, WrappedClient
from wander.clients.scripted import ScriptedClient
from wander.worker.child.boxes import BoxRequests
from wander.worker.protocol import BoxAnswer, StartBox, UseBox

if TYPE_CHECKING:
    from wander.worker.host.boxes import FindOnHost

LONGEST_LINE = 256 << 20
ROLLOUT_ID = "check"
PARALLEL_ROLLOUTS = 16
"""Number of rollouts of a check that may have boxes at the same time."""
_REQUEST: TypeAdapter[StartBox | UseBox] = TypeAdapter(StartBox | UseBox)


@contextlib.contextmanager
def serve_boxes(find_on_host: FindOnHost) -> Iterator[int]:
    """Start boxes for another process until the block ends; yield the descriptor that the process needs.

    `find_on_host` returns the host's path of a folder that the process sees.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(
            target=lambda: asyncio.run(_serve(ours, find_on_host)), name="boxes of a check"
        )
        thread.start()
        try:
            yield theirs.fileno()
        finally:
            # The end of the stream makes the thread stop all boxes. It may come before that of the process.
            ours.shutdown(socket.SHUT_RD)
            thread.join()


async def _serve(connection: socket.socket, find_on_host: FindOnHost) -> None:
    reader, writer = await asyncio.open_connection(sock=connection.dup(), limit=LONGEST_LINE)
    line = await reader.readline()
    if not line:  # most environments start no box
        writer.close()
        return
    from wander.worker.host.boxes import PlayBoxes  # the process of the check imports this module too

    boxes = PlayBoxes(ScriptedClient([]), [ROLLOUT_ID] * PARALLEL_ROLLOUTS, find_on_host)
    calls: set[asyncio.Task[None]] = set()

    async def answer(line: bytes) -> None:
        text = await boxes.answer(_REQUEST.validate_json(line))
        writer.write(text.encode() + b"\n")

    try:
        while line:
            call = asyncio.create_task(answer(line))
            calls.add(call)
            call.add_done_callback(calls.discard)
            line = await reader.readline()
    finally:
        for call in calls:
            call.cancel()
        await boxes.stop(list(calls))
        writer.close()


class HostBoxes:
    """The boxes that the host of this process starts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._connecting: asyncio.Task[BoxRequests] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, spec: BoxSpec) -> Box:
        """Have the host start a box. Raises `SandboxError`."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return await (await self._connecting).start(0, ROLLOUT_ID, spec)

    async def _connect(self) -> BoxRequests:
        connection = socket.socket(fileno=self._descriptor)
        reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)
        requests = BoxRequests(lambda text: writer.write(text.encode() + b"\n"))
        self._reading = asyncio.create_task(_read(reader, requests))
        return requests


async def _read(reader: asyncio.StreamReader, requests: BoxRequests) -> None:
    while line := await reader.readline():
        requests.resolve(BoxAnswer.model_validate_json(line))


class BoxedClient(WrappedClient):
    """A client whose boxes are started by the host of this process."""

    def __init__(self, client: Client, boxes: HostBoxes) -> None:
        super().__init__(client)
        self._boxes = boxes

    async def start_box(self, rollout_id: str, spec: BoxSpec) -> Box:
        """Have the host start a box."""
        return await self._boxes.start(spec)
