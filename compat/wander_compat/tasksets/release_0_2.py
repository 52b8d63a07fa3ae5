"""Adapts task sets of `verifiers.v1` 0.2: one agent, one trace per rollout, rewards that compare a group."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from wander.parsers import Parser
from wander.rubrics.score import Score
from wander.types import RewardFunctionInfo, State

from wander_compat.tasksets.environment import EPISODE, EpisodeRubric, Serving, TasksetEnvironment
from wander_compat.tasksets.harness import NAME


class RolloutEnvironment(TasksetEnvironment):
    """Plays the library's environment of 0.2 through Wander's interface."""

    def __init__(self, library_env: Any) -> None:
        super().__init__(library_env)
        self.rubric = GroupRubric(self._task_type())

    def _task_type(self) -> type:
        task_type: type = importlib.import_module("verifiers.v1").task_type(self.library.config.taskset.id)
        return task_type

    def _executes_code(self) -> bool:
        return self.library.harness.config.id not in ("null", NAME)

    @property
    def turn_limit(self) -> int | None:
        """Maximum number of turns of a rollout, or None."""
        limit = self.library.config.max_turns
        return int(limit) if limit else None

    async def _run_episode(
        self, task: Any, serving: Serving, model: str, note_trace: Callable[[Any], None]
    ) -> Any:
        library = importlib.import_module("verifiers.v1")
        if serving.client is None:
            serving.client = library.resolve_client(serving.client_config())
        context = library.ModelContext(model=model, client=serving.client, sampling=library.Sampling())
        # If rewards compare a group, the library requires several rollouts. The others are played separately.
        rollout = self.library.episode(task, context, 2).rollouts[0]
        rollout.interception = _Noting(rollout.interception, note_trace)
        trace = await rollout.run()
        timed_out = trace.stop_condition == "harness_timeout"
        return SimpleNamespace(traces=[trace], errors=[], is_timeout=timed_out, task=task)


class _Noting:
    """The library's interception, which also reports each trace before its first model call."""

    def __init__(self, interception: Any, note_trace: Callable[[Any], None]) -> None:
        self._interception = interception
        self._note_trace = note_trace

    def acquire(self, session: Any) -> Any:
        self._note_trace(session.trace)
        return self._interception.acquire(session)


class GroupRubric(EpisodeRubric):
    """Returns the rewards of 0.2, including group rewards, which compare the rollouts of a task."""

    @property
    def has_group_functions(self) -> bool:
        """Whether rollouts can only be scored together with the others of their example."""
        return bool(self._marked("group_reward"))

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the marked methods of the task: rewards with their weights, and metrics with weight 0."""
        return [*super().describe(), *self._marked("group_reward")]

    def _raw(self, name: str, reward: Any) -> float:
        # 0.2 stores only the weighted value.
        weight = next((info.weight for info in self.describe() if info.name == name), 1.0)
        return float(reward) / weight if weight else 0.0

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Score the finished rollouts of one example together."""
        episodes = [state[EPISODE] for state in states]
        if self.has_group_functions and episodes:
            await episodes[0].task.score_group([episode.traces[0] for episode in episodes])
        return [await EpisodeRubric.score(self, state, parser) for state in states]

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Return the score of a finished rollout."""
        return (await self.score_group([state], parser))[0]
