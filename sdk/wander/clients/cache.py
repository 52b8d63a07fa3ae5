"""A cache of endpoint answers between runs, keyed by the digest of the complete request.

The cache is off unless a caller wraps its client in `CachingClient`. Greedy answers (temperature 0) are
shared by all rollouts. Sampled answers are stored per rollout and turn, because the digest includes the
request's derived seed: two rollouts of an example never share an answer, but a repeated run gets its own
answers again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import zstandard

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.errors import ConfigError
from wander.types import canonical_json

_FORMAT = 1
"""Version of the format, which is part of every digest so that entries in another format are never read."""
_WAIT_SECONDS = 30.0
"""Seconds to wait for another process that is writing to the file."""
_MADE = "CREATE TABLE IF NOT EXISTS responses (digest BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID"


class ResponseCache:
    """Responses by digest in one SQLite file, which several processes may share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: sqlite3.Connection | None = None

    def get(self, digest: bytes) -> ModelResponse | None:
        """Return the response for a digest, or None if the entry is missing or unreadable."""
        row = self._run("SELECT body FROM responses WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return None
        try:
            return ModelResponse.model_validate_json(zstandard.decompress(row[0]))
        except (ValueError, zstandard.ZstdError):
            return None

    def put(self, digest: bytes, response: ModelResponse) -> None:
        """Store a response, replacing any response with the same digest."""
        body = zstandard.compress(response.model_dump_json().encode())
        self._run("INSERT OR REPLACE INTO responses VALUES (?, ?)", (digest, body))

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _run(self, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        try:
            if self._opened is None:
                self._opened = self._open()
            return self._opened.execute(statement, values)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"cannot use the response cache `{self.path}`: {error}",
                hint="remove the file, or leave `cache` out",
            ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Only the user may read the file, because prompts can be confidential.
        self.path.touch(mode=0o600, exist_ok=True)
        opened = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
        try:
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute("PRAGMA synchronous = NORMAL")
            opened.execute(_MADE)
        except BaseException:
            opened.close()
            raise
        return opened


class CachingClient(WrappedClient):
    """Answers from a cache, and stores the wrapped client's answers in it. Errors are not stored."""

    def __init__(self, client: Client, cache: ResponseCache) -> None:
        super().__init__(client)
        self._cache = cache
        description = client.describe()
        self._identity = {name: description.get(name) for name in _IDENTITY}

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion, marked as cached if it comes from the cache."""
        digest = self.digest(request)
        if (cached := self._cache.get(digest)) is not None:
            return cached.model_copy(update={"cached": True, "seconds": None})
        response = await super().complete(request)
        self._cache.put(digest, response)
        return response

    def digest(self, request: ModelRequest) -> bytes:
        """Return the digest of model, endpoint, messages, tools, sampling and, unless greedy, the seed."""
        key = {
            "format": _FORMAT,
            **self._identity,
            "messages": request.messages,
            "tools": request.tools,
            "sampling": request.sampling.given(),
            "seed": None if request.sampling.temperature == 0 else request.seed,
        }
        return hashlib.sha256(canonical_json(key).encode("utf-8", "surrogatepass")).digest()

    def describe(self) -> dict[str, Any]:
        """Return the client's facts about its endpoint, and a note that a cache is used."""
        return {**super().describe(), "response_cache": True}

    async def close(self) -> None:
        """Close the client and the cache."""
        self._cache.close()
        await self._client.close()


_IDENTITY = ("kind", "model", "base_url", "revision", "weights_sha256", "chat_template_sha256")
"""Fields of a client's description that identify the model."""
