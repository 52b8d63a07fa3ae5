"""Plays environments with `reset` and `step` (the old or new interface of Gymnasium) as a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from wander_compat.verifiers.async_calls import maybe_await
from wander_compat.verifiers.decorators import cleanup, stop
from wander_compat.verifiers.envs.multi_turn import MultiTurnEnv
from wander_compat.verifiers.messages.conversion import field_of, text_of
from wander_compat.verifiers.parsers import Parser
from wander_compat.verifiers.rubrics.rubric import Rubric
from wander_compat.verifiers.types import State

USUAL_STEPS = 1000
ENDED = "Episode already ended."


class StepResetEnv(Protocol):
    """Interface of an environment class."""

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Start an episode. Returns an observation, or an observation and a dictionary."""

    def step(self, action: Any) -> Any:
        """Take an action.

        Returns observation, reward, terminated, truncated and info, or the older four values.
        """


def normalize_reset(out: Any) -> tuple[Any, dict[str, Any]]:
    """Return observation and info of either form of `reset`."""
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict):
        return out
    return out, {}


def normalize_step(out: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Return the five values of either form of `step`. Raises `ValueError` for any other."""
    if len(out) == 5:
        observation, reward, terminated, truncated, info = out
    elif len(out) == 4:
        observation, reward, terminated, info = out
        truncated = False
    else:
        raise ValueError(f"`step` must return 4 or 5 values, it returned {len(out)}")
    return observation, float(reward), bool(terminated), bool(truncated), dict(info or {})


def sum_step_rewards(state: State) -> float:
    """Return the sum of the rewards of all steps."""
    return float(sum(step.get("reward") or 0.0 for step in state.get("trajectory") or []))


class EpisodicSumRubric(Rubric):
    """Rewards an episode with the sum of its steps' rewards."""

    def __init__(self, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(funcs=[sum_step_rewards], weights=[weight], **kwargs)


class GymEnv(MultiTurnEnv):
    """Plays an environment class. Observations become user messages, and the model's messages become actions.

    Episodes are numbered from `seed`. The number is the row's `answer`, and the seed of the episode.
    """

    def __init__(
        self,
        env_cls: Callable[..., Any],
        env_kwargs: Mapping[str, Any] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        obs_to_text: Callable[[Any], str] | None = None,
        num_train_episodes: int = 1000,
        num_eval_episodes: int = 20,
        max_episode_steps: int | None = None,
        seed: int = 0,
        system_prompt: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        message_type: str = "chat",
        **kwargs: Any,
    ) -> None:
        self.env_cls = env_cls
        self.env_kwargs = dict(env_kwargs or {})
        self.action_parser = action_parser or str.strip
        self._obs_to_text = obs_to_text
        self.num_train_episodes = num_train_episodes
        self.num_eval_episodes = num_eval_episodes
        self.seed = seed
        train, evaluation = self.gym_to_hf()
        super().__init__(
            max_turns=max_episode_steps or USUAL_STEPS,
            dataset=train,
            eval_dataset=evaluation,
            system_prompt=system_prompt,
            few_shot=few_shot,
            parser=parser or Parser(),
            rubric=rubric or EpisodicSumRubric(),
            message_type=message_type,
            **kwargs,
        )

    def obs_to_text(self, obs: Any) -> str:
        """Return the text of an observation for the model. Override it, or pass `obs_to_text`."""
        return str(obs) if self._obs_to_text is None else self._obs_to_text(obs)

    def wrap_response(self, text: str) -> list[dict[str, str]]:
        """Return the environment's message."""
        return [{"role": "user", "content": text}]

    def gym_to_hf(self) -> tuple[Any, Any]:
        """Return the rows: one per episode, with its first observation as the question."""
        last = self.seed + self.num_train_episodes
        train = self._make_episode_rows(range(self.seed, last))
        evaluation = self._make_episode_rows(range(last, last + self.num_eval_episodes))
        return train, evaluation if self.num_eval_episodes else None

    def _make_episode_rows(self, seeds: range) -> Any:
        from datasets import Dataset

        started = self.env_cls(**self.env_kwargs) if seeds else None
        questions = [self.obs_to_text(self._reset_gym_env(started, seed)[0]) for seed in seeds]
        _close(started)
        return Dataset.from_dict({"question": questions, "answer": [str(seed) for seed in seeds]})

    def _reset_gym_env(self, env: Any, seed: int) -> tuple[Any, dict[str, Any]]:
        try:
            return normalize_reset(env.reset(seed=seed))
        except TypeError:
            return normalize_reset(env.reset())

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Start the row's episode."""
        state["gym_env"] = self.env_cls(**self.env_kwargs)
        state["gym_done"] = False
        self._reset_gym_env(state["gym_env"], int(state["answer"] or 0))
        return state

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Take the model's action and return its result."""
        if state["gym_done"]:
            return self.wrap_response(ENDED)
        try:
            action = self.action_parser(text_of(field_of(messages[-1], "content")))
        except Exception as error:  # noqa: BLE001 - the model receives any error of a parser
            state["gym_done"] = True
            return self.wrap_response(f"Action Parsing Error: {error}")
        outcome = await maybe_await(state["gym_env"].step, action)
        observation, reward, terminated, truncated, info = normalize_step(outcome)
        step = state["trajectory"][-1]
        step["reward"] = reward
        step["extras"]["gym_info"] = info
        text = self.obs_to_text(observation)
        if terminated or truncated:
            state["gym_done"] = True
            text = f"{text}\n{ENDED}"
        return self.wrap_response(text)

    @stop
    async def is_done(self, state: State) -> bool:
        """Hold if the episode has ended."""
        return bool(state.get("gym_done", False))

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        """Close the episode's environment."""
        _close(state.pop("gym_env", None))


def _close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()
