"""Where a worker listens on another machine, and the token that opens it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from wander.errors import ConfigError

_SHORTEST_TOKEN = 16
_EXAMPLE = "openssl rand -hex 32"


class WorkerPlace(Protocol):
    """Where a worker is to be had, which is asked before each connection."""

    async def find(self) -> WorkerAddress:
        """Return where it listens now; raises `LoadError`."""
        ...


@dataclass(frozen=True)
class WorkerAddress:
    """A listening worker, as `tcp://host:port`, or `unix:///path` of a socket."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    path: str | None = None
    """The Unix socket; host and port then say nothing."""

    @classmethod
    def parse(cls, text: str, token: str | None = None) -> WorkerAddress:
        """Read `tcp://host:port` or `unix:///path`; raises `ConfigError`."""
        if (path := parse_socket(text)) is not None:
            return cls("", 0, token, path)
        try:
            found = urlsplit(text)
            host, port = found.hostname, found.port
        except ValueError:
            host = port = None
        if host is None or not port or found.scheme != "tcp" or found.path not in ("", "/") or found.username:
            raise ConfigError(
                f"`{text}` is no worker's address",
                hint="write `tcp://HOST:PORT`, e.g. `tcp://10.0.0.5:7100`, or `unix:///PATH` of a socket",
            )
        return cls(host, port, token)

    async def find(self) -> WorkerAddress:
        """Return the address itself."""
        return self

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{_bracket(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """The same for a websocket."""
        return "ws://localhost/" if self.path else f"ws://{_bracket(self.host)}:{self.port}/"


def read_token(path: Path) -> str:
    """Return the token in a file; raises `ConfigError` for one that is missing or easily guessed."""
    try:
        token = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the token file `{path}`: {getattr(error, 'strerror', None) or error}",
            hint=f"make one with `{_EXAMPLE} > {path}` and copy it to the other machine",
        ) from error
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or any(letter.isspace() for letter in token):
        raise ConfigError(
            f"the token in `{path}` must be one word of at least {_SHORTEST_TOKEN} letters",
            hint=f"make one with `{_EXAMPLE} > {path}`",
        )
    return token


def parse_socket(text: str) -> str | None:
    """Return the path in `unix:///path`; None for text that begins otherwise. Raises `ConfigError`."""
    if not text.startswith("unix:"):
        return None
    path = text.removeprefix("unix://")
    if not path.startswith("/"):
        raise ConfigError(
            f"`{text}` names no socket by its whole path",
            hint="write it as `unix:///run/user/1000/wander.sock`",
        )
    return path


def parse_listen(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, where port 0 means any free one; raises `ConfigError`."""
    try:
        found = urlsplit(f"//{text}")
        host, port = found.hostname, found.port
    except ValueError:
        host = port = None
    if host is None or port is None or found.path:
        hint = "write HOST:PORT, e.g. `127.0.0.1:7100`, or `unix:///PATH` of a socket"
        raise ConfigError(f"`{text}` is no address to listen on", hint=hint)
    return host, port


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
