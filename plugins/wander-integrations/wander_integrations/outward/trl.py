"""An environment as the `environment_factory` of TRL's `GRPOTrainer`, which drives the loop with tool calls.

    env = wander.load("admin/math-tools")
    trainer = GRPOTrainer(model, reward_funcs=trl_reward, train_dataset=trl_rows(env, 1000),
                          environment_factory=trl_environment_factory(env))

For environments without tools, use the `rollout_func` of the environment that `wander.load` returns. It plays
their turns directly.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from wander.errors import require_extra
from wander.parsers import message_text
from wander.types import Message

from wander_integrations.episodes import Episode, EpisodeFailed, Steppable

if TYPE_CHECKING:
    from datasets import Dataset
    from wander.handle import Split

_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_REPLY = {
    "name": "reply",
    "description": "Say something to the environment and read what it answers.",
    "parameters": {
        "properties": {"text": {"type": "string", "description": "What to say."}},
        "required": ["text"],
    },
}
"""The tool of environments without tools."""


def trl_rows(environment: Steppable, count: int, *, split: Split = "train") -> Dataset:
    """Return the first examples of a split as a `train_dataset`. `reset` gets their position."""
    with require_extra("trl", needed_for="training with TRL", of="wander-integrations"):
        from datasets import Dataset
    examples = environment.dataset(split)
    return Dataset.from_list(
        [{"prompt": list(examples[place].prompt), "position": place} for place in range(count)]
    )


def trl_environment_factory(
    environment: Steppable, *, split: Split = "train", run_seed: int = 0
) -> type[ToolPlayer]:
    """Return a class. TRL makes an instance of it for each rollout of a batch.

    Its methods are the tools that the first example offers, or `reply` if it offers none.
    """
    first = Episode(environment, split=split, run_seed=run_seed)
    first.begin()
    offered = [each["function"] for each in first.tools]
    first.close()
    methods = {each["name"]: _method(each) for each in offered or [_REPLY]}
    return type(
        "WanderToolPlayer",
        (ToolPlayer,),
        {
            **methods,
            "_environment": environment,
            "_split": split,
            "_run_seed": run_seed,
            "_numbers": itertools.count(),
        },
    )


def trl_reward(
    completions: list[list[Message]], environments: list[ToolPlayer], **unused: Any
) -> list[float | None]:
    """Pass the model's last message to each environment, and return the rewards of the episodes.

    The reward is None if the episode failed, or if the model stopped before its end.
    """
    return [player._finish(completion) for player, completion in zip(environments, completions, strict=True)]


class ToolPlayer:
    """Plays episodes with TRL's tool calls. `trl_environment_factory` makes a subclass with the tools."""

    _environment: ClassVar[Steppable]
    _split: ClassVar[Split]
    _run_seed: ClassVar[int]
    _numbers: ClassVar[itertools.count[int]]

    def __init__(self) -> None:
        self._number = next(self._numbers)
        self._episode: Episode | None = None

    def reset(self, position: int = 0, **unused: Any) -> None:
        """Begin the episode of a row. The row's prompt has the first messages."""
        if self._episode is not None:
            self._episode.close()
        self._episode = Episode(
            self._environment, position, split=self._split, index=self._number, run_seed=self._run_seed
        )
        self._episode.begin()

    def _say(self, message: str | Message) -> str:
        """Return the environment's answer. TRL shows errors to the model."""
        if self._episode is None or self._episode.done:
            raise RuntimeError("the episode is over")
        return "\n".join(message_text(each) for each in self._episode.step(message))

    def _finish(self, completion: list[Message]) -> float | None:
        if self._episode is None:
            return None
        last = completion[-1] if completion else {}
        if not self._episode.done and last.get("role") == "assistant" and not last.get("tool_calls"):
            try:
                self._episode.step(message_text(last))
            except EpisodeFailed:
                return None
        self._episode.close()
        return self._episode.reward


def _method(function: dict[str, Any]) -> Callable[..., str]:
    """Return a method with a tool's name, signature and description. TRL reads its schema."""
    name, parameters = function["name"], function.get("parameters", {})
    required = parameters.get("required", [])
    listed = sorted(parameters.get("properties", {}).items(), key=lambda item: item[0] not in required)

    def call(self: ToolPlayer, /, **arguments: Any) -> str:
        if function is _REPLY:
            return self._say(str(arguments["text"]))
        number = len(self._episode.messages) if self._episode is not None else 0
        called = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": f"call_{number}", "type": "function", "function": called}]
        return self._say({"role": "assistant", "content": "", "tool_calls": calls})

    kinds = {each: next(_kinds(schema), str) for each, schema in listed}
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made = [
        inspect.Parameter(
            each,
            keyword,
            annotation=kinds[each],
            default=inspect.Parameter.empty if each in required else schema.get("default"),
        )
        for each, schema in listed
    ]
    said = "\n".join(f"    {each}: {schema.get('description', each)}" for each, schema in listed)
    call.__name__ = call.__qualname__ = name
    call.__annotations__ = {**kinds, "return": str}
    call.__doc__ = f"{function.get('description') or name}\n\nArgs:\n{said}\n" if listed else name
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", keyword), *made], return_annotation=str
    )
    return call


def _kinds(schema: dict[str, Any]) -> Iterator[type]:
    """Yield the types that a schema allows, except `null`. A schema with `null` is a list or an `anyOf`."""
    named = schema.get("type", [])
    yield from (_TYPES[each] for each in ([named] if isinstance(named, str) else named) if each in _TYPES)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _kinds(choice)
