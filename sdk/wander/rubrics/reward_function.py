"""A reward function: its weight, its parameters, and its value for a rollout.

A function may compare the rollouts of one example. It then takes plural parameters (`states`, `prompts`,
`completions`, `answers`, `infos`, `tasks`, or any dataset column), and returns a list with one number per
rollout.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, get_origin

from wander.errors import ConfigError, RubricError
from wander.rollout.activity import at
from wander.rollout.faults import blame
from wander.rollout.hooks import PLAIN
from wander.rubrics.score import check_reward

PLURALS = {
    "states": "state",
    "prompts": "prompt",
    "completions": "completion",
    "answers": "answer",
    "infos": "info",
    "tasks": "task",
    "examples": "example",
}
"""Parameters of a group function, and the value that each contains for every rollout."""


@dataclass(frozen=True)
class RewardFunction:
    """A function with its weight and its parameters."""

    name: str
    function: Callable[..., Any]
    weight: float
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_all: bool
    """Whether the function has `**kwargs`, and so gets every available value."""
    of_group: bool = False
    """Whether the function scores all rollouts of a group in one call."""
    bounds: tuple[float, float] | None = None
    """Lowest and highest value, if declared."""

    @classmethod
    def of(
        cls, function: Callable[..., Any], weight: float, bounds: tuple[float, float] | None = None
    ) -> RewardFunction:
        """Inspect a function once. For every rollout, its parameters are then looked up by name."""
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
            check_bounds(bounds, f"the bounds of `{function_name(function)}`"),
        )

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of this function. Raises `RubricError` for a parameter without a value."""
        arguments = {}
        try:
            for name in self.required:
                arguments[name] = values[name]
        except KeyError as error:
            raise RubricError(
                f"reward function `{self.name}` has a parameter `{error.args[0]}`, which no rollout provides",
                hint=f"available parameters: {', '.join(f'`{name}`' for name in values)}",
            ) from None
        if self.takes_all:
            return dict(values)
        if self.optional:
            arguments |= {name: values[name] for name in self.optional if name in values}
        return arguments

    async def value(self, values: Mapping[str, Any]) -> float:
        """Call the function.

        Raises `RubricError` if it raises an error or does not return a finite number.
        """
        if self.of_group:
            raise RubricError(
                f"reward function `{self.name}` compares the rollouts of a group, but this one has no group",
                hint="play the example with `rollout_group`",
            )
        return check_reward(await self.call(self.arguments(values)), self.name)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the sync or async function. Any exception becomes a `RubricError`."""
        try:
            with at(self.name) as activity:
                started = perf_counter()
                result = self.function(**arguments)
                if type(result) not in PLAIN and inspect.isawaitable(result):
                    return await result
                if activity is not None:
                    activity.scoring_seconds += perf_counter() - started
                return result
        except BaseException as error:
            blame(error, RubricError, self.name, passing=RubricError)
            raise


def is_group_function(function: Callable[..., Any]) -> bool:
    """Return whether a function scores a whole group: it returns a list, or has only plural parameters.

    A function with `completion` and a dataset column called `answers` scores a single rollout.
    """
    signature = inspect.signature(function)
    returned = signature.return_annotation
    if isinstance(returned, str):
        if returned.removeprefix("typing.").partition("[")[0].strip() in ("list", "List", "Sequence"):
            return True
    elif returned is list or get_origin(returned) in (list, Sequence):
        return True
    parameters = set(signature.parameters)
    return bool(parameters & PLURALS.keys()) and not parameters & set(PLURALS.values())


def function_name(function: Callable[..., Any]) -> str:
    """Return the name under which a function's value is reported."""
    name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None)
    return name or type(function).__name__


def check_bounds(bounds: tuple[float, float] | None, what: str) -> tuple[float, float] | None:
    """Return declared bounds as two numbers. Raises `ConfigError` unless they are finite and in order."""
    if bounds is None:
        return None
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low < high < math.inf:
        raise ConfigError(
            f"{what} must be (lowest, highest), got `{bounds!r}`", hint="pass two numbers, such as (0, 1)"
        )
    return low, high
