"""Address of a worker on another machine, and the token that it requires."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from wander.errors import ConfigError

_SHORTEST_TOKEN = 16
_EXAMPLE = "openssl rand -hex 32"


class WorkerPlace(Protocol):
    """Source of a worker's address, which is queried before each connection."""

    async def find(self) -> WorkerAddress:
        """Return the worker's current address. Raises `LoadError`."""
        ...


@dataclass(frozen=True)
class WorkerAddress:
    """Address of a listening worker: `tcp://host:port`, or `unix:///path` for a socket."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    path: str | None = None
    """Path of the Unix socket. If it is set, host and port are unused."""

    @classmethod
    def parse(cls, text: str, token: str | None = None) -> WorkerAddress:
        """Parse `tcp://host:port` or `unix:///path`. Raises `ConfigError`."""
        if (path := parse_socket(text)) is not None:
            return cls("", 0, token, path)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is None or not port or parts.scheme != "tcp" or parts.path not in ("", "/") or parts.username:
            raise ConfigError(
                f"`{text}` is not a worker's address",
                hint="write `tcp://HOST:PORT`, such as `tcp://10.0.0.5:7100`, or `unix:///PATH` for a socket",
            )
        return cls(host, port, token)

    async def find(self) -> WorkerAddress:
        """Return this address."""
        return self

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{_bracket(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """Address as a websocket URL."""
        return "ws://localhost/" if self.path else f"ws://{_bracket(self.host)}:{self.port}/"


def read_token(path: Path) -> str:
    """Read a token from a file. Raises `ConfigError` if it is missing or easy to guess."""
    try:
        token = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the token file `{path}`: {getattr(error, 'strerror', None) or error}",
            hint=f"create one with `{_EXAMPLE} > {path}` and copy it to the other machine",
        ) from error
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or any(character.isspace() for character in token):
        raise ConfigError(
            f"the token in `{path}` must be one word of at least {_SHORTEST_TOKEN} characters",
            hint=f"create one with `{_EXAMPLE} > {path}`",
        )
    return token


def parse_socket(text: str) -> str | None:
    """Return the path in `unix:///path`, or None for other text. Raises `ConfigError`."""
    if not text.startswith("unix:"):
        return None
    path = text.removeprefix("unix://")
    if not path.startswith("/"):
        raise ConfigError(
            f"`{text}` is not the absolute path of a socket",
            hint="write it as `unix:///run/user/1000/wander.sock`",
        )
    return path


def parse_listen(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`. Port 0 means any free port. Raises `ConfigError`."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.path:
        hint = "write HOST:PORT, such as `127.0.0.1:7100`, or `unix:///PATH` for a socket"
        raise ConfigError(f"`{text}` is not an address to listen on", hint=hint)
    return host, port


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
