"""The settings of the algorithm as TRL takes them, and what follows from them."""

from __future__ import annotations

from pathlib import Path

from trl import GRPOConfig

from wander.train.config import GRPOSettings
from wander.train.parallel import sharding_arguments
from wander.train.play.inference import correction_arguments
from wander.train.processes import rows_and_accumulation
from wander.train.trainer import training_arguments

CISPO_CLIP_HIGH = 5.0
"""TRL's default for cispo is 0.2, which multiplies every on-policy gradient by 0.2."""


def grpo_config(settings: GRPOSettings, folder: Path, processes: int = 1) -> GRPOConfig:
    """Translate the settings into TRL's, for each of so many processes."""
    algorithm, batch = settings.algorithm, settings.batch
    rows, accumulation = rows_and_accumulation(settings, processes)
    clip_high = algorithm.clip_high or (CISPO_CLIP_HIGH if algorithm.loss == "cispo" else None)
    lengths = settings.sampling
    return GRPOConfig(
        **{**training_arguments(settings.model, settings.schedule, folder), **sharding_arguments(settings)},
        max_steps=settings.schedule.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulation,
        # All rollouts of a step are played at once and used for that step only.
        steps_per_generation=accumulation,
        num_generations=batch.group_size,
        shuffle_dataset=False,
        loss_type="grpo" if algorithm.loss == "gspo" else algorithm.loss,
        importance_sampling_level="sequence" if algorithm.loss == "gspo" else "token",
        epsilon=algorithm.clip_low,
        epsilon_high=clip_high,
        scale_rewards=algorithm.scale_rewards,
        beta=algorithm.kl,
        entropy_coef=algorithm.entropy_bonus,
        temperature=lengths.temperature,
        # Only dr_grpo's constant denominator reads it.
        max_completion_length=lengths.max_rollout_tokens or lengths.max_tokens,
        remove_unused_columns=False,
        # A row's forward pass is one of several before the backward pass, and buffers are constants.
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
        **correction_arguments(settings.inference),
        save_strategy="steps" if settings.output.checkpoint_every else "no",
        save_steps=settings.output.checkpoint_every or 500,
    )


def idle_rows_add_nothing(settings: GRPOSettings) -> bool:
    """Return whether rows without advantage can be left out, because they cannot change the gradient.

    That is exact only where the loss is one sum over all tokens of the step divided by a constant, and no
    other term acts on them.
    """
    algorithm = settings.algorithm
    return algorithm.loss in ("dapo", "cispo") and algorithm.kl == 0 and algorithm.entropy_bonus == 0
