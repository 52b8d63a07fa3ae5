"""Any task of reasoning-gym by argument, scored by its own scorer."""

from __future__ import annotations

from typing import Any

from wander_integrations import ReasoningGymEnv

__all__ = ["load_environment"]

REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.009,
    "random player, easy": 0.050,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.083,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


def load_environment(
    task: str | list[str] | dict[str, dict[str, Any]] = "chain_sum",
    num_examples: int = 1000,
    seed: int = 0,
    show_examples: int = 0,
    **settings: Any,
) -> ReasoningGymEnv:
    """Return the environment: a task with its own settings, or several mixed."""
    return ReasoningGymEnv(
        task,
        settings=settings,
        num_examples=num_examples,
        seed=seed,
        few_shot=show_examples,
        summary="Any of reasoning-gym's hundred tasks, or several mixed, with the scorers of the library.",
        tags=("reasoning", "single-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
