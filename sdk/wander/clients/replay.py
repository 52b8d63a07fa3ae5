"""Clients that hand back what was recorded.

`ReplayClient` gives recorded completions, so that a stored rollout is played again. `TranscriptClient` gives
whole recorded rollouts, so that they are only scored again. That is for environments that cannot play a
rollout twice, since outside observations enter it: their rubric runs on the transcript, with what judges and
other models answered taken from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.choices import LINE
from wander.clients.sub_calls import sub_call_id, sub_rollouts
from wander.errors import ContextOverflow, ModelError, RecordEnded
from wander.types import Rollout, copy_json


class ReplayClient(Client):
    """Answers with the recorded turns of stored rollouts: message, finish reason, usage and tokens.

    A rollout is found by the id `prefix` + `example_id/index`, a turn by its number; model calls that the
    code in a rollout made (`wander.clients.sub_calls`) are answered like rollouts of their own. Where the
    model failed or ran out of context when the rollout was recorded, it does so again.

    With `lines` the environment makes the choices that are on record (`wander.clients.choices`), as is
    right for an exhaustive run. Else it makes its own: nobody may choose the replies that an evaluation met.
    Players of `scripts` play anew, for the same reason.
    """

    draws = False

    def __init__(
        self,
        rollouts: Iterable[Rollout],
        model: str = "replay",
        prefix: str = "",
        *,
        lines: bool = False,
        scripts: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.scripts = scripts or {}
        self._lines = lines
        self._rollouts = {f"{prefix}{each.example_id}/{each.index}": each for each in rollouts}
        for rollout_id, rollout in list(self._rollouts.items()):
            for path, played in sub_rollouts(rollout).items():
                self._rollouts[sub_call_id(rollout_id, path)] = played

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded completion; raises `RecordEnded` if the record has no such turn."""
        rollout = self._rollouts.get(request.rollout_id)
        if rollout is None:
            raise ModelError(f"there is no record of rollout `{request.rollout_id}`")
        if request.turn >= len(rollout.turns):
            if rollout.stop_reason == "context_overflow":
                raise ContextOverflow("the recorded rollout ran out of context here")
            if rollout.failure is not None and rollout.failure.boundary == "model":
                raise ModelError(rollout.failure.message, retryable=rollout.failure.retryable)
            raise RecordEnded(
                f"the rollout asks for turn {request.turn + 1}, and its record has {len(rollout.turns)}"
            )
        turn = rollout.turns[request.turn]
        return ModelResponse.assemble(
            message=copy_json(turn.message),
            finish_reason=turn.finish_reason,
            usage=turn.usage,
            tokens=turn.tokens,
            left_out=turn.left_out,
            seconds=None,
            cached=False,
        )

    def recorded(self, rollout_id: str) -> dict[str, Any] | None:
        """Return what the recorded rollout published."""
        rollout = self._rollouts.get(rollout_id)
        if rollout is None:
            return None
        return {name: copy_json(value) for name, value in rollout.info.items() if self._lines or name != LINE}


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
