"""Several rubrics as one: rewards add up, and metrics of one name too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wander_compat.verifiers.rubrics.rubric import RewardFunction, Rubric, score_states, set_advantages
from wander_compat.verifiers.types import State


class RubricGroup(Rubric):
    """Rubrics that score a rollout one after the other; what is added goes to the first."""

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
        """Whether a rubric gives advantages itself."""
        return any(rubric.has_advantages for rubric in self.rubrics)

    def _first(self) -> Rubric:
        assert self.rubrics, "RubricGroup must have at least one rubric"
        return self.rubrics[0]

    def add_reward_func(self, func: RewardFunction, weight: float = 1.0) -> None:
        """Add a function to the first rubric."""
        self._first().add_reward_func(func, weight)

    def add_metric(self, func: RewardFunction, weight: float = 0.0) -> None:
        """Add a metric to the first rubric."""
        self._first().add_metric(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Let the functions of every rubric ask for an object by a name."""
        for rubric in self.rubrics:
            rubric.add_class_object(name, obj)

    def add_score_object_provider(self, provider: Callable[[State], Mapping[str, Any]]) -> None:
        """Let the functions of every rubric ask for what is computed from each state."""
        for rubric in self.rubrics:
            rubric.add_score_object_provider(provider)

    def add_group_score_object_provider(self, provider: Callable[[list[State]], Mapping[str, Any]]) -> None:
        """Let the group functions of every rubric ask for what is computed from a group's states."""
        for rubric in self.rubrics:
            rubric.add_group_score_object_provider(provider)

    async def score_rollout(self, state: State, score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward` and `metrics` to the sums over the rubrics."""
        total = _Total()
        for rubric in self.rubrics:
            await rubric.score_rollout(state)
            total.add(state)
        total.put(state)

    async def score_group(self, states: list[State], score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward`, `metrics` and `advantage` of a group to the sums over the rubrics."""
        totals = [_Total() for _ in states]
        for rubric in self.rubrics:
            await score_states(rubric, states)
            for total, state in zip(totals, states, strict=True):
                total.add(state)
        for total, state in zip(totals, states, strict=True):
            total.put(state)
            state["advantage"] = None
            for step in state.get("trajectory") or []:
                step.update(advantage=None, reward=None)
        set_advantages(states)

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


class _Total:
    """Sums of one rollout."""

    def __init__(self) -> None:
        self.reward = 0.0
        self.metrics: dict[str, float] = {}

    def add(self, state: State) -> None:
        self.reward += state.get("reward") or 0.0
        for name, value in (state.get("metrics") or {}).items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value

    def put(self, state: State) -> None:
        state["reward"], state["metrics"] = self.reward, self.metrics
