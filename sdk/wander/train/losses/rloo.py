"""RLOO with TRL's `RLOOTrainer`, which compares each whole rollout with the mean of the others in its group.

Its policy ratio is that of a whole rollout: the product over the rollout's sampled tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl import RLOOConfig, RLOOTrainer

from wander.train.config import GRPOSettings
from wander.train.rollouts.rollout_func import reward
from wander.train.settings.library_arguments import build_library_config
from wander.train.step_trainer import StepTrainer, common_arguments, group_arguments


def rloo_config(settings: GRPOSettings, folder: Path, processes: int = 1) -> RLOOConfig:
    """Translate the settings to TRL's, for each of `processes` processes."""
    own = {
        **common_arguments(settings, folder, processes),
        **group_arguments(settings, processes),
        "normalize_advantages": settings.algorithm.scale_rewards == "batch",
    }
    return build_library_config(RLOOConfig, own, settings.trl, "trl")


class LeaveOneOutTrainer(StepTrainer, RLOOTrainer):  # type: ignore[misc]
    """TRL's RLOO on the rollouts of an environment."""

    config = staticmethod(rloo_config)

    def __init__(self, *args: Any, **given: Any) -> None:
        """Create the trainer, with the arguments of `StepTrainer`."""
        self.rewards: list[float | None] = []
        self.sampled_GT = torch.empty(0)
        """Mask of the rows to compute next: 1 for tokens that the policy sampled."""
        self.sampling_GT = torch.empty(0)
        """Log-probabilities of these tokens when they were sampled."""
        super().__init__(*args, **given, reward_funcs=[reward])

    def _generate(self, prompts: list[Any]) -> tuple[Any, Any, Any]:
        played = self.play_step(prompts)
        self.sampled_GT, self.sampling_GT = (
            pad_sequence(
                [torch.tensor(row, device=self.accelerator.device) for row in played[name]], batch_first=True
            )
            for name in ("env_mask", "logprobs")
        )
        self.rewards = played["environment_reward"]
        return played["prompt_ids"], played["completion_ids"], [""] * len(prompts)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *others: Any) -> torch.Tensor:
        pairs = zip(inputs, self.rewards, strict=True)
        rows = [{**row, "environment_reward": value} for row, value in pairs]
        rewards: torch.Tensor = super()._calculate_rewards(rows, *others)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return {**output, "tool_mask": self.sampled_GT, "sampling_per_token_logps": self.sampling_GT}

    def _get_per_token_logps_and_entropies(self, *args: Any, **given: Any) -> tuple[Any, Any, Any]:
        """Return TRL's values with 0 for the environment's tokens, because TRL sums over all tokens."""
        logprobs_GT, entropies_GT, unused = super()._get_per_token_logps_and_entropies(*args, **given)
        return logprobs_GT * self.sampled_GT, entropies_GT, unused

    def _compute_loss(self, model: Any, inputs: dict[str, Any], *others: Any) -> Any:
        self.sampled_GT = inputs["tool_mask"]
        return super()._compute_loss(model, inputs, *others)
