"""Rubrics of the classic API: weighted reward functions that score the state of a rollout in place.

A reward function that raises an exception counts as 0, as in every release. Here the exception is also stored
in `state["reward_errors"]`, so that a host can distinguish an honest 0 from a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_origin

from wander.rollout.outside_calls import call_for

from wander_compat.verifiers.async_calls import (
    NullAsyncContext,
    maybe_await,
    maybe_call_with_named_args,
    pick_arguments,
)
from wander_compat.verifiers.decorators import discover_decorated
from wander_compat.verifiers.parsers import Parser
from wander_compat.verifiers.types import RolloutScore, RolloutScores, State

REWARD_ERRORS = "reward_errors"
"""Key of a state's exceptions of reward functions, by the function's name."""
ROLLOUT_ID = "wander_rollout"
"""Key of the rollout's id in a state, which attributes calls of its reward functions."""
PLURALS = {
    "prompts": "prompt",
    "completions": "completion",
    "answers": "answer",
    "tasks": "task",
    "infos": "info",
}
ROW_FIELDS = ("prompt", "answer", "info", "example_id", "task")

RewardFunction = Callable[..., Any]


class Rubric:
    """An ordered list of reward functions with weights, which default to 1.0."""

    def __init__(
        self,
        funcs: Sequence[RewardFunction] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        parallelize_scoring: bool = True,
    ) -> None:
        self.logger = logging.getLogger(f"verifiers.rubrics.{type(self).__name__}")
        self.funcs: list[RewardFunction] = list(funcs or [])
        self.weights: list[float] = [1.0] * len(self.funcs) if not weights else list(weights)
        if len(self.weights) != len(self.funcs):
            raise ValueError(
                f"Number of weights ({len(self.weights)}) must match number of functions ({len(self.funcs)})"
            )
        self.parser: Parser = parser or Parser()
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self.score_object_providers: list[Callable[[State], Mapping[str, Any]]] = []
        self.group_score_object_providers: list[Callable[[list[State]], Mapping[str, Any]]] = []
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    # what it holds

    def add_reward_func(self, func: RewardFunction, weight: float = 1.0) -> None:
        """Add a function to the weighted sum."""
        self.funcs.append(func)
        self.weights.append(weight)

    def add_metric(self, func: RewardFunction, weight: float = 0.0) -> None:
        """Add a function that is reported but does not count."""
        self.add_reward_func(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Make an object available to reward functions under a name."""
        self.class_objects[name] = obj

    def add_score_object_provider(self, provider: Callable[[State], Mapping[str, Any]]) -> None:
        """Make values computed from each state available to reward functions."""
        self.score_object_providers.append(provider)

    def add_group_score_object_provider(self, provider: Callable[[list[State]], Mapping[str, Any]]) -> None:
        """Make values computed from a group's states available to group reward functions."""
        self.group_score_object_providers.append(provider)

    def add_cleanup_handler(self, handler: Callable[..., Any]) -> None:
        """Add a function that runs after a rollout was scored."""
        self._cleanup_handlers.append(handler)

    def _get_reward_funcs(self) -> list[RewardFunction]:
        return self.funcs

    def _get_reward_weights(self) -> list[float]:
        return self.weights

    def _get_reward_func_names(self) -> list[str]:
        return [function_name(func) for func in self._get_reward_funcs()]

    def _get_group_reward_funcs(self) -> list[RewardFunction]:
        return [func for func in self._get_reward_funcs() if self._is_group_func(func)]

    def _get_individual_reward_funcs(self) -> list[RewardFunction]:
        return [func for func in self._get_reward_funcs() if not self._is_group_func(func)]

    def get_reward_funcs(self) -> list[RewardFunction]:
        """Return the reward functions."""
        return self._get_reward_funcs()

    def get_reward_weights(self) -> list[float]:
        """Return the weights of the reward functions."""
        return self._get_reward_weights()

    def get_reward_func_names(self) -> list[str]:
        """Return the names of the reward functions."""
        return self._get_reward_func_names()

    def _is_group_func(self, func: RewardFunction) -> bool:
        """Return whether a function scores a group: it takes plural parameters or returns a list."""
        signature = inspect.signature(func)
        if set(signature.parameters) & {"states", *PLURALS}:
            return True
        returned = signature.return_annotation
        if isinstance(returned, str):
            return returned.startswith(("list[", "List["))
        return get_origin(returned) is list

    @property
    def has_group_rewards(self) -> bool:
        """Whether a function compares the rollouts of one example."""
        return bool(self._get_group_reward_funcs())

    @property
    def has_advantages(self) -> bool:
        """Whether the rubric computes advantages itself."""
        return False

    # scoring

    def score_objects(self, state: State) -> dict[str, Any]:
        """Return the values that an individual reward function can take by name."""
        row = state.row if isinstance(state, State) else {}
        columns = {name: value for name, value in row.items() if name not in ROW_FIELDS}
        objects = {
            **columns,
            "prompt": state.get("prompt"),
            "completion": state.get("completion"),
            "answer": state.get("answer", ""),
            "state": state,
            "task": state.get("task", "default"),
            "info": state.get("info") or {},
            **self.class_objects,
        }
        for provider in self.score_object_providers:
            objects.update(provider(state))
        return objects

    def group_score_objects(self, states: list[State]) -> dict[str, Any]:
        """Return the values that a group reward function can take by name."""
        by_rollout = [self.score_objects(state) for state in states]
        objects: dict[str, Any] = {
            plural: [values[single] for values in by_rollout] for plural, single in PLURALS.items()
        }
        objects["states"] = states
        objects.update(self.class_objects)
        for provider in self.group_score_object_providers:
            objects.update(provider(states))
        return objects

    async def _call_individual_reward_func(
        self, func: RewardFunction, state: State, score_sem: Any = None
    ) -> float:
        """Return a function's value for a state, or 0 if it fails, which is recorded in the state."""
        try:
            objects = self.score_objects(state)
            with call_for(state.get(ROLLOUT_ID)):
                return float(await maybe_await(func, **pick_arguments(func, objects)))
        except Exception as error:  # noqa: BLE001 - recorded in the state, see above
            self._note_func_error(func, error, [state])
            return 0.0

    async def _call_group_reward_func(
        self, func: RewardFunction, states: list[State], score_sem: Any = None
    ) -> list[float]:
        """Return a function's values for a group, or zeros if it fails, which is recorded in the states."""
        try:
            objects = self.group_score_objects(states)
            values = [float(value) for value in await maybe_await(func, **pick_arguments(func, objects))]
            if len(values) != len(states):
                raise ValueError(f"returned {len(values)} values for {len(states)} rollouts")
        except Exception as error:  # noqa: BLE001 - recorded in the states, see above
            self._note_func_error(func, error, states)
            return [0.0] * len(states)
        return values

    def _note_func_error(self, func: RewardFunction, error: Exception, states: Sequence[State]) -> None:
        name = function_name(func)
        self.logger.error("reward function `%s` raised %s: %s", name, type(error).__name__, error)
        for state in states:
            state.setdefault(REWARD_ERRORS, {})[name] = error

    async def score_rollout(self, state: State, score_sem: Any = None, **kwargs: Any) -> Any:
        """Set `reward` and `metrics` of one rollout."""
        if self.has_group_rewards:
            raise AssertionError(
                "score_rollout needs individual reward functions; a group function needs score_group"
            )
        values = [await self._call_individual_reward_func(func, state) for func in self._get_reward_funcs()]
        self._keep_scored_values(state, values)

    async def score_group(self, states: list[State], score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward`, `metrics` and `advantage` of the rollouts of one example."""
        columns: list[list[float]] = []
        for func in self._get_reward_funcs():
            if self._is_group_func(func):
                columns.append(await self._call_group_reward_func(func, states))
            else:
                called = (self._call_individual_reward_func(func, state) for state in states)
                columns.append(list(await asyncio.gather(*called)))
        for position, state in enumerate(states):
            self._keep_scored_values(state, [column[position] for column in columns])
        set_advantages(states)

    def _keep_scored_values(self, state: State, values: Sequence[float]) -> None:
        names, weights = self._get_reward_func_names(), self._get_reward_weights()
        state["reward"] = float(sum(value * weight for value, weight in zip(values, weights, strict=True)))
        state["metrics"] = dict(zip(names, values, strict=True))

    async def dummy_score_rollout(self, state: State) -> None:
        """Set the reward of a rollout that is not scored to 0."""
        state["reward"], state["metrics"] = 0.0, {}

    async def dummy_score_group(self, states: list[State]) -> None:
        """Set the rewards of rollouts that are not scored to 0."""
        for state in states:
            await self.dummy_score_rollout(state)

    async def score_rollouts(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        answers: Sequence[Any],
        states: Sequence[dict[str, Any]],
        tasks: Sequence[str],
        infos: Sequence[dict[str, Any]],
        **kwargs: Any,
    ) -> RolloutScores:
        """Return the scores of several rollouts given by column, as in the first generation."""
        scored = []
        for prompt, completion, answer, state, task, info in zip(
            prompts, completions, answers, states, tasks, infos, strict=True
        ):
            rollout_state = State(state)
            rollout_state.update(prompt=prompt, completion=completion, answer=answer, task=task, info=info)
            await self.score_rollout(rollout_state)
            scored.append(RolloutScore(rollout_state["reward"], rollout_state["metrics"]))
        names = self._get_reward_func_names()
        metrics = {name: [score.metrics.get(name, 0.0) for score in scored] for name in names}
        return RolloutScores([score.reward for score in scored], metrics)

    # ends

    async def cleanup(self, state: State) -> None:
        """Run everything that is marked to run after a rollout."""
        for handler in self._cleanup_handlers:
            await maybe_call_with_named_args(handler, state=state, rubric=self)

    async def teardown(self) -> None:
        """Run everything that is marked to run when the environment is closed."""
        for handler in self._teardown_handlers:
            await maybe_await(handler)


async def score_states(rubric: Rubric, states: list[State]) -> None:
    """Score states with the method that the rubric overrides: for a group, a state, or columns."""
    if "score_group" in vars(rubric) or is_overridden(rubric, "score_group"):
        await _with_semaphore(rubric.score_group, states)
    elif not is_overridden(rubric, "score_rollout"):
        await rubric.score_group(states)
    elif "completion" in inspect.signature(rubric.score_rollout).parameters:
        # In the first generation it is `score_rollout(prompt, completion, answer, state, ...)`.
        for state in states:
            objects = pick_arguments(rubric.score_rollout, rubric.score_objects(state))
            score = await maybe_await(rubric.score_rollout, **objects)
            fields = score if isinstance(score, Mapping) else vars(score)
            state["reward"], state["metrics"] = float(fields["reward"]), dict(fields.get("metrics") or {})
    else:
        for state in states:
            await _with_semaphore(rubric.score_rollout, state)


def is_overridden(rubric: Rubric, name: str) -> bool:
    """Return whether a package has overridden a method."""
    return not getattr(type(rubric), name).__module__.startswith("wander_compat.")


async def _with_semaphore(score: Callable[..., Any], subject: Any) -> None:
    """Call a scoring method. Those of the second generation also take a semaphore."""
    needed = inspect.signature(score).parameters.get("score_sem")
    await (score(subject) if needed is None else score(subject, score_sem=NullAsyncContext()))


def function_name(func: RewardFunction) -> str:
    """Return the name under which a function's value is reported."""
    name = getattr(func, "__name__", None) or getattr(getattr(func, "func", None), "__name__", None)
    return str(name or type(func).__name__)


def set_advantages(states: Sequence[State]) -> None:
    """Set each state's advantage over the group's mean, also in its trajectory."""
    if not states:
        return
    mean = math.fsum(state["reward"] for state in states) / len(states)
    for state in states:
        state["advantage"] = state["reward"] - mean
        for step in state.get("trajectory") or []:
            if step.get("advantage") is None:
                step["advantage"] = state["advantage"]
            if step.get("reward") is None:
                step["reward"] = state["reward"]
