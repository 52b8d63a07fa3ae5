"""Combines several environments. Their rows are concatenated, and each is played by its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wander_compat.verifiers.data import dataset_of, info_of
from wander_compat.verifiers.envs.environment import Environment
from wander_compat.verifiers.rubrics.rubric import Rubric, score_states
from wander_compat.verifiers.types import SamplingArgs, State

if TYPE_CHECKING:
    from datasets import Dataset

ENV_GROUP_INFO_KEY = "env_id"


def route_of(row: Mapping[str, Any]) -> list[str]:
    """Return the names that lead to a row's environment. The first generations stored them in `task`."""
    route = info_of(row.get("info")).get(ENV_GROUP_INFO_KEY)
    if route is None:
        route = row.get("task")
    return [route] if isinstance(route, str) else list(route or [])


class EnvGroupRubric(Rubric):
    """Scores each rollout with its own environment's rubric. Metrics of the others are 0."""

    def __init__(self, env_map: Mapping[str, Environment]) -> None:
        super().__init__()
        self.env_map = dict(env_map)
        names = [name for env in self.env_map.values() for name in env.rubric._get_reward_func_names()]
        self.all_reward_names = list(dict.fromkeys(names))

    def _get_reward_func_names(self) -> list[str]:
        return self.all_reward_names

    @property
    def has_group_rewards(self) -> bool:
        """Whether a function of any environment compares the rollouts of one example."""
        return any(env.rubric.has_group_rewards for env in self.env_map.values())

    async def score_rollout(self, state: State, score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward` and `metrics` with the environment that the row belongs to."""
        env = self._find_env_of_state(state)
        if env is not None:
            await env.rubric.score_rollout(state)
        self._fill_in_all_metrics(state, known=env is not None)

    async def score_group(self, states: list[State], score_sem: Any = None, **kwargs: Any) -> None:
        """Set `reward` and `metrics` of a group with the environment that its row belongs to."""
        env = self._find_env_of_state(states[0]) if states else None
        if env is not None:
            await score_states(env.rubric, states)
        for state in states:
            self._fill_in_all_metrics(state, known=env is not None)

    def _find_env_of_state(self, state: State) -> Environment | None:
        route = route_of({"info": state.get("info"), "task": state.get("task")})
        return self.env_map.get(route[0]) if route else None

    def _fill_in_all_metrics(self, state: State, *, known: bool) -> None:
        metrics = (state.get("metrics") or {}) if known else {}
        state["reward"] = (state.get("reward") or 0.0) if known else 0.0
        state["metrics"] = {**dict.fromkeys(self.all_reward_names, 0.0), **metrics}

    async def cleanup(self, state: State) -> None:
        """Run the handlers of the environment that the row belongs to."""
        env = self._find_env_of_state(state)
        if env is not None:
            await env.rubric.cleanup(state)

    async def teardown(self) -> None:
        """Run the handlers of all environments."""
        for env in self.env_map.values():
            await env._teardown()


class EnvGroup(Environment):
    """A group of environments. A row's `info["env_id"]` names the environment that plays it."""

    def __init__(
        self,
        envs: Sequence[Environment],
        env_names: Sequence[str] | None = None,
        map_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not envs:
            raise ValueError("EnvGroup requires at least one environment")
        if env_names is not None and len(env_names) != len(envs):
            raise ValueError("Number of env_names must match number of envs")
        self.envs = list(envs)
        self.env_names = list(env_names or (f"env_{number}" for number in range(len(envs))))
        self.env_map = dict(zip(self.env_names, self.envs, strict=True))
        self.map_kwargs = dict(map_kwargs or {})
        train = self._join_env_rows("build_dataset")
        evaluation = self._join_env_rows("build_eval_dataset")
        kwargs.setdefault("rubric", EnvGroupRubric(self.env_map))
        super().__init__(train, evaluation, map_kwargs=map_kwargs, **kwargs)

    def _join_env_rows(self, build: str) -> Dataset | None:
        """Return the rows of all environments that have any, each with its route."""
        built = {name: getattr(env, build)() for name, env in self.env_map.items()}
        if all(rows is None for rows in built.values()):
            return None
        rows = [_add_route(row, name) for name, dataset in built.items() for row in dataset or []]
        return dataset_of([{**row, "example_id": position} for position, row in enumerate(rows)])

    def get_env_for_name(self, name: str) -> Environment:
        """Return an environment by its name. Raises `ValueError`."""
        if name not in self.env_map:
            raise ValueError(f"No environment found for `{name}`; there are {', '.join(self.env_names)}")
        return self.env_map[name]

    get_env_for_task = get_env_for_name

    async def rollout(
        self,
        input: Any,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> Any:
        """Let the row's own environment play it."""
        name, *rest = route_of(input)
        inner = {**input, "info": info_of(input.get("info"))}
        if rest:
            inner["info"] = {**inner["info"], ENV_GROUP_INFO_KEY: rest[0] if len(rest) == 1 else rest}
        state = await self.get_env_for_name(name).rollout(
            input=inner, client=client, model=model, sampling_args=sampling_args
        )
        if rest:
            state["info"] = {**state["info"], ENV_GROUP_INFO_KEY: [name, *rest]}
        return state

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Set the maximum number of tokens of prompt and completion together, in all environments."""
        super().set_max_seq_len(max_seq_len)
        for env in self.envs:
            env.set_max_seq_len(max_seq_len)

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set whether rollouts are scored, in all environments."""
        super().set_score_rollouts(score_rollouts)
        for env in self.envs:
            env.set_score_rollouts(score_rollouts)


def _add_route(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    info = info_of(row.get("info"))
    inner = info.get(ENV_GROUP_INFO_KEY)
    deeper = [inner] if isinstance(inner, str) else list(inner or [])
    info[ENV_GROUP_INFO_KEY] = name if inner is None else [name, *deeper]
    return {**row, "info": info}
