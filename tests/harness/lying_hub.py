"""A proxy in front of a real hub, over a real socket, that alters its answers."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serving import serving

Ask = Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]
"""Asks the real hub: method, path, headers and body give status, headers and body."""
_HOPS = {"connection", "content-length", "transfer-encoding", "date", "server", "host", "accept-encoding"}


@dataclass
class Reply:
    """The real hub's answer, which a test may alter."""

    status: int
    headers: dict[str, str]
    body: bytes | Iterable[bytes]
    """Bytes of a known length, or pieces that come until the connection is closed."""


@dataclass(frozen=True)
class Seen:
    """One received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class LyingHub:
    """A hub at `url` that forwards the real hub's answers, except for a test's alterations."""

    url: str
    seen: list[Seen] = field(default_factory=list)
    _lies: list[tuple[re.Pattern[str], Callable[[Reply], Reply]]] = field(default_factory=list)

    def alter(self, path: str, change: Callable[[Reply], Reply]) -> None:
        """Alter the answers for paths that match a pattern."""
        self._lies.append((re.compile(path), change))

    def answer(
        self, path: str, status: int = 200, body: bytes | Iterable[bytes] = b"", **headers: str
    ) -> None:
        """Replace the real hub's answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.alter(path, lambda reply: Reply(status, named, body))

    def edit(self, path: str, change: Callable[[Any], Any]) -> None:
        """Alter the JSON of answers; `change` works in place or returns other JSON."""

        def changed(reply: Reply) -> Reply:
            assert isinstance(reply.body, bytes)
            data = json.loads(reply.body)
            made = change(data)
            body = json.dumps(data if made is None else made).encode()
            return Reply(reply.status, reply.headers, body)

        self.alter(path, changed)

    def be_honest(self) -> None:
        """Stop altering answers."""
        self._lies.clear()

    def reply(self, seen: Seen, ask: Ask) -> Reply:
        """Return the answer to a request."""
        self.seen.append(seen)
        status, headers, body = ask(seen.method, seen.path, seen.headers, seen.body)
        kept = {name: value for name, value in headers.items() if name.lower() not in _HOPS}
        found = Reply(status, kept, body)
        for pattern, change in self._lies:
            if pattern.search(seen.path):
                found = change(found)
        return found


@contextmanager
def lying_hub(ask: Ask) -> Iterator[LyingHub]:
    """Serve a lying hub in front of the hub that `ask` reaches."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            self.close_connection = True
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = {name: value for name, value in self.headers.items() if name.lower() not in _HOPS}
            reply = hub.reply(Seen(self.command, self.path, given, body), ask)
            with contextlib.suppress(ConnectionError):
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if isinstance(reply.body, bytes) and "Content-Length" not in reply.headers:
                    self.send_header("Content-Length", str(len(reply.body)))
                self.send_header("Connection", "close")
                self.end_headers()
                for piece in [reply.body] if isinstance(reply.body, bytes) else reply.body:
                    self.wfile.write(piece)
                    self.wfile.flush()

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = LyingHub(f"http://127.0.0.1:{server.server_port}")
    with serving(server):
        yield hub


def ask_nobody(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
    """Answer every request with an empty object."""
    return 200, {"Content-Type": "application/json"}, b"{}"
