"""GRPO on any environment, with TRL's `GRPOTrainer`. Read top to bottom.

One step: take the next examples (`wander.train.play.sampler`), let the policy play each of them `group_size`
times, give every rollout the advantage reward minus its group's mean, and take one policy-gradient step on
the policy's own tokens. TRL does the algorithm (losses, advantages, optimizer, checkpoints); this module
brings the rollouts, through TRL's `rollout_func`.

Three things TRL leaves open are settled here:
- only prompts reach `rollout_func`, so each carries its slot in the step as an extra key;
- padding: rows are computed without their padding, in buckets of alike length;
- rows without advantage are not computed where that changes nothing (dapo, cispo without a KL term): their
  gradient is exactly zero, and late in a run most groups are such.

What samples is an engine (`wander.train.play.inference`), and several processes may share a step
(`wander.train.processes`). Left out on purpose: several updates per batch of rollouts (the policy ratio is
always 1 at the update).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from wander.models.loading import load_model, weights_digest
from wander.models.policy import PolicyClient
from wander.models.quiet import quiet_libraries
from wander.train.algorithm import grpo_config, idle_rows_add_nothing
from wander.train.averaging import weight_means
from wander.train.config import GRPOSettings
from wander.train.lora import wrap_lora
from wander.train.parallel import shard_on_any_device, shards_policy, shared_out
from wander.train.play.environments import EnvironmentOpener, PinSource, choices_of
from wander.train.play.gathering import PlayedStep, StepPlayer, mixture_of
from wander.train.play.inference import (
    CurrentWeights,
    ServerOpener,
    attach,
    opened_engine,
    save_policy,
)
from wander.train.play.merging import merged_step
from wander.train.play.rollouts import RolloutSource, Trajectory, without_truncated
from wander.train.play.sampler_checkpoint import SamplerCheckpoint
from wander.train.processes import (
    World,
    current_world,
    own_folder,
)
from wander.train.records.outcome import BestCheckpoint, Outcome, Stopped, write_outcome
from wander.train.records.record import METRICS, SavedByAll, TrainingRecord
from wander.train.records.step_metrics import mean, rollout_metrics
from wander.train.schedule.evaluating import BEST_MODEL, Listener, save_copy, scheduled
from wander.train.sft import Progress
from wander.train.trainer import (
    StepLog,
    remove_checkpoints,
    train_until_interrupted,
)
from wander.train.watch.observing import observed
from wander.train.watch.trackers import require_trackers

PLACE = "wander_position"
"""Key of a prompt's message that numbers the groups of the run; what a group plays the sampler decides."""

ROWS_PER_FORWARD = 32
"""Rows of alike length computed together; smaller wastes less padding, larger multiplies bigger matrices."""


@dataclass(frozen=True)
class GRPOResult:
    """What a GRPO run made."""

    model: Path
    steps: int
    interrupted: bool
    first_reward: float
    """Mean reward of the first tenth of the steps."""
    final_reward: float
    """Mean reward of the last tenth of the steps."""
    rollouts: int
    seconds: float
    stopped: Stopped | None = None
    """Why it ended before its last step."""
    best: BestCheckpoint | None = None
    """Which weights lie in `best`, where it keeps them."""


