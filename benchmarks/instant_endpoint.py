"""An OpenAI-compatible endpoint that answers immediately, so that only the caller is measured.

It runs as a separate process, prints its port, and serves until its standard input closes. It supports just
enough HTTP/1.1 (keep-alive, Content-Length) for the measured clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from subprocess import PIPE, Popen

MODELS = json.dumps({"object": "list", "data": [{"id": "instant", "object": "model"}]}).encode()


class Endpoint(asyncio.Protocol):
    """A connection."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.waiting = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        while (end := self.waiting.find(b"\r\n\r\n")) >= 0:
            head = self.waiting[:end].lower()
            length = content_length(head)
            if len(self.waiting) < end + 4 + length:
                return
            self.waiting = self.waiting[end + 4 + length :]
            body = MODELS if head.startswith(b"get") else completion()
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.answer, body)
            else:
                self.answer(body)

    def answer(self, body: bytes) -> None:
        if not self.transport.is_closing():
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self.transport.write(head.encode() + body)


def content_length(head: bytes) -> int:
    at = head.find(b"content-length:")
    return 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])


def completion() -> bytes:
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "instant",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "The answer is 42."},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    ).encode()


async def serve(delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Endpoint(delay), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def running(delay: float = 0.0) -> AbstractContextManager[str]:
    """Run an endpoint for the duration of a block. Returns its base URL."""
    return running_script(__file__, "--delay", str(delay))


@contextmanager
def running_script(*words: str) -> Iterator[str]:
    """Run a script that prints its port and serves until its input closes. Yields its base URL."""
    process = Popen([sys.executable, *words], stdin=PIPE, stdout=PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.stdin.close()
        process.wait(10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    asyncio.run(serve(parser.parse_args().delay))
