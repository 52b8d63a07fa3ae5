"""RLOO with TRL's `RLOOTrainer`, which compares each whole rollout with the mean of the others in its group.

Its policy ratio is that of a whole rollout: the product over the rollout's sampled tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl import RLOOConfig

from wander.train.config import GRPOSettings
from wander.train.internals import RLOOInternals
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


class LeaveOneOutTrainer(StepTrainer, RLOOInternals):
    """TRL's RLOO on the rollouts of an environment."""

    config = staticmethod(rloo_config)

    def __init__(self, *args: Any, **given: Any) -> None:
        """Create the trainer, with the arguments of `StepTrainer`."""
        self.sampled_GT = torch.empty(0)
        """Mask of the rows to compute next: 1 for tokens that the policy sampled."""
        self.sampling_GT = torch.empty(0)
        """Log-probabilities of these tokens when they were sampled."""
        super().__init__(*args, **given, reward_funcs=[reward])

    def play_step(self, prompts: list[Any]) -> dict[str, Any]:
        """Play a step, and keep what RLOO would lose: which tokens the policy sampled."""
        played = super().play_step(prompts)
        self.sampled_GT, self.sampling_GT = (
            pad_sequence(
                [torch.tensor(row, device=self.accelerator.device) for row in played[name]], batch_first=True
            )
            for name in ("env_mask", "logprobs")
        )
        return played

    def with_rewards(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of TRL's dataset with the rewards of the step."""
        pairs = zip(inputs, self.step_rewards, strict=True)
        return [{**row, "environment_reward": value} for row, value in pairs]

    def finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a step's rows in TRL's format, with the policy's tokens and their log-probabilities."""
        columns = {"tool_mask": self.sampled_GT, "sampling_per_token_logps": self.sampling_GT}
        return {**super().finish_batch(batch), **columns}

    def compute_logprobs(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return log-probabilities of 0 for the environment's tokens, because TRL sums over all tokens."""
        logprobs_GT, entropies_GT = super().compute_logprobs(*given)
        return logprobs_GT * self.sampled_GT, entropies_GT

    def loss_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return all rows of a slice of the step, and remember which of their tokens the policy sampled."""
        self.sampled_GT = inputs["tool_mask"]
        return super().loss_inputs(inputs)
