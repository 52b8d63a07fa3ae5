"""An endpoint for programs on loopback, whose calls a function answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wander.endpoint.server import ModelEndpoint
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.types import Message, Usage

Script = Callable[[EndpointCall], EndpointReply]


def says(text: str = "", **fields: object) -> Message:
    return {"role": "assistant", "content": text, **fields}


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def reply_of(call: EndpointCall, message: Message, finish_reason: str = "stop") -> EndpointReply:
    usage = Usage(prompt_tokens=7, completion_tokens=3)
    return EndpointReply(call_id=call.call_id, message=message, finish_reason=finish_reason, usage=usage)


@dataclass
class Served:
    endpoint: ModelEndpoint
    port: int
    calls: list[EndpointCall] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def serve(script: Script | None = None, *, delay: float = 0.0) -> AsyncIterator[Served]:
    """Serve an endpoint. Without a script, the calls wait for the test."""
    listening = socket.create_server(("127.0.0.1", 0))
    endpoint = ModelEndpoint()
    await endpoint.serve([listening])
    served = Served(endpoint, listening.getsockname()[1])

    async def answer_calls() -> None:
        while script is not None:
            call = await endpoint.next_call()
            served.calls.append(call)
            await asyncio.sleep(delay)
            endpoint.answer(script(call))

    task = asyncio.create_task(answer_calls())
    try:
        yield served
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await endpoint.close()
