"""Clients that answer from stored rollouts.

`ReplayClient` returns recorded completions, so that a stored rollout is replayed. `TranscriptClient` returns
whole recorded rollouts, so that they are only scored again. Use it for environments that cannot repeat a
rollout because it depends on outside observations. The rubric then runs on the transcript, with the answers
of judges and other models taken from the record.
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
    """Base of clients that answer from stored rollouts, including the answers of judges and other models.

    If an answer is not on record, it raises an error that looks like any failure of a model, because an
    environment in this process sees the error and must not detect the replay. An environment in a worker gets
    no answer at all. `missing` holds the reason for the host.
    """

    draws = False

    def __init__(self, rollouts: dict[str, Rollout], model: str) -> None:
        self.model = model
        self._rollouts = rollouts
        self.missing: dict[str, str] = {}
        """Descriptions of answers that rollouts asked for, but that are not on record, by rollout id."""

    def _info(self, rollout_id: str) -> dict[str, Any]:
        rollout = self._rollouts.get(rollout_id)
        return {} if rollout is None else rollout.info

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return a judge's recorded answer, or whether the recorded rollout timed out at this point."""
        info = self._info(rollout_id)
        if about == "timeout":
            # None rather than False, because an evaluation returns None as well.
            return True if info.get("timeout_reached") == key else None
        for entry in _objects(info.get(JUDGE_ANSWERS)):
            if entry.get("digest") == key and "answer" in entry:
                return str(entry["answer"])
        raise self._lack(rollout_id, "the record has no answer of the judge to this request")

    def lack(self, rollout_id: str) -> str | None:
        """Return the answer that the rollout asked for and its record lacks, if any."""
        return self.missing.get(main_rollout_id(rollout_id))

    def outside_calls(self, rollout_id: str) -> list[dict[str, Any]] | None:
        """Return the recorded calls to other models."""
        return _objects(self._info(rollout_id).get(OUTSIDE_CALLS))

    def _lack(self, rollout_id: str, what: str) -> ModelError:
        self.missing[main_rollout_id(rollout_id)] = what
        return ModelError("the model did not answer")


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list from an untrusted record, or an empty list for any other value."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


class ReplayClient(RecordClient):
    """Answers with the recorded turns of stored rollouts: message, finish reason, usage and tokens.

    A rollout has the id `prefix` + `example_id/index`. Model calls by code inside a rollout
    (`wander.clients.sub_calls`) are answered like separate rollouts. If the model failed or its context
    overflowed when the rollout was recorded, the replay raises the same error.

    With `lines`, the environment makes the recorded choices (`wander.clients.choices`), as an exhaustive run
    requires. Without it, the environment makes its own choices, so that a submitter cannot select favorable
    ones. Players in `scripts` are run again for the same reason.
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
        """Create the client; `model` is the model name that the environment sees."""
        super().__init__(
            {f"{prefix}{rollout.example_id}/{rollout.index}": rollout for rollout in rollouts}, model
        )
        self.scripts = scripts or {}
        self._lines = lines
        for rollout_id, rollout in list(self._rollouts.items()):
            for path, played in sub_rollouts(rollout).items():
                self._rollouts[sub_call_id(rollout_id, path)] = played

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded completion; raises `ModelError` if the record does not contain the turn."""
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
        if turn.message.get("role") != "assistant":  # otherwise a forged turn could imitate a tool's result
            raise self._lack(request.rollout_id, f"the recorded turn {request.turn + 1} is not the model's")
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
        """Return the recorded choices of the environment if this client replays lines."""
        line = self._info(rollout_id).get(LINE) if self._lines else None
        return None if line is None else ask_for_recorded(line)


class TranscriptClient(RecordClient):
    """Returns the transcripts of stored rollouts, by the id `example_id/index`."""

    def __init__(self, rollouts: Iterable[Rollout], model: str = "transcript") -> None:
        super().__init__({f"{rollout.example_id}/{rollout.index}": rollout for rollout in rollouts}, model)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Raise `ModelError`, because rescoring never calls the model."""
        raise ModelError(f"rollout `{request.rollout_id}` is scored from its transcript, not played")

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript of the recorded rollout."""
        rollout = self._rollouts.get(rollout_id)
        return None if rollout is None else Transcript.of(rollout)
