"""The client of an endpoint that was started for the evaluation alone."""

from __future__ import annotations

from typing import Any

from wander.clients.openai import OpenAIClient

_SECONDS = 600.0


class ServedClient(OpenAIClient):
    """Asks a server whose address means nothing once it has ended; what it is made of stands in its place.

    `server` says engine, version and arguments; `weights_sha256` is the digest of a local checkpoint.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        server: dict[str, Any],
        weights_sha256: str | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(model, base_url, "", timeout=timeout or _SECONDS)
        self._server = server
        self._weights_sha256 = weights_sha256

    def describe(self) -> dict[str, Any]:
        """Return model, weights and server; the kind is that of any endpoint."""
        return {
            "kind": OpenAIClient.__name__,
            "model": self.model,
            "weights_sha256": self._weights_sha256,
            "server": self._server,
        }
