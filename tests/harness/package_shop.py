"""A package index over HTTP that starts with the mirror's packages and grows during a test."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from command_line import make_wheel
from serving import serving


class _Pages(SimpleHTTPRequestHandler):
    def __init__(self, *given: Any, asked: list[str], **more: Any) -> None:
        self.asked = asked
        super().__init__(*given, **more)

    def do_GET(self) -> None:
        """Record the requested path."""
        self.asked.append(self.path)
        super().do_GET()

    def end_headers(self) -> None:
        """Forbid caching: a new release must be visible immediately."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a file; uv closes the connection when it has read enough of it."""
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)


@dataclass(frozen=True)
class PackageShop:
    """A running index at `url`."""

    url: str
    folder: Path
    asked: list[str] = field(default_factory=list)
    """Paths of the requests so far."""

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    def release(self, name: str, version: str, module: str) -> Path:
        """Add a release of a package and return its wheel."""
        page = self.folder / "simple" / name
        page.mkdir(exist_ok=True)
        wheel = make_wheel(page, name, version, module)
        links = "".join(f'<a href="{each.name}">{each.name}</a>' for each in sorted(page.glob("*.whl")))
        (page / "index.html").write_text(f"<!DOCTYPE html>{links}")
        return wheel


@contextmanager
def package_shop(folder: Path, mirror: str) -> Iterator[PackageShop]:
    """Serve an index that starts with all packages of the mirror at a `file://` address."""
    simple = folder / "simple"
    simple.mkdir(parents=True)
    for project in Path(url2pathname(urlsplit(mirror).path)).iterdir():
        (simple / project.name).symlink_to(project)
    asked: list[str] = []
    pages = functools.partial(_Pages, directory=str(folder), asked=asked)
    server = ThreadingHTTPServer(("127.0.0.1", 0), pages)
    with serving(server):
        yield PackageShop(f"http://127.0.0.1:{server.server_port}/simple", folder, asked)
