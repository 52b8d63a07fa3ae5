"""Everything that uses private members of TRL, transformers and accelerate.

The libraries may change these members in any release, so the version of TRL is pinned, and
`tests/sdk/training/test_internals.py` compares the source of each member with the one that we read. No other
module of `wander` may use one, which that test also checks. Each class here overrides members of a trainer
and calls methods without an underscore instead. `StepTrainer` and its subclasses implement these methods.

Names of tensors end in their dimensions, as explained in `wander.train.grpo`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from transformers import Trainer
from trl import DistillationTrainer, DPOTrainer, GRPOTrainer, KTOTrainer, RLOOTrainer, SFTTrainer


class StepInternals(Trainer):  # type: ignore[misc]
    """The members that TRL's trainers of rollouts share."""

    def before_accelerator(self) -> None:
        """Prepare the process for its accelerator."""

    @abstractmethod
    def play_step(self, prompts: list[Any]) -> dict[str, Any]:
        """Return the columns of a played step, with an entry for each prompt."""

    @abstractmethod
    def finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return TRL's batch of a whole step, with the additional columns that our losses read.

        The batch has TRL's `prompt_ids`, `completion_ids`, their masks and, for GRPO and RLOO, `advantages`.
        """

    def loss_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a slice of the step that are computed."""
        return inputs

    @abstractmethod
    def computing(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Return a context in which TRL computes the loss of a slice of the step."""

    @abstractmethod
    def compute_logprobs(
        self,
        model: Any,
        ids_GS: torch.Tensor,
        real_GS: torch.Tensor,
        kept: int,
        size: int | None,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return `logprobs_GT` and `entropies_GT` of the last `kept` tokens, `size` rows at a time."""

    @abstractmethod
    def save_batch(self, batch: Any) -> None:
        """Add a step's rows to the checkpoint that was just saved, if more updates learn from them."""

    @abstractmethod
    def load_batch(self, checkpoint: Path) -> tuple[Any, int] | None:
        """Return the rows in a checkpoint and the number of updates that learned from them, or None."""

    def create_model_card(self, *given: Any, **named: Any) -> None:
        """Write no card: TRL's describes none of our runs, and `wander model push` writes one."""

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator."""
        self.before_accelerator()
        super().create_accelerator_and_postprocess()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        return self.finish_batch(super()._generate_and_score_completions(inputs))

    def _compute_loss(self, model: Any, inputs: dict[str, Any], *others: Any) -> Any:
        chosen = self.loss_inputs(inputs)
        with self.computing(chosen):
            return super()._compute_loss(model, chosen, *others)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **unused: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        given = (model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy)
        return *self.compute_logprobs(*given), None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.save_batch(getattr(self, "_buffered_inputs", None))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and (kept := self.load_batch(Path(checkpoint))) is not None:
            self._buffered_inputs, done = kept
            self._step = done * self.args.gradient_accumulation_steps


class GRPOInternals(StepInternals, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO, which plays a step instead of sampling."""

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        played = self.play_step(prompts)
        rewards = {"environment_reward": played["environment_reward"]}
        texts = [""] * len(prompts)  # TRL would only print them
        return (
            *(played["prompt_ids"], played["completion_ids"], played["env_mask"], texts, played["logprobs"]),
            *(rewards, None, []),
        )


class RLOOInternals(StepInternals, RLOOTrainer):  # type: ignore[misc]
    """TRL's RLOO, which plays a step instead of sampling."""

    @abstractmethod
    def with_rewards(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of TRL's dataset with the rewards of the step."""

    def _generate(self, prompts: list[Any]) -> tuple[Any, Any, Any]:
        played = self.play_step(prompts)
        return played["prompt_ids"], played["completion_ids"], [""] * len(prompts)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *others: Any) -> torch.Tensor:
        rewards: torch.Tensor = super()._calculate_rewards(self.with_rewards(inputs), *others)
        return rewards


class DistillationInternals(StepInternals, DistillationTrainer):  # type: ignore[misc]
    """TRL's distillation, which plays a step instead of sampling."""

    @abstractmethod
    def hidden_states(
        self, model: Any, ids_GS: torch.Tensor, real_GS: torch.Tensor, kept: int
    ) -> torch.Tensor:
        """Return a model's last hidden state for each of the last `kept` tokens."""

    def trl_hidden_states(self, *given: Any) -> torch.Tensor:
        """Return what TRL computes for `hidden_states`."""
        hidden: torch.Tensor = super()._get_last_hidden_state(*given)
        return hidden

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        played = self.play_step(prompts)
        return played["prompt_ids"], played["completion_ids"], played["env_mask"], None, []

    def _get_last_hidden_state(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int
    ) -> torch.Tensor:
        return self.hidden_states(model, input_ids, attention_mask, logits_to_keep)


class SFTInternals(SFTTrainer):  # type: ignore[misc]
    """TRL's SFT with an order of its own."""

    @abstractmethod
    def order(self) -> Any:
        """Return the sampler of the indexes of rows."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.order()


class DPOInternals(DPOTrainer):  # type: ignore[misc]
    """TRL's DPO on rows that are already tokens."""

    def _prepare_dataset(self, dataset: Any, *unused: Any) -> Any:
        return dataset


class KTOInternals(KTOTrainer):  # type: ignore[misc]
    """TRL's KTO on rows that are already tokens."""

    def _prepare_dataset(self, dataset: Any, *unused: Any) -> Any:
        return dataset


def save_checkpoint(trainer: Any) -> None:
    """Save a checkpoint of a trainer's current step."""
    trainer._save_checkpoint(trainer.model, trial=None)


def wrap_checkpoints(trainer: Any, wrap: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Replace the function with which a trainer saves checkpoints by `wrap` of it."""
    trainer._save_checkpoint = wrap(trainer._save_checkpoint)


def keep_adapters_exact(model: Any) -> None:
    """Keep TRL from rounding the adapters of a 4-bit model to bfloat16, which loses most of their updates."""
    model.is_loaded_in_4bit = False


def shard_on_any_device() -> None:
    """Allow the next accelerator to shard on CPUs.

    accelerate shards only processes on GPUs, so processes on CPUs claim to be on GPUs while it decides.
    """
    if PartialState().distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
