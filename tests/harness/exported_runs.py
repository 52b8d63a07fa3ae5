"""A run in memory with everything that a conversation can contain, for the formats of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wander.evals.stats.summary import summarize
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_manifest
from wander.types import (
    EnvironmentInfo,
    Example,
    Failure,
    RewardFunctionInfo,
    Rollout,
    SamplingArgs,
    Turn,
    TurnTokens,
    Usage,
)
from wander.wire import EnvironmentPin, ModelPin
from wander.wire.run_record import Spending, TokenPrices

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a thing.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "description": "the thing"}},
            "required": ["at"],
        },
    },
}


def _call(number: str, arguments: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": "look", "arguments": arguments}}


PROMPT = [
    {"role": "system", "content": "You see with a tool."},
    {"role": "user", "content": [{"type": "text", "text": "what is it? "}, {"type": "text", "text": "ünï"}]},
]
COMPLETION = [
    {"role": "assistant", "content": None, "tool_calls": [_call("c1", '{"at": "it"}'), _call("c2", "{oops")]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cup"},
    {"role": "tool", "tool_call_id": "c2", "content": "not JSON"},
    {"role": "assistant", "content": "a cup", "reasoning_content": "it has a handle"},
    {"role": "user", "content": "sure?", "name": "judge"},
    {"role": "assistant", "content": "yes"},
]
PLAIN_PROMPT = [{"role": "user", "content": "2 + 2?"}]
PLAIN_COMPLETION = [{"role": "assistant", "content": "4"}]


USAGE = Usage(prompt_tokens=30, completion_tokens=9, cached_tokens=20, reasoning_tokens=6)
PRICES = TokenPrices(prompt=10, completion=20, cached=1)


class SummarizedRun:
    """A run folder with its summary as an attribute."""

    def __init__(self, folder: RunFolder) -> None:
        self.manifest = folder.manifest
        self.rollouts = folder.rollouts
        self.summary = summarize(folder.rollouts(), expected=folder.manifest.expected_rollouts)


class ConversationRun:
    """A run of a tool environment: each example is one call of tools, one plain answer and one failure."""

    def __init__(self, examples: int = 2, *, text: str = "", model: str = "org/model-1") -> None:
        info = EnvironmentInfo(
            name="cups",
            kind="tool",
            max_turns=5,
            reward_functions=[
                RewardFunctionInfo(name="won", weight=1.0),
                RewardFunctionInfo(name="of/odd name", weight=0.0),
            ],
        )
        pin = EnvironmentPin(owner="alice", name="cups", version="1.2", arguments={"size": 3}, info=info)
        rows = [Example(example_id=f"cup/{n}", index=n, seed=n, prompt=[]) for n in range(examples)]
        self.manifest = new_manifest(
            environment=pin,
            model=ModelPin(name=model, kind="endpoint", base_url="https://models.example/v1"),
            examples=rows,
            rollouts_per_example=3,
            sampling=SamplingArgs(temperature=0.5, max_tokens=100, stop=["END"], min_p=0.1),
        )
        self.manifest.spending = Spending(prices=PRICES)
        self.text = text
        self.summary = summarize(self.rollouts(), expected=3 * examples)

    def rollouts(self) -> Iterator[Rollout]:
        for number in range(len(self.manifest.example_ids)):
            yield self._tools(number)
            yield self._plain(number)
            yield self._failed(number)

    def _rollout(self, number: int, index: int, **values: Any) -> Rollout:
        fields = {
            "answer": "4",
            "started_at": "2026-01-02T03:04:05+00:00",
            "seconds": 1.5,
            "stop_reason": "answered",
            "usage": USAGE,
            **values,
        }
        return Rollout(example_id=f"cup/{number}", index=index, seed=number, **fields)

    def _tools(self, number: int) -> Rollout:
        completion = [*COMPLETION[:1], {**COMPLETION[1], "content": "a cup" + self.text}, *COMPLETION[2:]]
        tokens = TurnTokens(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5])
        turns = [
            Turn(
                message=completion[position - 2],
                context_messages=position,
                finish_reason=reason,
                usage=Usage(prompt_tokens=10, completion_tokens=3),
                model_seconds=0.25,
                tokens=tokens,
            )
            for position, reason in ((2, "tool_calls"), (5, "stop"), (7, "length"))
        ]
        return self._rollout(
            number,
            0,
            prompt=PROMPT,
            completion=completion,
            turns=turns,
            tools=[TOOL],
            answer={"any": [number]},
            info={"board": [number, None]},
            reward=0.25 * (number % 5),
            metrics={"won": 0.25 * (number % 5), "of/odd name": 1.0},
            stop_reason="max_turns_reached",
            truncated=True,
        )

    def _plain(self, number: int) -> Rollout:
        turn = Turn(message=PLAIN_COMPLETION[0], context_messages=1, usage=USAGE)
        return self._rollout(
            number,
            1,
            prompt=PLAIN_PROMPT,
            completion=PLAIN_COMPLETION,
            turns=[turn],
            reward=1.0,
            metrics={"won": 1.0},
        )

    def _failed(self, number: int) -> Rollout:
        failure = Failure(boundary="model", type="Timeout", message="no answer in 60 s", retryable=True)
        return self._rollout(
            number, 2, prompt=PLAIN_PROMPT, completion=[], failure=failure, stop_reason=None, usage=Usage()
        )
