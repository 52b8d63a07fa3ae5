"""A small HTTP server for the OpenAI chat protocol, in place of a model provider."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serving import serving

Reply = Callable[[list[dict[str, Any]]], str | bytes]
"""Takes the messages; returns the completion's text, or bytes to answer with instead of a completion."""


@dataclass
class ChatEndpoint:
    """A running endpoint."""

    base_url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests answered so far."""
    keys: set[str] = field(default_factory=set)
    """The `Authorization` headers seen."""
    in_flight: int = 0
    most_in_flight: int = 0


def completion(model: str, text: str) -> bytes:
    """Return the body of a chat completion."""
    usage = {"prompt_tokens": 10, "completion_tokens": len(text) // 4 + 1}
    usage["total_tokens"] = sum(usage.values())
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": model}
    return json.dumps({**answer, "choices": [choice], "usage": usage}).encode()


@contextmanager
def chat_endpoint(
    reply: Reply, delay: float = 0.0, models: tuple[str, ...] | None = None
) -> Iterator[ChatEndpoint]:
    """Serve `reply` on a free port; `delay` seconds pass before each answer.

    `models` limits the model names that it accepts; by default it lists `echo` and accepts every name.
    """
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            endpoint.keys.add(self.headers.get("authorization", ""))
            if models is not None and body["model"] not in models:
                self._answer(json.dumps({"error": {"message": "no such model"}}).encode(), 404)
                return
            with counting:
                endpoint.in_flight += 1
                endpoint.most_in_flight = max(endpoint.most_in_flight, endpoint.in_flight)
            try:
                time.sleep(delay)
                answer = reply(body["messages"])
            finally:
                with counting:
                    endpoint.in_flight -= 1
            endpoint.requests.append(body)
            self._answer(answer if isinstance(answer, bytes) else completion(body["model"], answer))

        def do_GET(self) -> None:
            listed = [{"id": name, "object": "model"} for name in models or ("echo",)]
            self._answer(json.dumps({"object": "list", "data": listed}).encode())

        def _answer(self, body: bytes, status: int = 200) -> None:
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # some tests kill the caller

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore errors of a killed caller."""

    server = Server(("127.0.0.1", 0), Handler)
    endpoint = ChatEndpoint(f"http://127.0.0.1:{server.server_address[1]}/v1")
    with serving(server):
        yield endpoint
