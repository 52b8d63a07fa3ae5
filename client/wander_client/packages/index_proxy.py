"""A proxy between uv and the hub: an index with only the packages that the hub itself stores.

uv takes a package from the first index that has its name, and the proxy is the first. So packages of the
environment's owner and of `wander` come only from the hub, with the caller's token, and all other packages
come from the indexes that pip or uv is configured for. The proxy listens on loopback, at a path that cannot
be guessed.
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
"""Maximum size of a wheel in bytes, because wheels are held in memory."""


class IndexProxy:
    """The responses to uv's requests."""

    def __init__(self, hub: HubApi, owner: str, passed_over: Collection[str], port: int, key: str) -> None:
        self.held: set[str] = set()
        """Requested names that the hub stores."""
        self.refusal: ClientError | None = None
        """Error of a failed request."""
        self._hub, self._owner, self._passed_over = hub, owner, passed_over
        self._base, self._path = f"http://127.0.0.1:{port}/{key}", f"/{key}"
        self._files: dict[str, IndexFile] = {}
        """Listed files, by the URL that uv received."""

    @property
    def index(self) -> str:
        """URL of the index for uv."""
        return f"{self._base}/simple/"

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body for a request."""
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
        # Reading a source distribution would run its code, so only wheels are listed.
        for file in (file for file in files if file.filename.endswith(".whl")):
            url = f"{self._base}/{len(self._files)}/{quote(file.filename)}"
            self._files[url] = file
            fields = file.model_dump(mode="json", by_alias=True, exclude_none=True)
            listed.append(fields | {"url": url})
        page = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": listed}
        return 200, json.dumps(page).encode()

    def with_hub_addresses(self, lock: str) -> str:
        """Replace the proxy's URLs in a lock by the hub's URLs."""
        for url, file in self._files.items():
            lock = lock.replace(f'"{url}"', f'"{file.url}"')
        return lock


@contextlib.contextmanager
def serve_index_proxy(hub: HubApi, owner: str, passed_over: Collection[str]) -> Iterator[IndexProxy]:
    """Serve an index of the packages that the hub stores for an owner, except for some names."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Handle a request."""
            status, body = proxy.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", INDEX_JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # uv closes the connection when it has enough
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests."""

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