def result_of(
    folder: Path, log: StepLog, outcome: Outcome, seconds: float, *, interrupted: bool
) -> GRPOResult:
    """Return what the run in a folder made, as its metrics tell."""
    rewards = [entry["reward"] for entry in log.entries if entry["reward"] is not None]
    tenth = max(1, len(rewards) // 10)
    return GRPOResult(
        model=folder / "model",
        steps=len(log.entries),
        interrupted=interrupted,
        first_reward=mean(rewards[:tenth]),
        final_reward=mean(rewards[-tenth:]),
        rollouts=sum(int(entry.get("rollouts", 0)) for entry in log.entries),
        seconds=seconds,
        stopped=outcome.stopped,
        best=outcome.best,
    )


def train_grpo(
    open_environment: EnvironmentOpener,
    settings: GRPOSettings,
    folder: Path,
    *,
    pin: PinSource | None = None,
    progress: Progress | None = None,
    resume: bool = False,
    checkpoint: int | None = None,
    allow_changes: bool = False,
    observers: Sequence[TrainerCallback] = (),
    evaluated: Sequence[Listener] = (),
    serve: ServerOpener | None = None,
) -> GRPOResult:
    """Improve a model on an environment and write it to `folder/model`.

    `folder` becomes a run folder: manifest, metrics of every step, sample rollouts, learning curves. `pin`
    tells, once the environment is open, how the manifest names it. With `resume` the run goes on from its
    newest checkpoint, or that of the step `checkpoint`; what is not as it was begun with raises `RunError`,
    or with `allow_changes` is recorded. `observers` are called after all else, `evaluated`
    hear of every evaluation. `serve` starts a vLLM server where the settings want one and name none. Of
    several processes the main one writes the folder and calls `observers`.
    """
    started = perf_counter()
    require_trackers(settings.logging.trackers)
    section = settings.model
    world = current_world(section.device)
    loaded = world.together(lambda: load_model(section.path, device=section.device, dtype=section.dtype))
    torch.manual_seed(settings.schedule.seed)  # adapters begin with random numbers
    model = wrap_lora(loaded.model, section)
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_out(settings, world))
        own = stack.enter_context(own_folder(folder, world))
        engine = stack.enter_context(opened_engine(settings, model, loaded, folder, world, serve))
        client = PolicyClient(model, loaded.tokenizer, name=loaded.name, engine=engine)
        source = world.together(lambda: source_of(open_environment, client, settings))
        stack.callback(source.close)
        player = player_of(source, settings, world)
        record = world.together(
            lambda: TrainingRecord.open(
                *(own, settings, source, client, loaded, pin),
                resume=resume and world.is_main,
                checkpoint=checkpoint,
                allow_changes=allow_changes,
            )
        )
        stack.callback(record.close)
        begun = world.from_main(lambda: record.checkpoint.path if record.checkpoint else None)
        log = StepLog(own / METRICS, progress if world.is_main else None, keep=begun)
        log.agree = world.any
        sampling = SamplerCheckpoint(player.mixture, settings.batch.groups, begun)
        with (
            quiet_libraries(),
            record.arithmetic(),
            scheduled(
                *(open_environment, client, settings, own, log),
                lambda step, place: weights_digest(save_copy(model, loaded, place)),
                world=world,
                checkpoint=begun,
                listeners=evaluated if world.is_main else (),
            ) as schedule,
            world.in_main(lambda: observed(source, settings, own, log, begun)) as watching,
        ):
            # Whatever else happens between steps (trackers, panels) is one more of these.
            mine = [*record.callbacks_of(world), *watching, *(observers if world.is_main else ())]
            callbacks = [*schedule.callbacks, sampling, SavedByAll(world), *mine]
            trainer = RolloutTrainer(
                *(player, model, loaded.tokenizer, settings, folder, log, record, world), callbacks=callbacks
            )
            interrupted = train_until_interrupted(trainer, log, begun)
            outcome = schedule.outcome(trainer.state.global_step, interrupted=interrupted)
            if outcome.best is not None:
                record.keep_weights(outcome.best.step, own / BEST_MODEL)
            record.keep_weights(outcome.steps, save_policy(trainer.model, loaded, own / "model"))
        if not interrupted:
            record.finish()
        write_outcome(own, outcome)
    if world.is_main and not interrupted and settings.output.checkpoint_every == 0:
        remove_checkpoints(folder)
    return result_of(folder, log, outcome, perf_counter() - started, interrupted=interrupted)


def source_of(
    open_environment: EnvironmentOpener, client: PolicyClient, settings: GRPOSettings
) -> RolloutSource:
    """Return what plays the run's rollouts, its environments open."""
    client.limit_context(settings.sampling.max_rollout_tokens)
    seed = settings.environment.run_seed
    return RolloutSource(
        open_environment,
        client,
        sampling=sampling_of(settings),
        run_seed=settings.schedule.seed if seed is None else seed,
        choices=choices_of(settings),
        retries=settings.batch.retries,
    )


def player_of(source: RolloutSource, settings: GRPOSettings, world: World) -> StepPlayer:
    """Return what plays this process's share of each step."""
    mixture = mixture_of(source, settings)
    return StepPlayer(source, mixture, settings, rank=world.rank, exchange=world.exchange)


def sampling_of(settings: GRPOSettings) -> Any:
    """Return the sampling arguments of the rollouts."""
    from wander.types import SamplingArgs

    return SamplingArgs(temperature=settings.sampling.temperature, max_tokens=settings.sampling.max_tokens)


class RolloutTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, fed with the rollouts of an environment."""

    def __init__(
        self,
        player: StepPlayer,
        model: Any,
        tokenizer: Any,
        settings: GRPOSettings,
        folder: Path,
        log: StepLog,
        record: TrainingRecord,
        world: World | None = None,
        *,
        callbacks: Sequence[TrainerCallback],
    ) -> None:
        self.world = world or World()
        self.player = player
        self.settings = settings
        self.record = record
        self.step_metrics: dict[str, Any] = {}
        self.step_started = perf_counter()
        log.extra = self._finish_step_metrics
        self.weights = CurrentWeights(self, player.source.client.engine, self.world)
        super().__init__(
            model=model,
            processing_class=tokenizer,
            args=grpo_config(settings, folder, self.world.size),
            train_dataset=training_order(settings),
            reward_funcs=[reward],
            rollout_func=play_step,
            callbacks=[*weight_means(settings), self.weights, *callbacks],
        )
        # Where the policy is sharded, every process has to compute as often as the others.
        self.skips_idle_rows = idle_rows_add_nothing(settings) and not shards_policy(settings)
        attach(self.weights, settings.inference)

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, which shards the policy on any device."""
        if shards_policy(self.settings):
            shard_on_any_device()
        super().create_accelerator_and_postprocess()

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Compute the loss of one slice of the step, without the rows whose advantage is zero."""
        if self.skips_idle_rows:
            keep = self._rows_to_compute(inputs["advantages"])
            count = len(keep)
            inputs = {
                name: value[keep] if torch.is_tensor(value) and value.dim() and len(value) == count else value
                for name, value in inputs.items()
            }
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        return loss

    def _rows_to_compute(self, advantages: torch.Tensor) -> torch.Tensor:
        """Return a mask of the rows with an advantage, and of as many others as every process needs.

        TRL gathers values of every row, so all processes compute equally many; and the optimizer wants a
        gradient, if only a zero one, so at least one.
        """
        keep = advantages != 0
        most = self.accelerator.gather(keep.sum().reshape(1)).max().clamp(min=1)
        idle = (~keep).nonzero()[:, 0]
        keep[idle[: most - keep.sum()]] = True
        return keep

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
        """Score the last `logits_to_keep` tokens of every row: TRL's method, without computing padding.

        Rows are stripped of the padding on both sides and computed in buckets of alike length, so positions
        start at 0 as they did when the tokens were sampled.
        """
        width = input_ids.shape[1]
        lengths = attention_mask.sum(1)
        starts = attention_mask.argmax(1)
        logps = torch.zeros(input_ids.shape, device=input_ids.device)
        entropies = torch.zeros_like(logps)
        size = min(ROWS_PER_FORWARD, batch_size or ROWS_PER_FORWARD)
        for rows in torch.split(lengths.argsort(stable=True), size):
            places = torch.arange(int(lengths[rows].max()), device=input_ids.device)
            real = places[None] < lengths[rows][:, None]
            columns = (starts[rows][:, None] + places[None]).clamp(max=width - 1)
            ids = input_ids[rows].gather(1, columns)
            scored = real & (columns >= width - logits_to_keep)
            with self.accelerator.autocast():
                output = model(
                    input_ids=ids,
                    attention_mask=real.long(),
                    labels=ids.masked_fill(~scored, -100),
                    fused_lm_head=True,
                )
            target = (rows[:, None].expand_as(columns)[:, 1:][scored[:, 1:]], columns[:, 1:][scored[:, 1:]])
            logps = logps.index_put(target, output.log_probs[scored[:, 1:]].float())
            if compute_entropy:
                entropy = output.entropy[scored[:, 1:]].float()
                entropies = entropies.index_put(
                    target, entropy if self.settings.algorithm.entropy_bonus else entropy.detach()
                )
        return logps[:, -logits_to_keep:], entropies[:, -logits_to_keep:] if compute_entropy else None, None

    def play(self, slots: Sequence[int]) -> PlayedStep:
        """Play this process's groups of the next step, and keep what those of all tell."""
        self.weights.refresh()
        own = self.world.together(lambda: self.player.play(slots))
        step = merged_step(self.world.exchange([own]))
        self.weights.engine.rest()
        self.step_metrics = rollout_metrics(
            step, self.player.source.labels, refills=self.settings.data.refill_rounds > 0
        )
        self.record.keep(self.state.global_step + 1, step)
        return own

    def _finish_step_metrics(self) -> dict[str, Any]:
        now = perf_counter()
        seconds, self.step_started = now - self.step_started, now
        rollouts = self.step_metrics.get("seconds/rollouts", 0.0)
        sync = self.weights.take_seconds()
        if not self.weights.engine.reads_live_weights:
            self.step_metrics["seconds/sync"] = sync
        return {**self.step_metrics, "seconds/step": seconds, "seconds/update": seconds - rollouts - sync}


def training_order(settings: GRPOSettings) -> Any:
    """Return the dataset that TRL walks: one row a group, nothing but its number."""
    from datasets import Dataset

    groups = settings.schedule.steps * settings.batch.groups
    return Dataset.from_list([{"prompt": [{"role": "user", "content": "", PLACE: i}]} for i in range(groups)])


def play_step(prompts: list[list[dict[str, Any]]], trainer: RolloutTrainer) -> dict[str, Any]:
    """Play one step; TRL's `rollout_func`. `prompts` has one entry a rollout, groups together."""
    slots = dict.fromkeys(int(prompt[-1][PLACE]) % trainer.settings.batch.groups for prompt in prompts)
    step = trainer.play(list(slots))
    end = trainer.processing_class.eos_token_id
    trajectories = [trajectory or Trajectory([end], [end], [0], [0.0]) for trajectory in step.trajectories]
    if trainer.settings.algorithm.mask_truncated_completions:
        trajectories = without_truncated(trajectories, step.rollouts)
    return {
        "prompt_ids": [trajectory.prompt_ids for trajectory in trajectories],
        "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
        "logprobs": [trajectory.logprobs for trajectory in trajectories],
        "env_mask": [trajectory.mask for trajectory in trajectories],
        "environment_reward": step.rewards,
    }


def reward(environment_reward: list[float | None], **unused: Any) -> list[float | None]:
    """Hand TRL the rewards that the environment gave."""
    return environment_reward
