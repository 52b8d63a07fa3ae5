"""Environments with one question and one answer."""

from __future__ import annotations

from typing import Any, ClassVar

from wander.dataset import ProceduralRows, Rows
from wander.envs.multi_turn import MultiTurnEnv
from wander.rollout.hooks import stop
from wander.types import Messages, State


class SingleTurnEnv(MultiTurnEnv):
    """An environment that scores the model's first completion."""

    kind: ClassVar[str] = "single_turn"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, eval_dataset, max_turns=1, **kwargs)

    max_turns_reached: Any = None
    """Disabled, because a single turn ends with its answer, not with a limit."""

    @stop(priority=-100)
    def answered(self, state: State) -> bool:
        """Hold if the model has answered."""
        return bool(state.turns)

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Return no messages, because the rollout ends after one completion."""
        return []
