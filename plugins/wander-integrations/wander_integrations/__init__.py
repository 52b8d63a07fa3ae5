"""Other libraries' tasks as environments, and ways for other trainers to play an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander_integrations.episodes import Episode, EpisodeFailed, SteppedRollout
    from wander_integrations.games import Game, GameEnv, NoAction
    from wander_integrations.gymnasium import GymnasiumEnv
    from wander_integrations.harbor.environment import HarborEnv
    from wander_integrations.inspect import InspectEnv
    from wander_integrations.openenv import OpenEnvEnv
    from wander_integrations.outward.gymnasium import WanderEnv
    from wander_integrations.outward.inspect import as_inspect_task
    from wander_integrations.outward.openenv import as_openenv_app
    from wander_integrations.outward.trl import trl_environment_factory, trl_reward, trl_rows
    from wander_integrations.reasoning_gym import ReasoningGymEnv
    from wander_integrations.textarena import TextArenaEnv

__all__ = [
    "Episode",
    "EpisodeFailed",
    "Game",
    "GameEnv",
    "GymnasiumEnv",
    "HarborEnv",
    "InspectEnv",
    "NoAction",
    "OpenEnvEnv",
    "ReasoningGymEnv",
    "SteppedRollout",
    "TextArenaEnv",
    "WanderEnv",
    "as_inspect_task",
    "as_openenv_app",
    "trl_environment_factory",
    "trl_reward",
    "trl_rows",
]

__getattr__, __dir__ = lazy_names(__name__)
