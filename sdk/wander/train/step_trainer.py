"""The step of a TRL trainer: play it on an environment, compute its rows, and record it.

Names of tensors end in their dimensions, as explained in `wander.train.grpo`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy
import torch
from datasets import Dataset
from transformers import TrainerCallback

from wander.errors import RunError, name_option
from wander.models.engines.weights import whole_weights
from wander.models.sampling import keeps_cache
from wander.train.config import GRPOSettings
from wander.train.correction import SamplingGap
from wander.train.distributed import (
    World,
    make_sharding_arguments,
    rows_and_accumulation,
    shards_policy,
)
from wander.train.engine import CurrentWeights, attach
from wander.train.hugging_face_trainer import (
    checkpoint_arguments,
    checkpoint_of,
    make_arguments,
    save_now,
)
from wander.train.internals import StepInternals, shard_on_any_device
from wander.train.records.checkpoints import BATCH, SavedCheckpoint
from wander.train.records.grpo_record import GRPORecord
from wander.train.rollouts.ahead import StepsAhead
from wander.train.rollouts.buckets import (
    ROWS_PER_FORWARD,
    Bucket,
    cut_buckets,
    cut_rows,
    fill_up,
    find_openings,
    forward_cost,
    later_sequences,
    read_openings,
    split_by_cost,
    split_evenly,
)
from wander.train.rollouts.rollout_func import PLACE
from wander.train.rollouts.rows import Row, lay_out, trl_columns
from wander.train.rollouts.step import PlayedStep, StepPlayer, merge_shares
from wander.train.rollouts.step_metrics import rollout_metrics
from wander.train.watch.evaluation import PolicyEvaluation
from wander.train.weights import QuantizationNote
from wander.types import Rollout

CHECKPOINT_STEPS = 20
"""Steps between checkpoints if the settings do not mention them, and so the maximum loss if the run is
killed."""


@dataclass
class BeforeStep:
    """The state that a step changes before it changes weights."""

    step: int
    sampler: dict[str, Any]
    """State of the sampler of examples."""
    generators: tuple[Any, Any, torch.Tensor] = field(
        default_factory=lambda: (random.getstate(), numpy.random.get_state(), torch.get_rng_state())
    )
    """States of Python's, NumPy's and PyTorch's random generators."""
    devices: list[torch.Tensor] = field(
        default_factory=lambda: torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    )

    def restore_generators(self) -> None:
        """Restore the random generators to their state at the start of the step."""
        python, arrays, tensors = self.generators
        random.setstate(python)
        numpy.random.set_state(arrays)
        torch.set_rng_state(tensors)
        if self.devices:
            torch.cuda.set_rng_state_all(self.devices)


