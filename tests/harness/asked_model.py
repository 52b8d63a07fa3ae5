"""A model that looks remote to an environment, so a replay cannot call it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wander import ScriptedClient
from wander.clients.base import Client, ModelRequest, ModelResponse


class AskedModel(Client):
    """Gives scripted replies without being a scripted model."""

    def __init__(self, replies: Sequence[Any] | Callable[..., Any], model: str = "asked") -> None:
        self.model = model
        self._client = ScriptedClient(replies, model)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self._client.complete(request)
