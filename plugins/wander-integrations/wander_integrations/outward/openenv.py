"""An environment as a server of OpenEnv, which clients play over WebSocket.

app = as_openenv_app(wander.load("admin/tictactoe"))   # uvicorn.run(app, port=8000)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field
from wander.errors import require_extra

from wander_integrations.episodes import Episode, Steppable

with require_extra("openenv", needed_for="a server of OpenEnv", of="wander-integrations"):
    from openenv.core.env_server import Action, Environment, Observation, State, create_app

if TYPE_CHECKING:
    from wander.handle import Split


class Reply(Action):  # type: ignore[misc, unused-ignore]
    """The model's reply, and the tools that it calls."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    """As OpenAI's API has them."""


class Told(Observation):  # type: ignore[misc, unused-ignore]
    """The environment's answer. The last one has the reward."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    """Messages since the last step."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of the functions that the next reply may call."""
    metrics: dict[str, float] = Field(default_factory=dict)


class WanderServerEnvironment(Environment):  # type: ignore[misc, type-arg, unused-ignore]
    """The episodes of one client. `reset` takes the run's seed, and the position and split of the example."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, environment: Steppable, split: Split = "train") -> None:
        super().__init__()
        self._environment = environment
        self._split: Split = split
        self._episode: Episode | None = None
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        position: int = 0,
        split: Split | None = None,
        **_: Any,
    ) -> Told:
        """Begin an episode and return what is asked first."""
        self.close()
        self._episode = Episode(self._environment, position, split=split or self._split, run_seed=seed or 0)
        self._state = State(episode_id=episode_id, step_count=0)
        return self._told(self._episode, self._episode.begin())

    def step(self, action: Reply, timeout_s: float | None = None, **_: Any) -> Told:
        """Pass a reply on, and return the messages that follow it."""
        if self._episode is None:
            raise RuntimeError("call `reset` before `step`")
        message: dict[str, Any] = {"role": "assistant", "content": action.content}
        if action.tool_calls:
            message["tool_calls"] = action.tool_calls
        self._state.step_count += 1
        return self._told(self._episode, self._episode.step(message))

    @property
    def state(self) -> State:
        """The episode's name and how many replies it took."""
        return self._state

    def close(self) -> None:
        """End the episode; the environment is its loader's to close."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    @staticmethod
    def _told(episode: Episode, messages: list[dict[str, Any]]) -> Told:
        return Told(
            messages=messages,
            tools=episode.tools,
            metrics=episode.metrics,
            done=episode.done,
            reward=episode.reward,
        )


def as_openenv_app(environment: Steppable, *, split: Split = "train", sessions: int = 64) -> Any:
    """Return an OpenEnv server as an ASGI application, for up to `sessions` parallel clients."""
    return create_app(
        partial(WanderServerEnvironment, environment, split),
        Reply,
        Told,
        env_name=environment.info.name,
        max_concurrent_envs=sessions,
    )
