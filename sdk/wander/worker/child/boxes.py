"""The worker's side of boxes: the host starts them and runs every method."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wander.boxes.base import Box, BoxSpec
from wander.boxes.forwarding import BoxMethod, BoxResult, ForwardingBox
from wander.errors import SandboxError
from wander.worker.protocol import BoxAnswer, Fault, StartBox, UseBox

_EXCEPTIONS = {"FileNotFoundError": FileNotFoundError, "ValueError": ValueError}
"""Exceptions that a method of a box may raise in addition to `SandboxError`."""


class BoxRequests:
    """The requests of a worker to its host that concern boxes."""

    def __init__(self, send: Callable[[str], None]) -> None:
        """`send` sends a message to the host."""
        self._send = send
        self._answers: dict[int, asyncio.Future[BoxAnswer]] = {}
        self._next_id = 0

    async def start(self, play: int, rollout_id: str, spec: BoxSpec) -> Box:
        """Have the host start a box for a rollout. Raises `SandboxError`."""
        number = self._number()
        message = StartBox(id=number, play=play, rollout_id=rollout_id, spec=spec)
        answer = await self._ask(number, message.model_dump_json())

        async def call(method: BoxMethod) -> BoxResult:
            request = self._number()
            message = UseBox(id=request, play=play, box=number, call=method)
            return (await self._ask(request, message.model_dump_json())).result or BoxResult()

        return ForwardingBox(spec, answer.image_digest or "", call)

    def resolve(self, answer: BoxAnswer) -> None:
        """Hand an answer of the host to the code that waits for it."""
        waiting = self._answers.get(answer.id)
        if waiting is None or waiting.done():
            return  # the rollout was canceled in the meantime
        if answer.fault is None:
            waiting.set_result(answer)
        else:
            waiting.set_exception(_exception(answer.fault))

    def _number(self) -> int:
        self._next_id += 1
        return self._next_id

    async def _ask(self, number: int, text: str) -> BoxAnswer:
        answer: asyncio.Future[BoxAnswer] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._send(text)
            return await answer
        finally:
            del self._answers[number]


def _exception(fault: Fault) -> Exception:
    if (builtin := _EXCEPTIONS.get(fault.type)) is not None:
        return builtin(fault.message)
    return SandboxError(fault.message, hint=fault.hint, retryable=fault.retryable)
