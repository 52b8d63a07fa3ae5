"""Rubrics: weighted reward functions whose parameters are injected by name.

A reward function that raises, or returns something that is not a finite number, makes the rollout's reward
None and is recorded as a failure of the rubric; it never becomes a silent 0.0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wander.errors import ConfigError, RubricError
from wander.parsers import Parser
from wander.rollout.faults import is_fault
from wander.rollout.hooks import PLAIN, described
from wander.rubrics.group_functions import group_scores, is_group_function
from wander.rubrics.score import Score, checked_reward
from wander.types import RewardFunctionInfo, State

RewardResult = float | Awaitable[float]
"""What a reward function gives: a finite number (a boolean counts as 0 or 1), or an awaitable of one."""

INJECTED = ("prompt", "completion", "answer", "state", "info", "parser", "example", "task")


@dataclass(frozen=True)
class RewardFunction:
    """A function with its weight and the parameters that it asks for."""

    name: str
    function: Callable[..., Any]
    weight: float
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_all: bool
    """True when the function has `**kwargs` and so gets every value there is."""
    of_group: bool = False
    """True when the function scores the rollouts of a group at once."""

    @classmethod
    def of(cls, function: Callable[..., Any], weight: float) -> RewardFunction:
        """Inspect a function once; its parameters are looked up by name for every rollout."""
        if not callable(function):
            raise ConfigError(f"a reward function must be callable, got `{function!r}`")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"the weight of `{function_name(function)}` must be a number, got `{weight!r}`")
        required: list[str] = []
        optional: list[str] = []
        takes_all = False
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_all = True
            elif parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigError(f"`{function_name(function)}` has the positional-only parameter `{name}`")
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                (required if parameter.default is parameter.empty else optional).append(name)
        return cls(
            function_name(function),
            function,
            float(weight),
            tuple(required),
            tuple(optional),
            takes_all,
            is_group_function(function),
        )

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Pick this function's arguments; raises `RubricError` for a name that nothing provides."""
        missing = [name for name in self.required if name not in values]
        if missing:
            raise RubricError(
                f"reward function `{self.name}` asks for `{missing[0]}`, which no rollout provides",
                hint=f"available are {', '.join(f'`{name}`' for name in values)}",
            )
        if self.takes_all:
            return dict(values)
        arguments = {name: values[name] for name in self.required}
        if self.optional:
            arguments |= {name: values[name] for name in self.optional if name in values}
        return arguments

    async def value(self, values: Mapping[str, Any]) -> float:
        """Call the function; raises `RubricError` when it raises or gives no finite number."""
        if self.of_group:
            raise RubricError(
                f"reward function `{self.name}` compares the rollouts of a group; this one has none",
                hint="play the example with `rollout_group`",
            )
        arguments = self.arguments(values)
        try:
            result = self.function(**arguments)
            if type(result) not in PLAIN and inspect.isawaitable(result):
                result = await result
        except RubricError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            raise RubricError(described(error, self.name)) from error
        return checked_reward(result, self.name)


class Rubric:
    """An ordered set of reward functions with weights (1.0 each unless given)."""

    def __init__(
        self,
        funcs: Sequence[Callable[..., Any]] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
    ) -> None:
        funcs = list(funcs or [])
        weights = [1.0] * len(funcs) if weights is None else list(weights)
        if len(weights) != len(funcs):
            raise ConfigError(f"a rubric with {len(funcs)} reward functions was given {len(weights)} weights")
        self.parser = parser
        self.functions: list[RewardFunction] = []
        for function, weight in zip(funcs, weights, strict=True):
            self.add_reward_func(function, weight)

    def add_reward_func(self, func: Callable[..., Any], weight: float = 1.0) -> None:
        """Add a function to the weighted sum; raises `ConfigError` when its name is taken."""
        added = RewardFunction.of(func, weight)
        if any(function.name == added.name for function in self.functions):
            raise ConfigError(
                f"the rubric already has a reward function `{added.name}`",
                hint="its value is reported under its name, so names must be unique: rename one of the two",
            )
        self.functions.append(added)

    def add_metric(self, func: Callable[..., Any]) -> None:
        """Add a function that is reported but does not count: a reward function of weight 0."""
        self.add_reward_func(func, weight=0.0)

    @property
    def funcs(self) -> list[Callable[..., Any]]:
        """The functions, in order."""
        return [each.function for each in self.functions]

    @property
    def weights(self) -> list[float]:
        """Their weights, in the same order."""
        return [each.weight for each in self.functions]

    def describe(self) -> list[RewardFunctionInfo]:
        """Return name and weight of every function, in order."""
        return [RewardFunctionInfo(name=each.name, weight=each.weight) for each in self.functions]

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Run every function on a finished rollout; `parser` is injected where the rubric has none.

        All functions run even when one fails, so that the metrics are as complete as they can be.
        """
        values = self.injected(state, parser)
        score = Score(reward=0.0)
        total = 0.0
        for function in self.functions:
            try:
                value = await function.value(values)
            except RubricError as error:
                score.error = score.error or error
                continue
            score.metrics[function.name] = value
            total += function.weight * value
        score.reward = None if score.error else total
        return score

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Run every function on the finished rollouts of one example, so that some may compare them."""
        return await group_scores(self.functions, [self.injected(state, parser) for state in states])

    @property
    def has_group_functions(self) -> bool:
        """Whether rollouts can only be scored together with the others of their example."""
        return any(function.of_group for function in self.functions)

    def injected(self, state: State, parser: Parser | None = None) -> dict[str, Any]:
        """Return what the functions may ask for by name; a kind of rubric adds its own to it."""
        return injected_values(state, self.parser or parser)

    async def close(self) -> None:
        """Free what the rubric holds; called when its environment is closed."""


def injected_values(state: State, parser: Parser | None) -> dict[str, Any]:
    """Return everything that a reward function may ask for by name.

    The rollout's own values win over dataset columns of the same name.
    """
    example = state.example
    return {
        "task": "default",
        **example.columns,
        "prompt": state.prompt,
        "completion": state.completion,
        "answer": state["answer"],
        "state": state,
        "info": state["info"],
        "parser": parser,
        "example": example,
    }


def function_name(function: Callable[..., Any]) -> str:
    """Return the name under which a function's value is reported."""
    name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None)
    return name or type(function).__name__
