"""A local receiver of webhooks that records requests and gives prepared answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serving import serving
from wander.wire.events import WebhookPayload


@dataclass
class Received:
    """One received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def payload(self) -> WebhookPayload:
        return WebhookPayload.model_validate_json(self.body)


@dataclass
class Receiver:
    """Received requests and the statuses of the next answers; the last status repeats."""

    port: int = 0
    received: list[Received] = field(default_factory=list)
    answers: list[int] = field(default_factory=lambda: [200])
    location: str = ""
    how: str = "plain"
    """`plain`; `endless`, which never ends its body; `dripping`, which sends a header's byte now and then."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=s3cr3t"

    def types(self) -> list[str]:
        return [one.payload.type for one in self.received]


class _Handler(BaseHTTPRequestHandler):
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.receiver.received.append(Received(self.path, headers, body))
        try:
            self._answer()
        except OSError:
            self.close_connection = True

    def _answer(self) -> None:
        answers = self.receiver.answers
        if self.receiver.how == "dripping":
            for one in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000:
                if self.receiver.ended.is_set():
                    return
                self.wfile.write(bytes([one]))
                self.wfile.flush()
                time.sleep(0.05)
        self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
        if self.receiver.location:
            self.send_header("Location", self.receiver.location)
        self.end_headers()
        self.wfile.write(b"thanks wnd_" + b"a" * 46)
        while self.receiver.how == "endless" and not self.receiver.ended.is_set():
            self.wfile.write(b"x" * 4096)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def webhook_receiver(wrap: Any = None, host: str = "127.0.0.1") -> Iterator[Receiver]:
    """Serve on a free port of `host`; `wrap` turns the socket into a TLS socket."""
    receiver = Receiver()
    handler = type("Handler", (_Handler,), {"receiver": receiver})
    server = ThreadingHTTPServer((host, 0), handler)
    if wrap is not None:
        server.socket = wrap(server.socket)
    receiver.port = server.server_address[1]
    with serving(server):
        try:
            yield receiver
        finally:
            receiver.ended.set()
