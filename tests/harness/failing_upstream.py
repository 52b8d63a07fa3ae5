"""An index behind a hub that does not do its work, over a real socket."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from serving import serving

JSON = "application/vnd.pypi.simple.v1+json"
ANSWERS: dict[str, tuple[int, str, bytes]] = {
    "has nothing": (404, "text/plain", b"no"),
    "fails": (500, "text/plain", b"no"),
    "sends no page": (200, JSON, b'{"files": 3}'),
    "sends the sign-in page of a network": (200, "text/html", b"<a href=/login>sign in</a>"),
    "sends a byte at a time": (200, "text/html", b"<"),
}
STATES = ("refuses connections", "is silent", *ANSWERS)


@contextmanager
def failing_upstream(state: str) -> Iterator[str]:
    """Yield the address of an index in one of `STATES`."""
    if state in ANSWERS:
        with _answering(*ANSWERS[state], for_ever=state == "sends a byte at a time") as url:
            yield url
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, and nobody answers
        if state == "refuses connections":
            listener.close()
            yield "http://127.0.0.1:1/simple/"  # a privileged port, where nothing listens
        else:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/simple/"


@contextmanager
def _answering(status: int, kind: str, body: bytes, *, for_ever: bool) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(10_000_000 if for_ever else len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in itertools.count() if for_ever else range(1):
                    self.wfile.write(body)
                    time.sleep(0.02 if for_ever else 0)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
