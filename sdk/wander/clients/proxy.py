"""The client inside a worker: every model call goes to the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.types import Rollout

Ask = Callable[[ModelRequest], Awaitable[ModelResponse]]


class ProxyClient(Client):
    """Hands requests to `ask`, which carries them to the host and raises the host's `ModelError`."""

    def __init__(
        self,
        ask: Ask,
        model: str,
        recorded: Mapping[str, dict[str, Any] | None] | None = None,
        ended: Callable[[str], None] | None = None,
        transcripts: Mapping[str, Rollout] | None = None,
    ) -> None:
        self.model = model
        self._ask = ask
        self._recorded = recorded or {}
        self._ended = ended
        self._transcripts = transcripts or {}

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return what the host's client answered."""
        return await self._ask(request)

    def end(self, rollout_id: str) -> None:
        """Tell the host that a rollout makes no more calls."""
        if self._ended is not None:
            self._ended(rollout_id)

    def recorded(self, rollout_id: str) -> dict[str, Any] | None:
        """Return what the host's client has on record of the rollout."""
        return self._recorded.get(rollout_id)

    def transcript(self, rollout_id: str) -> Rollout | None:
        """Return the recorded rollout that the host wants scored again, or None for one to be played."""
        return self._transcripts.get(rollout_id)
