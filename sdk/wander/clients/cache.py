"""Answers of endpoints, kept between runs by the digest of everything that was asked.

Off unless a caller wraps its client. What was asked greedily (temperature 0) has one answer for everybody;
what was sampled is kept for its very rollout and turn, by the request's derived seed, so that two rollouts of
one example never get the same answer because of the cache, and the same run asked again gets its own.
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
"""Part of every digest: what an older release kept in another form is never found."""
_WAIT_SECONDS = 30.0
"""How long to wait for another process that writes."""
_MADE = "CREATE TABLE IF NOT EXISTS responses (digest BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID"


class ResponseCache:
    """Responses by digest in one SQLite file, which several processes may share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: sqlite3.Connection | None = None

    def get(self, digest: bytes) -> ModelResponse | None:
        """Return what is kept under a digest; an entry that cannot be read counts as none."""
        row = self._run("SELECT body FROM responses WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return None
        try:
            return ModelResponse.model_validate_json(zstandard.decompress(row[0]))
        except (ValueError, zstandard.ZstdError):
            return None

    def put(self, digest: bytes, response: ModelResponse) -> None:
        """Keep a response; what was kept before under the digest makes room."""
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
                f"the cache of responses `{self.path}` cannot be used: {error}",
                hint="remove the file, or leave `cache` out",
            ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # What models were asked may be nobody else's business.
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
    """Answers from a cache; what that lacks the client is asked for, and its answers, no errors, are kept."""

    def __init__(self, client: Client, cache: ResponseCache) -> None:
        super().__init__(client)
        self._cache = cache
        described = client.describe()
        self._asked = {name: described.get(name) for name in _IDENTITY}

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion, marked where it comes from the cache."""
        digest = self.digest(request)
        if (kept := self._cache.get(digest)) is not None:
            return kept.model_copy(update={"cached": True, "seconds": None})
        response = await super().complete(request)
        self._cache.put(digest, response)
        return response

    def digest(self, request: ModelRequest) -> bytes:
        """Return the digest of model, endpoint, messages, tools, sampling and, where it draws, the seed."""
        asked = {
            "format": _FORMAT,
            **self._asked,
            "messages": request.messages,
            "tools": request.tools,
            "sampling": request.sampling.given(),
            "seed": None if request.sampling.temperature == 0 else request.seed,
        }
        return hashlib.sha256(canonical_json(asked).encode("utf-8", "surrogatepass")).digest()

    def describe(self) -> dict[str, Any]:
        """Return what the client says about its endpoint, and that there is a cache before it."""
        return {**super().describe(), "response_cache": True}

    async def close(self) -> None:
        """Close the client and the cache."""
        self._cache.close()
        await self._client.close()


_IDENTITY = ("kind", "model", "base_url", "revision", "weights_sha256", "chat_template_sha256")
"""Which model, by what its client says of itself."""
