"""The model calls of an agent program, sorted into conversations of a rollout."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from wander.clients.sub_calls import sub_call_id
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.errors import ContextOverflow, ModelError, UnsupportedParameter
from wander.rollout.calls import ModelCalls
from wander.types import Message, SamplingArgs, State, SubCall, Turn, canonical_json

_PASSED_ON = ("response_format", "parallel_tool_calls")
"""Sampling arguments that the program decides, if the model supports them. The rollout decides all others."""


@dataclass
class _Sequence:
    """A conversation: the rollout's own, or a further one that is recorded as a sub-call."""

    calls: ModelCalls
    record: SubCall | None = None
    """Record of a further conversation; None for the rollout's own."""
    known: list[str] = field(default_factory=list)
    """Its messages in the form in which they are compared."""
    is_open: bool = False
    """Whether a call waits for its answer."""
    answered_at: float = 0.0


class AgentCalls:
    """Answers the calls of a program as turns of a rollout.

    A call continues the longest conversation that it extends. Messages of the model are compared by their
    text and calls. They are then replaced by the sampled messages, because programs leave out reasoning.
    """

    def __init__(self, model: ModelCalls, *, main_offers_tools: bool) -> None:
        """`main_offers_tools` is whether calls without tools cannot begin the rollout's own conversation."""
        self.turns: list[Turn] = []
        """Turns of all conversations, in the order of their answers."""
        self.overflowed = False
        """Whether the last call was too long for the model."""
        self._model = model
        self._sampling = model.sampling
        self._main_offers_tools = main_offers_tools
        self._main: _Sequence | None = None
        self._others: list[_Sequence] = []
        self._asked: Counter[str] = Counter()

    async def reply_to(self, call: EndpointCall) -> EndpointReply:
        """Return the model's completion, or a refusal that the program can handle.

        Raises `ModelError` for a failure of the model.
        """
        self._asked[call.model] += 1
        sequence = self._extend(call) or self._begin(call)
        calls = sequence.calls
        tools = None if call.sampling.given().get("tool_choice") == "none" else call.tools
        if sequence.record is not None:
            sequence.record.tools = tools
        sequence.is_open = True
        try:
            sampling = self._sampling_of(call)
            calls.client.check_sampling(sampling)
            calls.sampling = sampling
        except ModelError as error:
            sequence.is_open = False
            return self.refuse(call, str(error))
        try:
            response = await calls.complete(tools)
        except ContextOverflow as error:
            self.overflowed = True
            if sequence.record is not None:
                sequence.record.failure = error.failure()
            return EndpointReply(call_id=call.call_id, refusal=str(error), overflow=True)
        except UnsupportedParameter as error:
            return self.refuse(call, str(error))
        except ModelError as error:
            if sequence.record is not None:
                sequence.record.failure = error.failure()
            raise
        finally:
            sequence.is_open = False
        self.overflowed = False
        sequence.known.append(_compared(response.message))
        sequence.answered_at = time.perf_counter()
        self.turns.append(calls.state.turns[-1])
        return EndpointReply(
            call_id=call.call_id,
            message=response.message,
            finish_reason=response.finish_reason,
            usage=response.usage,
        )

    def refuse(self, call: EndpointCall, reason: str) -> EndpointReply:
        """Return a refusal."""
        return EndpointReply(call_id=call.call_id, refusal=reason)

    def end(self) -> None:
        """Tell the client that the further conversations have ended."""
        for sequence in self._others:
            sequence.calls.end()

    def record(self) -> dict[str, Any]:
        """Return the further conversations and the names of the models that the program asked for."""
        timings = {"turns": {"__all__": {"model_seconds", "environment_seconds"}}}
        records = [sequence.record for sequence in self._others if sequence.record is not None]
        return {
            "models": dict(sorted(self._asked.items())),
            "sub_calls": [record.model_dump(mode="json", exclude=timings) for record in records],
        }

    def _extend(self, call: EndpointCall) -> _Sequence | None:
        """Add the new messages of a call to the longest conversation that it extends."""
        compared = [_compared(message) for message in call.messages]
        fitting = [
            sequence
            for sequence in (*([self._main] if self._main else ()), *self._others)
            if not sequence.is_open and sequence.known == compared[: len(sequence.known)] != compared
        ]
        if not fitting:
            return None
        sequence: _Sequence = max(fitting, key=lambda fit: len(fit.known))
        count = len(sequence.known)
        sequence.calls.state.completion.extend(call.messages[count:])
        sequence.known = compared
        if sequence.calls.state.turns:
            waited = time.perf_counter() - sequence.answered_at
            vars(sequence.calls.state.turns[-1])["environment_seconds"] = waited
        return sequence

    def _begin(self, call: EndpointCall) -> _Sequence:
        known = [_compared(message) for message in call.messages]
        if self._main is None and (call.tools or not self._main_offers_tools):
            self._model.state["prompt"] = call.messages
            self._main = _Sequence(self._model, known=known)
            return self._main
        number = len(self._others) + 1
        rollout = self._model.state
        state = State(
            example=rollout.example,
            prompt=call.messages,
            completion=[],
            turns=[],
            run_seed=rollout.run_seed,
            index=f"{rollout['index']}/sub:{number}",
            truncated=False,
        )
        name = sub_call_id(self._model.rollout_id, str(number))
        calls = ModelCalls(self._model.client, state, self._sampling, name)
        record = SubCall.model_construct(
            path=str(number), depth=1, turn=len(rollout.turns) - 1, prompt=state.prompt, answer=None
        )
        record.completion, record.turns = state.completion, state.turns
        record.failure = record.tools = None
        calls.begin()
        sequence = _Sequence(calls, record, known)
        self._others.append(sequence)
        return sequence

    def _sampling_of(self, call: EndpointCall) -> SamplingArgs:
        """Return the rollout's sampling, with the limits of the call."""
        ours, asked = self._sampling.given(), call.sampling.given()
        for name in _PASSED_ON:
            if name in asked:
                ours[name] = asked[name]
        if asked.get("tool_choice") not in (None, "none"):
            ours["tool_choice"] = asked["tool_choice"]
        if "stop" in asked:
            ours["stop"] = [*ours.get("stop", []), *asked["stop"]]
        limits = [limit for limit in (ours.get("max_tokens"), asked.get("max_tokens")) if limit]
        if limits:
            ours["max_tokens"] = min(limits)
        return SamplingArgs.model_validate(ours)


def _compared(message: Message) -> str:
    """Return a message in the form in which it is compared."""
    if message.get("role") != "assistant":
        return canonical_json(message)
    calls = [
        [call.get("id"), call["function"]["name"], _parsed(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    return canonical_json(["assistant", (message.get("content") or "").strip(), calls])


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
