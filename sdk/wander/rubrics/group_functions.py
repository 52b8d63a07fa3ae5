"""Reward functions that score the rollouts of one example against one another.

Such a function asks for plural parameters (`states`, `prompts`, `completions`, `answers`, `infos`, `tasks`,
or any dataset column) and returns one number a rollout, in the same order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_origin

from wander.errors import RubricError
from wander.rollout.faults import is_fault
from wander.rollout.hooks import described
from wander.rubrics.score import Score, checked_reward

if TYPE_CHECKING:
    from wander.rubrics.rubric import RewardFunction

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


def is_group_function(function: Callable[..., Any]) -> bool:
    """Tell whether a function scores a whole group: it returns a list, or asks for plurals only.

    A function that asks for `completion` and for a dataset column called `answers` scores one.
    """
    signature = inspect.signature(function)
    if _is_list(signature.return_annotation):
        return True
    asked = set(signature.parameters)
    return bool(asked & PLURALS.keys()) and not asked & set(PLURALS.values())


def _is_list(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.removeprefix("typing.").partition("[")[0].strip() in ("list", "List", "Sequence")
    return annotation is list or get_origin(annotation) in (list, Sequence)


async def group_scores(
    functions: Sequence[RewardFunction], group: Sequence[Mapping[str, Any]]
) -> list[Score]:
    """Run every function on the rollouts of a group, each given by its injected values.

    A function of the group that fails, or whose result does not fit the group, is an error of every rollout;
    a value that is not a finite number is an error of its rollout.
    """
    scores = [Score(reward=0.0) for _ in group]
    totals = [0.0 for _ in group]
    for function in functions:
        if function.of_group:
            results = await _group_values(function, group)
        else:
            results = [await _value(function, values) for values in group]
        for position, (score, result) in enumerate(zip(scores, results, strict=True)):
            if isinstance(result, RubricError):
                score.error = score.error or result
            else:
                score.metrics[function.name] = result
                totals[position] += function.weight * result
    for score, total in zip(scores, totals, strict=True):
        score.reward = None if score.error else total
    return scores


async def _value(function: RewardFunction, values: Mapping[str, Any]) -> float | RubricError:
    try:
        return await function.value(values)
    except RubricError as error:
        return error


async def _group_values(
    function: RewardFunction, group: Sequence[Mapping[str, Any]]
) -> list[float | RubricError]:
    """Return a group function's value, or what went wrong, for every rollout."""
    try:
        items = await _called(function, group)
    except RubricError as error:
        return [error for _ in group]
    values: list[float | RubricError] = []
    for item in items:
        try:
            values.append(checked_reward(item, function.name))
        except RubricError as error:
            values.append(error)
    return values


async def _called(function: RewardFunction, group: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Call a group function; raises `RubricError` when it raises or gives no list of the group's length."""
    arguments = function.arguments(gathered(group))
    try:
        result = function.function(**arguments)
        if inspect.isawaitable(result):
            result = await result
        items = None if isinstance(result, str | bytes | Mapping) else list(result)
    except RubricError:
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        raise RubricError(described(error, function.name)) from error
    if items is None or len(items) != len(group):
        raise RubricError(
            f"reward function `{function.name}` returned `{result!r:.80}` for {len(group)} rollouts",
            hint="return a list with one number for every rollout, in their order",
        )
    return items


def gathered(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a function of the group may ask for: lists in the rollouts' order.

    Under its plural each of `PLURALS`, under its own name each dataset column. What belongs to no rollout,
    such as the parser, is no list.
    """
    columns = {name for values in group for name in values["example"].columns}
    shared = {name: value for values in group for name, value in values.items() if name not in columns}
    lists = {name: [values.get(name) for values in group] for name in sorted(columns)}
    plurals = {plural: [values[name] for values in group] for plural, name in PLURALS.items()}
    alone = {name: value for name, value in shared.items() if name not in PLURALS.values()}
    return {**lists, **alone, **plurals}
