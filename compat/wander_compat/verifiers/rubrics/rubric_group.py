"""Combines several rubrics. Rewards are added up, as are metrics with the same name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from wander_compat.verifiers.rubrics.rubric import RewardFunction, Rubric, score_states, set_advantages
from wander_compat.verifiers.types import State


class RubricGroup(Rubric):
    """Rubrics that score a rollout one after the other. New functions are added to the first one."""

    def __init__(self, rubrics: Sequence[Rubric], **kwargs: Any) -> None:
        if not rubrics:
            raise ValueError("RubricGroup must have at least one rubric")
        self.rubrics = list(rubrics)
        super().__init__(**kwargs)

    def _get_reward_funcs(self) -> list[RewardFunction]:
        return [func for rubric in self.rubrics for func in rubric._get_reward_funcs()]

    def _get_reward_weights(self) -> list[float]:
        return [weight for rubric in self.rubrics for weight in rubric._get_reward_weights()]

    def _get_reward_func_names(self) -> list[str]:
        return [name for rubric in self.rubrics for name in rubric._get_reward_func_names()]

    @property
    def has_group_rewards(self) -> bool:
        """Whether a function of any rubric compares the rollouts of one example."""
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    @property
    def has_advantages(self) -> bool:
        """Whether a rubric computes advantages itself."""
        return any(rubric.has_advantages for rubric in self.rubrics)

    def _first_rubric(self) -> Rubric:
        assert self.rubrics, "RubricGroup must have at least one rubric"
        return self.rubrics[0]

    def add_reward_func(self, func: RewardFunction, weight: float = 1.0) -> None:
        """Add a function to the first rubric."""
        self._first_rubric().add_reward_func(func, weight)

    def add_metric(self, func: RewardFunction, weight: float = 0.0) -> None:
        """Add a metric to the first rubric."""
        self._first_rubric().add_metric(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Make an object available to the functions of every rubric under a name."""
        for rubric in self.rubrics:
            rubric.add_class_object(name, obj)

    def add_score_object_provider(self, provider: Callable[[State], Mapping[str, Any]]) -> None:
        """Make values computed from each state available to the functions of every rubric."""
        for rubric in self.rubrics:
            rubric.add_score_object_provider(provider)

    def add_group_score_object_provider(self, provider: Callable[[list[State]], Mapping[str, Any]]) -> None:
        """Make values computed from a group's states available to the group functions of every rubric."""
        for rubric in self.rubrics:
            rubric.add_group_score_object_provider(provider)

    async def score_rollout(self, state: State, score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward` and `metrics` to the sums over the rubrics."""
        await self._sum_scores([state], lambda rubric: rubric.score_rollout(state))

    async def score_group(self, states: list[State], score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward`, `metrics` and `advantage` of a group to the sums over the rubrics."""
        await self._sum_scores(states, lambda rubric: score_states(rubric, states))
        for state in states:
            state["advantage"] = None
            for step in state.get("trajectory") or []:
                step.update(advantage=None, reward=None)
        set_advantages(states)

    async def _sum_scores(self, states: Sequence[State], score: Callable[[Rubric], Awaitable[None]]) -> None:
        """Score states with each rubric, which overwrites the previous values, and set the sums."""
        rewards = [0.0] * len(states)
        metrics: list[dict[str, float]] = [{} for _ in states]
        for rubric in self.rubrics:
            await score(rubric)
            for position, state in enumerate(states):
                rewards[position] += state.get("reward") or 0.0
                for name, value in (state.get("metrics") or {}).items():
                    metrics[position][name] = metrics[position].get(name, 0.0) + value
        for state, total, summed_metrics in zip(states, rewards, metrics, strict=True):
            state["reward"], state["metrics"] = total, summed_metrics

    async def cleanup(self, state: State) -> None:
        """Run the group's own handlers, then those of the rubrics."""
        await super().cleanup(state)
        for rubric in self.rubrics:
            await rubric.cleanup(state)

    async def teardown(self) -> None:
        """Run the group's own handlers, then those of the rubrics."""
        await super().teardown()
        for rubric in self.rubrics:
            await rubric.teardown()
