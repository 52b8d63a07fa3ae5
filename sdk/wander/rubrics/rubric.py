"""Rubrics: weighted reward functions whose parameters are injected by name.

A reward function that raises an error, or does not return a finite number, makes the rollout's reward None.
This is recorded as a failure of the rubric, and never becomes a silent 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wander.errors import ConfigError, RubricError
from wander.parsers import Parser
from wander.rollout.faults import blame
from wander.rubrics.reward_function import PLURALS, RewardFunction
from wander.rubrics.score import Score, check_reward
from wander.types import RewardFunctionInfo, State


class Rubric:
    """An ordered set of reward functions with weights, which default to 1.0."""

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

    def add_reward_func(
        self, func: Callable[..., Any], weight: float = 1.0, bounds: tuple[float, float] | None = None
    ) -> None:
        """Add a function to the weighted sum. Raises `ConfigError` if its name is taken.

        `bounds` are the lowest and highest value that it can return. The default is 0 and 1.
        """
        added = RewardFunction.of(func, weight, bounds)
        if any(function.name == added.name for function in self.functions):
            raise ConfigError(
                f"the rubric already has a reward function `{added.name}`",
                hint="values are reported by function name, so names must be unique: rename one of the two",
            )
        self.functions.append(added)

    def add_metric(self, func: Callable[..., Any], bounds: tuple[float, float] | None = None) -> None:
        """Add a function that is reported but does not count: a reward function of weight 0.

        With `bounds`, the lowest and highest value that it can return, its mean has a narrower interval.
        """
        self.add_reward_func(func, weight=0.0, bounds=bounds)

    @property
    def funcs(self) -> list[Callable[..., Any]]:
        """The functions, in order."""
        return [function.function for function in self.functions]

    @property
    def weights(self) -> list[float]:
        """The weights of the functions, in the same order."""
        return [function.weight for function in self.functions]

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the name and weight of every function, in order."""
        return [
            RewardFunctionInfo(name=function.name, weight=function.weight, bounds=function.bounds)
            for function in self.functions
        ]

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Run every function on a finished rollout. `parser` is injected if the rubric lacks a parser.

        All functions run even if one fails, so that the metrics are as complete as possible.
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
        """Run every function on the finished rollouts of one example, so that functions may compare them.

        If a group function fails, or its result does not match the group, that is an error of every rollout.
        A value that is not a finite number is an error of only this rollout.
        """
        group = [self.injected(state, parser) for state in states]
        scores = [Score(reward=0.0) for _ in group]
        totals = [0.0 for _ in group]
        for function in self.functions:
            results = await _values(function, group)
            for position, (score, result) in enumerate(zip(scores, results, strict=True)):
                if isinstance(result, RubricError):
                    score.error = score.error or result
                else:
                    score.metrics[function.name] = result
                    totals[position] += function.weight * result
        for score, total in zip(scores, totals, strict=True):
            score.reward = None if score.error else total
        return scores

    @property
    def has_group_functions(self) -> bool:
        """Whether rollouts can only be scored together with the others of their example."""
        return any(function.of_group for function in self.functions)

    def injected(self, state: State, parser: Parser | None = None) -> dict[str, Any]:
        """Return the values that functions can take by name. A kind of rubric may add its own.

        The rollout's own values take precedence over dataset columns with the same name.
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
            "parser": self.parser or parser,
            "example": example,
            **{name: state[name] for name in ("player", "box") if name in state},
        }

    async def close(self) -> None:
        """Release the rubric's resources. Called when its environment is closed."""


async def _values(function: RewardFunction, group: Sequence[Mapping[str, Any]]) -> list[float | RubricError]:
    """Return a function's value, or its error, for every rollout."""
    values: list[float | RubricError] = []
    if not function.of_group:
        for injected in group:
            try:
                values.append(await function.value(injected))
            except RubricError as error:
                values.append(error)
        return values
    try:
        items = await _call(function, group)
    except RubricError as error:
        return [error for _ in group]
    for item in items:
        try:
            values.append(check_reward(item, function.name))
        except RubricError as error:
            values.append(error)
    return values


async def _call(function: RewardFunction, group: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Call a group function.

    Raises `RubricError` if it fails or does not return a list of the group's length.
    """
    result = await function.call(function.arguments(_lists_of(group)))
    try:
        items = None if isinstance(result, str | bytes | Mapping) else list(result)
    except BaseException as error:
        blame(error, RubricError, function.name, passing=RubricError)
        raise
    if items is None or len(items) != len(group):
        raise RubricError(
            f"reward function `{function.name}` returned `{result!r:.80}` for {len(group)} rollouts",
            hint="return a list with one number for every rollout, in their order",
        )
    return items


def _lists_of(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values that a group function can take: lists in the order of the rollouts.

    Values in `PLURALS` are available under their plural, and dataset columns under their own name. Values
    that do not belong to a rollout, such as the parser, are not lists.
    """
    columns = {name for values in group for name in values["example"].columns}
    shared = {name: value for values in group for name, value in values.items() if name not in columns}
    lists = {name: [values.get(name) for values in group] for name in sorted(columns)}
    plurals = {plural: [values[name] for values in group] for plural, name in PLURALS.items()}
    single = {name: value for name, value in shared.items() if name not in PLURALS.values()}
    return {**lists, **single, **plurals}
