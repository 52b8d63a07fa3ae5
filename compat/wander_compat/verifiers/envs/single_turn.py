"""Environments in which the model speaks once."""

from __future__ import annotations

from typing import Any

from wander_compat.verifiers.envs.multi_turn import MultiTurnEnv
from wander_compat.verifiers.types import State


class SingleTurnEnv(MultiTurnEnv):
    """One question, one completion."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=1, **{key: value for key, value in kwargs.items() if key != "max_turns"})

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Never asked for: the rollout is over before."""
        never = NotImplementedError("a single-turn environment has no answer to the model")
        raise never
