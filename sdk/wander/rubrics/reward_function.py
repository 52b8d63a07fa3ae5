"""One reward function: its weight, the parameters it asks for, and what it gives for a rollout.

A function may score the rollouts of one example against one another: it asks for plural parameters
(`states`, `prompts`, `completions`, `answers`, `infos`, `tasks`, or any dataset column) and returns a list
with one number for each rollout.
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
"""What a function of a group may ask for, and the value of each rollout that it gets a list of."""


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
    bounds: tuple[float, float] | None = None
    """Lowest and highest value, if declared."""

    @classmethod
    def of(
        cls, function: Callable[..., Any], weight: float, bounds: tuple[float, float] | None = None
    ) -> RewardFunction:
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
            check_bounds(bounds, f"the bounds of `{function_name(function)}`"),
        )

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Pick this function's arguments; raises `RubricError` for a name that nothing provides."""
        arguments = {}
        try:
            for name in self.required:
                arguments[name] = values[name]
        except KeyError as error:
            raise RubricError(
                f"reward function `{self.name}` asks for `{error.args[0]}`, which no rollout provides",
                hint=f"available are {', '.join(f'`{name}`' for name in values)}",
            ) from None
        if self.takes_all:
            return dict(values)
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
        return check_reward(await self.call(self.arguments(values)), self.name)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function, sync or async; whatever it raises becomes a `RubricError`."""
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
    """Tell whether a function scores a whole group: it returns a list, or asks for plurals only.

    A function that asks for `completion` and for a dataset column called `answers` scores one.
    """
    signature = inspect.signature(function)
    returned = signature.return_annotation
    if isinstance(returned, str):
        if returned.removeprefix("typing.").partition("[")[0].strip() in ("list", "List", "Sequence"):
            return True
    elif returned is list or get_origin(returned) in (list, Sequence):
        return True
    asked = set(signature.parameters)
    return bool(asked & PLURALS.keys()) and not asked & set(PLURALS.values())


def function_name(function: Callable[..., Any]) -> str:
    """Return the name under which a function's value is reported."""
    name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None)
    return name or type(function).__name__


def check_bounds(bounds: tuple[float, float] | None, what: str) -> tuple[float, float] | None:
    """Return declared bounds as two numbers; raises `ConfigError` unless they are finite and in order."""
    if bounds is None:
        return None
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low < high < math.inf:
        raise ConfigError(
            f"{what} must be (lowest, highest), got `{bounds!r}`", hint="give two numbers, such as (0, 1)"
        )
    return low, high
