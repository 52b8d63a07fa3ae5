"""A client that gives whole recorded rollouts, so that they are not played but only scored again.

This is for environments that cannot play a rollout twice, since outside observations enter it: their rubric
runs on the transcript, with what judges and other models answered taken from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ModelError
from wander.types import Rollout


class TranscriptClient(Client):
    """Gives stored rollouts, found by the id `example_id/index`."""

    def __init__(self, rollouts: Iterable[Rollout], model: str = "transcript") -> None:
        self.model = model
        self._rollouts = {f"{each.example_id}/{each.index}": each for each in rollouts}

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Raise `ModelError`: what is only scored again asks no model."""
        raise ModelError(f"rollout `{request.rollout_id}` is scored from its transcript, not played")

    def recorded(self, rollout_id: str) -> dict[str, Any] | None:
        """Return what the recorded rollout published."""
        rollout = self._rollouts.get(rollout_id)
        return None if rollout is None else rollout.info

    def transcript(self, rollout_id: str) -> Rollout | None:
        """Return the recorded rollout that is to be scored again."""
        return self._rollouts.get(rollout_id)


def transcript_of(client: Client, rollout_id: str) -> Rollout | None:
    """Return the recorded rollout that a client wants scored again, or None: it is to be played."""
    ask: Callable[[str], Rollout | None] | None = getattr(client, "transcript", None)
    return None if ask is None else ask(rollout_id)
