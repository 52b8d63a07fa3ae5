"""Clients that hand back what was recorded.

`ReplayClient` gives recorded completions, so that a stored rollout is played again. `TranscriptClient` gives
whole recorded rollouts, so that they are only scored again. That is for environments that cannot play a
rollout twice, since outside observations enter it: their rubric runs on the transcript, with what judges and
other models answered taken from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wander.clients.base import (
    JUDGE_ANSWERS,
    OUTSIDE_CALLS,
    Client,
    ModelRequest,
    ModelResponse,
    Recollection,
    Transcript,
)
from wander.clients.choices import LINE, ask_for_recorded
from wander.clients.sub_calls import main_rollout_id, sub_call_id, sub_rollouts
from wander.errors import ContextOverflow, ModelError
from wander.types import Rollout, copy_json


class RecordClient(Client):
    """Knows stored rollouts by their ids, and what others than their own model answered in them.

    What it raises for something that is not on record reads like any failure of a model, since an environment
    in this process sees it. An environment in a worker gets no answer at all. `missing` tells the host why.
    """

    draws = False

    def __init__(self, rollouts: dict[str, Rollout], model: str) -> None:
        self.model = model
        self._rollouts = rollouts
        self.missing: dict[str, str] = {}
        """Of each rollout that asked for something that its record does not have: what that was."""

    def _info(self, rollout_id: str) -> dict[str, Any]:
        rollout = self._rollouts.get(rollout_id)
        return {} if rollout is None else rollout.info

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return a judge's recorded answer, or whether the recorded rollout ran out of time here."""
        info = self._info(rollout_id)
        if about == "timeout":
            return True if info.get("timeout_reached") == key else None  # None, as in an evaluation
        for entry in _objects(info.get(JUDGE_ANSWERS)):
            if entry.get("digest") == key and "answer" in entry:
                return str(entry["answer"])
        raise self._lack(rollout_id, "the record has no answer of the judge to this request")

    def lack(self, rollout_id: str) -> str | None:
        """Return what the rollout asked for that its record does not have."""
        return self.missing.get(main_rollout_id(rollout_id))

    def outside_calls(self, rollout_id: str) -> list[dict[str, Any]] | None:
        """Return the recorded calls of other models."""
        return _objects(self._info(rollout_id).get(OUTSIDE_CALLS))

    def _lack(self, rollout_id: str, what: str) -> ModelError:
        self.missing[main_rollout_id(rollout_id)] = what
        return ModelError("the model did not answer")


def _objects(found: Any) -> list[dict[str, Any]]:
    """Return the objects of a list that anyone may have written."""
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


class ReplayClient(RecordClient):
    """Answers with the recorded turns of stored rollouts: message, finish reason, usage and tokens.

    A rollout is found by the id `prefix` + `example_id/index`, a turn by its number; model calls that the
    code in a rollout made (`wander.clients.sub_calls`) are answered like rollouts of their own. Where the
    model failed or ran out of context when the rollout was recorded, it does so again.

    With `lines` the environment makes the choices that are on record (`wander.clients.choices`), as is
    right for an exhaustive run. Else it makes its own: nobody may choose the replies that an evaluation met.
    Players of `scripts` play anew, for the same reason.
    """

    def __init__(
        self,
        rollouts: Iterable[Rollout],
        model: str = "replay",
        prefix: str = "",
        *,
        lines: bool = False,
        scripts: Mapping[str, str] | None = None,
    ) -> None:
        """`model` is the name that the environment sees: in a replay the one that the run states."""
        super().__init__(
            {f"{prefix}{rollout.example_id}/{rollout.index}": rollout for rollout in rollouts}, model
        )
        self.scripts = scripts or {}
        self._lines = lines
        for rollout_id, rollout in list(self._rollouts.items()):
            for path, played in sub_rollouts(rollout).items():
                self._rollouts[sub_call_id(rollout_id, path)] = played

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded completion; raises `ModelError` if the record has no such turn."""
        rollout = self._rollouts.get(request.rollout_id)
        if rollout is None:
            raise self._lack(request.rollout_id, f"there is no record of rollout `{request.rollout_id}`")
        if request.turn >= len(rollout.turns):
            if rollout.stop_reason == "context_overflow":
                raise ContextOverflow("the conversation is longer than the model's context")
            if rollout.failure is not None and rollout.failure.boundary == "model":
                raise ModelError(rollout.failure.message, retryable=rollout.failure.retryable)
            raise self._lack(
                request.rollout_id,
                f"the rollout asks for turn {request.turn + 1}, and its record has {len(rollout.turns)}",
            )
        turn = rollout.turns[request.turn]
        if turn.message.get("role") != "assistant":  # else a model could speak for a tool
            raise self._lack(request.rollout_id, f"turn {request.turn + 1} on record is not the model's")
        return ModelResponse.assemble(
            message=copy_json(turn.message),
            finish_reason=turn.finish_reason,
            usage=turn.usage,
            tokens=turn.tokens,
            left_out=turn.left_out,
            seconds=None,
            cached=False,
        )

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the recorded choices of the environment, where they are made for it again."""
        line = self._info(rollout_id).get(LINE) if self._lines else None
        return None if line is None else ask_for_recorded(line)


class TranscriptClient(RecordClient):
    """Gives stored rollouts, found by the id `example_id/index`."""

    def __init__(self, rollouts: Iterable[Rollout], model: str = "transcript") -> None:
        super().__init__({f"{rollout.example_id}/{rollout.index}": rollout for rollout in rollouts}, model)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Raise `ModelError`: what is only scored again asks no model."""
        raise ModelError(f"rollout `{request.rollout_id}` is scored from its transcript, not played")

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript of the recorded rollout, which is to be scored again."""
        rollout = self._rollouts.get(rollout_id)
        return None if rollout is None else Transcript.of(rollout)
