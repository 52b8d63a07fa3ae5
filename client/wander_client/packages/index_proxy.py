"""Stands between uv and the hub while packages are resolved: an index of what the hub holds, no more.

uv takes a name from the first of its indexes that has it. This one is the first: what the environment's owner
or `wander` offers comes from the hub alone, with the caller's token, and every other name from the indexes
that pip or uv is set to. It answers on the loopback address, under a path that nobody can guess.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

from wander.wire.package_index import IndexFile

from wander_client.errors import ClientError
from wander_client.hub.api import INDEX_JSON, HubApi

LARGEST_METADATA = 16 << 20
LARGEST_WHEEL = 1 << 30
"""Bytes of a wheel that uv asks for; it is held in memory."""


class IndexProxy:
    """Answers what uv asks of the hub."""

    def __init__(self, hub: HubApi, owner: str, passed_over: Collection[str], port: int, key: str) -> None:
        self.held: set[str] = set()
        """Names that the hub holds, of those that uv asked for."""
        self.refusal: ClientError | None = None
        """Why a name could not be looked up."""
        self._hub, self._owner, self._passed_over = hub, owner, passed_over
        self._base, self._path = f"http://127.0.0.1:{port}/{key}", f"/{key}"
        self._files: dict[str, IndexFile] = {}
        """Each file that was listed, by the address that it was listed with."""

    @property
    def index(self) -> str:
        """The address that uv is given."""
        return f"{self._base}/simple/"

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and body for a path that uv asks for."""
        try:
            if path.startswith(f"{self._path}/simple/"):
                return self._page(path.removeprefix(f"{self._path}/simple/").strip("/"))
            file, metadata = path.removesuffix(".metadata"), path.endswith(".metadata")
            listed = self._files.get(self._base + file.removeprefix(self._path))
            if listed is None or not path.startswith(self._path):
                return 404, b""
            if metadata:
                return 200, self._hub.content(f"{listed.url}.metadata", LARGEST_METADATA)
            return 200, self._hub.content(listed.url, min(listed.size or LARGEST_WHEEL, LARGEST_WHEEL))
        except ClientError as error:
            self.refusal = error
            return 403, b""

    def _page(self, project: str) -> tuple[int, bytes]:
        files = None if project in self._passed_over else self._hub.held_files(self._owner, project)
        if files is None:
            return 404, b""
        self.held.add(project)
        listed = []
        # A source archive would run its code to be read; environments are installed from wheels.
        for file in (each for each in files if each.filename.endswith(".whl")):
            here = f"{self._base}/{len(self._files)}/{quote(file.filename)}"
            self._files[here] = file
            fields = file.model_dump(mode="json", by_alias=True, exclude_none=True)
            listed.append(fields | {"url": here})
        page = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": listed}
        return 200, json.dumps(page).encode()

    def with_hub_addresses(self, lock: str) -> str:
        """Return a lock with the hub's own addresses instead of the proxy's."""
        for here, file in self._files.items():
            lock = lock.replace(f'"{here}"', f'"{file.url}"')
        return lock


@contextlib.contextmanager
def serve_index_proxy(hub: HubApi, owner: str, passed_over: Collection[str]) -> Iterator[IndexProxy]:
    """Answer as an index of what the hub holds for the environments of an owner, but for some names."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer."""
            status, body = proxy.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", INDEX_JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # uv hangs up when it has what it wants
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy = IndexProxy(hub, owner, passed_over, server.server_port, secrets.token_urlsafe(16))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