class BetweenSteps(TrainerCallback):  # type: ignore[misc]
    """Work between steps, in this order: before the first step, after each step, and for each checkpoint."""

    def __init__(self, trainer: StepTrainer, evaluation: PolicyEvaluation | None) -> None:
        self.trainer = trainer
        self.evaluation = evaluation

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Send the initial weights to the engine, and evaluate them."""
        self.trainer.weights.refresh()
        if self.evaluation:
            self.evaluation.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Send the weights to the engine, and evaluate them."""
        self.trainer.weights.refresh()
        if self.evaluation:
            self.evaluation.end_step(state.global_step, state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Write the state that determines the next steps into a checkpoint; the record then seals it."""
        trainer, folder = self.trainer, checkpoint_of(args, state)
        if trainer.ahead:
            trainer.ahead.save(folder)
        for part in trainer.checkpoint_parts if trainer.world.is_main else ():
            part.save(folder)


class StepTrainer(StepInternals):
    """Second base of TRL's trainers, which makes them learn from the rollouts of an environment."""

    config: Callable[[GRPOSettings, Path, int], Any]
    """Function that translates the settings to TRL's."""
    repeats_rows = True
    """Whether TRL's sampler draws each row once for every rollout of a group."""

    def __init__(
        self,
        player: StepPlayer,
        model: Any,
        tokenizer: Any,
        settings: GRPOSettings,
        folder: Path,
        record: GRPORecord,
        world: World,
        ahead: StepsAhead | None = None,
        *,
        evaluation: PolicyEvaluation | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        begun: SavedCheckpoint | None = None,
        **given: Any,
    ) -> None:
        """Create the trainer.

        `ahead` plays steps in advance; without it, each step is played when it is needed. `begun` is the
        checkpoint of a resumed run. `given` are additional arguments of TRL's trainer.
        """
        self.world = world
        self.ahead = ahead
        self.player = player
        self.settings = settings
        self.record = record
        self.step_metrics: dict[str, Any] = {}
        self.step_rewards: list[float | None] = []
        """Rewards of this process's rollouts of the step, group by group; None for failed rollouts."""
        self.later_GK2: torch.Tensor | None = None
        """Positions of the sequences in the rows to compute next (`rollouts/buckets.py`)."""
        self.sampling_gap = SamplingGap(settings)
        self.slice: dict[str, Any] | None = None
        """Inputs of the current loss."""
        self.step_started = perf_counter()
        self.before: BeforeStep | None = None
        """State before the current step, or before the last step."""
        record.extra = self._finish_step_metrics
        self.weights = CurrentWeights(
            *(self, player.source.client.engine, world), tells_step=ahead is not None
        )
        self.checkpoint_parts: list[Any] = [player.mixture, player.opponents]
        """Objects that write their own files into a checkpoint, in addition to TRL's."""
        if begun is not None:
            for part in [*self.checkpoint_parts, *([ahead] if ahead else [])]:
                part.load(begun.path)
        groups = range(settings.batches * settings.batch.groups)
        super().__init__(
            model=model,
            processing_class=tokenizer,
            args=type(self).config(settings, folder, world.size),
            # TRL's dataset contains only group numbers, because our sampler chooses the examples.
            train_dataset=Dataset.from_list(
                [
                    {"prompt": [{"role": "user", "content": "", PLACE: number}]}
                    for number in groups
                    for _ in range(1 if self.repeats_rows else settings.batch.group_size)
                ]
            ),
            **given,
            # An evaluation adds to the line that the record writes, and the watch and the trackers read that
            # line.
            callbacks=[BetweenSteps(self, evaluation), QuantizationNote(), record, *callbacks],
        )
        if "ref" in getattr(model, "peft_config", {}):
            # TRL copies the first adapters, which are zero. The copy is not needed, because the policy
            # without adapters is the reference. Also, transformers 5.17 restores only that copy from a
            # checkpoint that contains it.
            model.delete_adapter("ref")
        attach(self.weights)
        # Layers that are recomputed for the gradient do not keep keys and values.
        self.shares_openings = keeps_cache(model.config) and not settings.model.gradient_checkpointing

    def before_accelerator(self) -> None:
        """Let the accelerator shard the policy on any device."""
        if shards_policy(self.settings):
            shard_on_any_device()

    def play_step(self, prompts: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Draw and play this process's groups of the next step.

        `prompts` has an entry for each rollout, with groups together, and so has every returned list. TRL
        then pads the tokens, and GRPO and RLOO compute an advantage for each rollout from the rewards.
        """
        begun, number = perf_counter(), self.state.global_step
        self.before = BeforeStep(number, self.player.mixture.state())
        places = dict.fromkeys(int(prompt[-1][PLACE]) % self.settings.batch.groups for prompt in prompts)
        slots, ahead = list(places), self.ahead
        try:
            if ahead:
                own, version = self.world.together(lambda: ahead.take(number, slots))
            else:
                own, version = self._play(slots), number
        except RunError as error:
            if self.keep_finished_steps():
                resume = name_option("resume", str(self._run_folder), command="wander train")
                error.hint = (error.hint or "") + f"; resume after step {number} with " + resume
            raise
        step = merge_shares(self.world.exchange([own]))
        self.weights.engine.rest()
        refills = self.settings.data.refill_rounds > 0
        self.step_metrics = rollout_metrics(step, self.player.source.labels, refills=refills)
        if self.ahead:  # playing took no time of this step, because the policy was learning meanwhile
            self.step_metrics |= {"seconds/rollouts": perf_counter() - begun, "staleness": number - version}
        self.record.first_failure = next(
            (
                f"{rollout.failure.type}: {rollout.failure.message}"
                for call in step.calls
                for rollout in call.rollouts
                if rollout.failure is not None
            ),
            None,
        )
        self.record.keep(number + 1, step, version)
        rows = [
            row if self._learns_from(row, rollout) else row.without_tokens()
            for row, rollout in zip(own.rows, own.rollouts, strict=True)
        ]
        lines = [lay_out(row, self.processing_class.eos_token_id) for row in rows]
        self.later_GK2 = later_sequences(lines, self.accelerator.device)
        self.step_rewards = [row.reward for row in rows]
        return trl_columns(lines, self.step_rewards)

    def finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return TRL's batch of the whole step, with the positions of the rows' sequences.

        For GRPO and RLOO, `batch["advantages"]` has a value for each rollout of this process, in the order of
        `step_rewards`. Other advantages replace it here.
        """
        return batch if self.later_GK2 is None else {**batch, "later_sequences": self.later_GK2}

    def _learns_from(self, row: Row, rollout: Rollout) -> bool:
        return not (rollout.truncated and self.settings.algorithm.mask_truncated_completions)

    def _play(self, slots: list[int]) -> PlayedStep:
        """Play this process's share of a step."""
        self.weights.refresh()
        player, version = self.player, self.state.global_step
        player.opponents.prepare(player.source.client, version, lambda: whole_weights(self.model))
        return self.world.together(lambda: player.play(player.draw(slots)))

    @property
    def _run_folder(self) -> Path:
        return Path(self.args.output_dir).parent

    def keep_finished_steps(self) -> bool:
        """Save a checkpoint of the finished steps and redraw the current step; return whether a checkpoint
        exists.

        Several processes resume from the last checkpoint that they saved together.
        """
        step = self.state.global_step
        if step == 0 or self.world.size > 1:
            return False
        if self.ahead:
            self.ahead.abandon(step)
        if self.before is not None and self.before.step == step:
            self.before.restore_generators()
            self.player.mixture.restore(self.before.sampler)
        save_now(self)
        return True

    @contextlib.contextmanager
    def computing(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Compute the loss of a slice of the step in the block."""
        self.later_GK2 = inputs.get("later_sequences")
        self.slice = inputs
        # TRL multiplies the loss by `importance_sampling_ratio` if it believes that vLLM sampled.
        self.use_vllm = self.sampling_gap.corrects
        try:
            yield
        finally:
            self.slice, self.use_vllm = None, False

    def compute_logprobs(
        self,
        model: Any,
        ids_GS: torch.Tensor,
        real_GS: torch.Tensor,
        kept: int,
        size: int | None,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return `logprobs_GT` and `entropies_GT` of the last `kept` tokens, without computing padding.

        Rows are cut into their sequences and computed in buckets of similar length, so positions start at 0,
        as when the tokens were sampled. A shared beginning is computed once (rollouts/buckets.py).
        """
        rows, width = ids_GS.shape
        logprobs_GS = torch.zeros((rows + 1, width), device=ids_GS.device)
        entropies_GS = torch.zeros_like(logprobs_GS)
        for bucket in self._buckets(ids_GS, real_GS, width - kept, size, model):
            with self.accelerator.autocast():
                output = model(
                    input_ids=bucket.ids_BL,
                    labels=bucket.ids_BL.masked_fill(~bucket.scored_BL, -100),
                    fused_lm_head=True,
                    **bucket.context,
                )
            scored = bucket.scored_BL[:, 1:]
            logprobs_GS = logprobs_GS.index_put(bucket.target, output.log_probs[scored].float())
            if with_entropy:
                entropy = output.entropy[scored].float()
                # Without a bonus, the entropy is only a metric, so it needs no gradient.
                bonus = self.settings.algorithm.entropy_bonus or "use_adaptive_entropy" in self.settings.trl
                entropies_GS = entropies_GS.index_put(bucket.target, entropy if bonus else entropy.detach())
        logprobs_GT, entropies_GT = (values[:rows, -kept:] for values in (logprobs_GS, entropies_GS))
        if self.slice is not None and torch.is_grad_enabled():
            self.sampling_gap.read(self.slice, logprobs_GT)
        return logprobs_GT, entropies_GT if with_entropy else None

    def _buckets(
        self,
        ids_GS: torch.Tensor,
        real_GS: torch.Tensor,
        prompt: int,
        size: int | None = None,
        reader: Any = None,
    ) -> Iterator[Bucket]:
        """Yield the sequences of padded rows whose completions start at column `prompt`, by length.

        The model `reader` computes the beginnings that sequences share; without it they are not shared.
        """
        pieces = cut_rows(real_GS, prompt, self.later_GK2)
        size = min(ROWS_PER_FORWARD, size or ROWS_PER_FORWARD)
        if shards_policy(self.settings):  # all processes must compute the same number of times
            count = pieces.rows_P.new_tensor([len(pieces.rows_P)])
            pieces = fill_up(pieces, int(self.accelerator.gather(count).max()), scratch=len(ids_GS))
            return cut_buckets(ids_GS, pieces, lambda lengths: split_evenly(len(lengths), size))
        shared = None
        if reader is not None and self.shares_openings and (openings := find_openings(ids_GS, pieces)):
            with self.accelerator.autocast():
                shared = openings, read_openings(openings, reader, size)
        cost = forward_cost(ids_GS.device)
        return cut_buckets(ids_GS, pieces, lambda lengths: split_by_cost(lengths, size, cost), shared)

    def save_batch(self, batch: Any) -> None:
        """Add a step's rows to the checkpoint that was just saved, if more updates learn from them."""
        if self.state.global_step % self.settings.algorithm.num_iterations:
            folder = checkpoint_of(self.args, self.state)
            torch.save(batch, folder / BATCH.format(self.world.rank))

    def load_batch(self, checkpoint: Path) -> tuple[Any, int] | None:
        """Return the rows in a checkpoint and the number of updates that learned from them, or None."""
        file = checkpoint / BATCH.format(self.world.rank)
        if not file.is_file():
            return None
        device = self.accelerator.device
        # A sharded policy computes on `cpu:0`, which PyTorch cannot load tensors to.
        place = device if device.type != "cpu" else "cpu"
        batch = torch.load(file, map_location=place, weights_only=True)
        return batch, self.state.global_step % self.settings.algorithm.num_iterations

    def _finish_step_metrics(self) -> dict[str, Any]:
        """Return metrics in addition to TRL's: those of the rollouts, and the times."""
        now = perf_counter()
        seconds, self.step_started = now - self.step_started, now
        metrics = self.step_metrics | self.sampling_gap.take_metrics(self.world.exchange)
        self.step_metrics = {}
        rollouts = metrics.get("seconds/rollouts", 0.0)
        sync, self.weights.seconds = self.weights.seconds, 0.0
        if not self.weights.engine.reads_live_weights:
            metrics["seconds/sync"] = sync
        return {**metrics, "seconds/step": seconds, "seconds/update": seconds - rollouts - sync}


def common_arguments(settings: GRPOSettings, folder: Path, processes: int) -> dict[str, Any]:
    """Return the common arguments of TRL's trainers, for each of several processes."""
    rows, accumulation = rows_and_accumulation(settings, processes)
    lengths, output = settings.sampling, settings.output
    return {
        **make_arguments(settings.model, settings.schedule, settings.logging, folder),
        **make_sharding_arguments(settings),
        **checkpoint_arguments(output.checkpoint_every, CHECKPOINT_STEPS, output.checkpoints_kept),
        "max_steps": settings.schedule.steps,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "shuffle_dataset": False,
        "temperature": lengths.temperature,
        # Only the constant denominator of dr_grpo uses this value.
        "max_completion_length": lengths.max_rollout_tokens or lengths.max_tokens,
        "remove_unused_columns": False,
        # A row needs several forward passes before the backward pass, and buffers are constants.
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,
    }


def group_arguments(settings: GRPOSettings, processes: int) -> dict[str, Any]:
    """Return the arguments of the trainers that compare the rollouts of a group."""
    algorithm = settings.algorithm
    return {
        # All rollouts of a step are played together.
        "steps_per_generation": rows_and_accumulation(settings, processes)[1],
        "num_iterations": algorithm.num_iterations,
        "num_generations": settings.batch.group_size,
        "epsilon": algorithm.clip_low,
        "epsilon_high": algorithm.clip_high,
        "beta": algorithm.kl,
    }
