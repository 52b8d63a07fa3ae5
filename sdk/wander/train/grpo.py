"""GRPO on any environment, with TRL's `GRPOTrainer`. Read top to bottom.

One step, in the order in which it happens and stands below:

    draw          which example each group of the step plays              ours   rollouts/sampler.py
    play          the policy plays each of them `group_size` times        ours   rollouts/step.py, source.py
    advantages_G  reward minus the mean of its group, scaled if asked     TRL    0 for a failed rollout
    logprobs_GT   log-probability of every sampled token, as it is now    ours   without computing padding
    loss          dapo, cispo, ...: advantages times ratios, clipped      TRL    ours: which rows are computed
    update        gradients, clipping, AdamW, schedule, checkpoints       TRL    and transformers
    sync          what samples takes the new weights over                 ours   engine.py

The first update on some rollouts has a ratio of 1 to the policy that sampled them, so clipping acts where the
engine computes other bits (vLLM), which TRL's importance sampling corrects. So it does with
`batch.max_staleness`, where steps to come are played meanwhile: rollouts/ahead.py. With
`algorithm.num_iterations` more updates follow, each a step that draws and plays nothing: their ratio is to
the policy before the first of them, and a checkpoint between two of them keeps the rollouts.

Names end in their dimensions. `G`: rollouts of one backward pass, whole groups or a part of them. `T`: tokens
of a completion (what the policy and its environment said after the first prompt), padded on the right. `S`:
prompt and completion, padded on both sides. `P`: sequences of tokens of these rollouts. `B`: sequences of one
forward pass. `L`: their tokens, unpadded.

Four things TRL leaves open are settled here:
- a rollout is a row, however many sequences it was sampled in: they lie in it one after another, and each is
  computed by itself (rollouts/rows.py, layout.py). So a rollout counts once in any loss;
- only prompts reach `rollout_func`, so each carries its slot in the step as an extra key;
- padding: rows are computed without their padding, in buckets of alike length;
- rows without advantage are not computed where that changes nothing (dapo, cispo without a KL term): their
  gradient is exactly zero, and late in a run most groups are such.

Several processes may share a step (`wander.train.distributed`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from wander.errors import ConfigError, RunError
from wander.models.engines.weights import whole_weights
from wander.models.loading import LoadedModel, load_model, weights_digest
from wander.models.policy import PolicyClient
from wander.models.quiet import quiet_libraries
from wander.train.config import GRPOSettings, ModelSection
from wander.train.distributed import (
    World,
    current_world,
    make_sharding_arguments,
    own_folder,
    rows_and_accumulation,
    shard_on_any_device,
    shards_policy,
    share_out,
)
from wander.train.engine import (
    CurrentWeights,
    ServerOpener,
    attach,
    correction_arguments,
    engine_beside,
    open_engine,
)
from wander.train.evaluation.schedule import Listener, Schedule
from wander.train.records.checkpoints import BEST_MODEL, MODEL
from wander.train.records.outcome import BestCheckpoint, Outcome, Stopped, write_outcome
from wander.train.records.record import METRICS, TrainingRecord
from wander.train.rollouts.ahead import StepsAhead
from wander.train.rollouts.environments import EnvironmentOpener, PinSource, choices_of
from wander.train.rollouts.layout import cut_rows, fill_up, later_sequences
from wander.train.rollouts.opponents import Opponents
from wander.train.rollouts.own_trainer import PLACE, reward
from wander.train.rollouts.rows import lay_out, trl_columns
from wander.train.rollouts.sampler import SamplerCheckpoint
from wander.train.rollouts.source import Played, RolloutSource
from wander.train.rollouts.step import PlayedStep, StepPlayer, mean, merge_shares, mixture_of, rollout_metrics
from wander.train.trainer import (
    Progress,
    StepLog,
    checkpoint_arguments,
    count_covered_steps,
    make_arguments,
    tell_full_disk,
    train_until_interrupted,
)
from wander.train.watch.observers import open_observers
from wander.train.watch.trackers import require_trackers
from wander.train.weights import WeightMean, save_copy, save_policy, wrap_lora
from wander.types import SamplingArgs

ROWS_PER_FORWARD = 32
"""Rows of alike length computed together; smaller wastes less padding, larger multiplies bigger matrices."""

CHECKPOINT_STEPS = 20
"""Steps that a kill costs at most, where the settings say nothing of checkpoints."""

BATCH = "batch-{}.pt"
"""In a checkpoint between two updates that learn from the same rollouts: these, of each process."""

CISPO_CLIP_HIGH = 5.0
"""TRL's default for cispo is 0.2, which multiplies every on-policy gradient by 0.2."""


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
        world: World,
        ahead: StepsAhead | None = None,
        *,
        callbacks: Sequence[TrainerCallback],
    ) -> None:
        """`ahead` plays the steps before they are wanted; without it they are played when they are."""
        self.world = world
        self.ahead = ahead
        self.player = player
        self.settings = settings
        self.record = record
        self.step_metrics: dict[str, Any] = {}
        self.later_GK2: torch.Tensor | None = None
        """Where the sequences of the rows lie that are computed next (`rollouts/layout.py`)."""
        self.step_started = perf_counter()
        log.extra = self._finish_step_metrics
        self.weights = CurrentWeights(
            *(self, player.source.client.engine, world), tells_step=ahead is not None
        )
        averaged = settings.algorithm.average_steps
        groups = settings.batches * settings.batch.groups
        super().__init__(
            model=model,
            processing_class=tokenizer,
            args=grpo_config(settings, folder, world.size),
            # TRL walks a dataset of one row a group, which holds nothing but its number: the sampler decides.
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": "", PLACE: number}]} for number in range(groups)]
            ),
            reward_funcs=[reward],
            rollout_func=lambda prompts, _: self.play_step(prompts),
            # The mean of the weights comes before all that looks at the policy; what is played ahead is
            # written into a checkpoint before the sampler, which may have to go back.
            callbacks=[
                *([WeightMean(averaged)] if averaged else []),
                self.weights,
                *([ahead] if ahead else []),
                *callbacks,
            ],
        )
        if "ref" in getattr(model, "peft_config", {}):
            # TRL's copy of the first adapters, which add nothing: the policy without any is the reference.
            # And transformers 5.17 restores nothing but that copy from a checkpoint that has one.
            model.delete_adapter("ref")
        # Where the policy is sharded, every process has to compute as often as the others.
        self.skips_idle_rows = idle_rows_add_nothing(settings) and not shards_policy(settings)
        attach(self.weights, settings)

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, which shards the policy on any device."""
        if shards_policy(self.settings):
            shard_on_any_device()
        super().create_accelerator_and_postprocess()

    def play_step(self, prompts: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Draw and play this process's groups of the next step; TRL's `rollout_func`.

        `prompts` has one entry a rollout, groups together. Whatever is returned has one a rollout, too: TRL
        makes `advantages_G` of the rewards and pads the tokens.
        """
        begun, number = perf_counter(), self.state.global_step
        places = dict.fromkeys(int(prompt[-1][PLACE]) % self.settings.batch.groups for prompt in prompts)
        slots, ahead = list(places), self.ahead
        try:
            if ahead:
                own, version = self.world.together(lambda: ahead.take(number, slots))
            else:
                own, version = self._play(slots), number
        except RunError as error:
            self._keep_finished_steps(error)
            raise
        step = merge_shares(self.world.exchange([own]))
        self.weights.engine.rest()
        refills = self.settings.data.refill_rounds > 0
        self.step_metrics = rollout_metrics(step, self.player.source.labels, refills=refills)
        if self.ahead:  # what was played while the policy learnt took none of the step's time
            self.step_metrics |= {"seconds/rollouts": perf_counter() - begun, "staleness": number - version}
        self.record.keep(number + 1, step, version)
        rows = own.rows
        if self.settings.algorithm.mask_truncated_completions:
            rows = [
                row.without_tokens() if rollout.truncated else row
                for row, rollout in zip(rows, own.rollouts, strict=True)
            ]
        lines = [lay_out(row, self.processing_class.eos_token_id) for row in rows]
        self.later_GK2 = later_sequences(lines, self.accelerator.device)
        return trl_columns(lines, [row.reward for row in rows])

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a step's rows as TRL makes them, and where their sequences lie beside each."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return output if self.later_GK2 is None else {**output, "later_sequences": self.later_GK2}

    def _play(self, slots: list[int]) -> PlayedStep:
        """Play this process's share of a step; where that fails, it is to be drawn again."""
        self.weights.refresh()
        player, version = self.player, self.state.global_step
        player.opponents.prepare(player.source.client, version, lambda: whole_weights(self.model))
        sampler = self.player.mixture.state()
        try:
            return self.world.together(lambda: self.player.play(self.player.draw(slots)))
        except RunError:
            self.player.mixture.restore(sampler)
            raise

    def _keep_finished_steps(self, error: RunError) -> None:
        """Save a checkpoint when the rollouts of a step cannot be played."""
        step, folder = self.state.global_step, Path(self.args.output_dir)
        if step == 0 or self.world.size > 1:  # several processes go on from the last one they saved
            return
        if not (folder / f"checkpoint-{step}").is_dir():
            self._save_checkpoint(self.model, trial=None)
            self.callback_handler.on_save(self.args, self.state, self.control)
        error.hint = f"{error.hint}; go on after step {step} with `wander train --resume {folder.parent}`"

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
        """Return `logprobs_GT` and `entropies_GT`: TRL's method, without computing padding.

        Rows are stripped of the padding on both sides, cut into their sequences, and computed in buckets of
        alike length, so positions start at 0 as they did when the tokens were sampled.
        """
        ids_GS, real_GS = input_ids, attention_mask
        rows, width = ids_GS.shape
        pieces = cut_rows(real_GS, width - logits_to_keep, self.later_GK2)
        if shards_policy(self.settings):
            count = pieces.rows_P.new_tensor([len(pieces.rows_P)])
            pieces = fill_up(pieces, int(self.accelerator.gather(count).max()), scratch=rows)
        logprobs_GS = torch.zeros((rows + 1, width), device=ids_GS.device)
        entropies_GS = torch.zeros_like(logprobs_GS)
        size = min(ROWS_PER_FORWARD, batch_size or ROWS_PER_FORWARD)
        for chosen_B in torch.split(pieces.lengths_P.argsort(stable=True), size):
            rows_B, starts_B, lengths_B = (
                each[chosen_B] for each in (pieces.rows_P, pieces.starts_P, pieces.lengths_P)
            )
            places_L = torch.arange(int(lengths_B.max()), device=ids_GS.device)
            real_BL = places_L[None] < lengths_B[:, None]
            columns_BL = (starts_B[:, None] + places_L[None]).clamp(max=width - 1)
            ids_BL = ids_GS[rows_B % rows].gather(1, columns_BL)
            scored_BL = real_BL & (columns_BL >= pieces.owns_P[chosen_B][:, None])
            with self.accelerator.autocast():
                output = model(
                    input_ids=ids_BL,
                    attention_mask=real_BL.long(),
                    labels=ids_BL.masked_fill(~scored_BL, -100),
                    fused_lm_head=True,
                )
            # The output has an entry less than a row has tokens: nothing tells the first of them.
            scored = scored_BL[:, 1:]
            target = (rows_B[:, None].expand_as(columns_BL)[:, 1:][scored], columns_BL[:, 1:][scored])
            logprobs_GS = logprobs_GS.index_put(target, output.log_probs[scored].float())
            if compute_entropy:
                entropy = output.entropy[scored].float()
                # Without a bonus it is only told: no gradient passes through it.
                bonus = self.settings.algorithm.entropy_bonus
                entropies_GS = entropies_GS.index_put(target, entropy if bonus else entropy.detach())
        logprobs_GT, entropies_GT = (each[:rows, -logits_to_keep:] for each in (logprobs_GS, entropies_GS))
        return logprobs_GT, entropies_GT if compute_entropy else None, None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss of one slice of the step, without the rows whose advantage is zero."""
        if self.skips_idle_rows:
            advantages_G = inputs["advantages"]
            keep_G = self._rows_to_compute(advantages_G)
            inputs = {
                name: value[keep_G]
                if torch.is_tensor(value) and value.dim() and len(value) == len(keep_G)
                else value
                for name, value in inputs.items()
            }
        self.later_GK2 = inputs.get("later_sequences")
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        return loss

    def _rows_to_compute(self, advantages_G: torch.Tensor) -> torch.Tensor:
        """Return a mask of the rows with an advantage, and of as many others as every process needs.

        TRL gathers values of every row, so all processes compute equally many; and the optimizer wants a
        gradient, if only a zero one, so at least one.
        """
        keep_G = advantages_G != 0
        most = self.accelerator.gather(keep_G.sum().reshape(1)).max().clamp(min=1)
        idle = (~keep_G).nonzero()[:, 0]
        keep_G[idle[: most - keep_G.sum()]] = True
        return keep_G

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint, and the rollouts where more updates learn from them."""
        super()._save_checkpoint(model, trial)
        if self.state.global_step % self.num_iterations:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            torch.save(self._buffered_inputs, folder / BATCH.format(self.world.rank))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Take up what a checkpoint holds, the rollouts that it goes on with too."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and (file := Path(checkpoint) / BATCH.format(self.world.rank)).is_file():
            device = self.accelerator.device
            self._buffered_inputs = torch.load(file, map_location=device, weights_only=True)
            done = count_covered_steps(Path(checkpoint)) % self.num_iterations
            self._step = done * self.args.steps_per_generation

    def _finish_step_metrics(self) -> dict[str, Any]:
        """Return what TRL does not know of the step that ends: its rollouts, and where the time went."""
        now = perf_counter()
        seconds, self.step_started = now - self.step_started, now
        metrics, self.step_metrics = self.step_metrics, {}
        rollouts = metrics.get("seconds/rollouts", 0.0)
        sync, self.weights.seconds = self.weights.seconds, 0.0
        if not self.weights.engine.reads_live_weights:
            metrics["seconds/sync"] = sync
        return {**metrics, "seconds/step": seconds, "seconds/update": seconds - rollouts - sync}


def grpo_config(settings: GRPOSettings, folder: Path, processes: int = 1) -> GRPOConfig:
    """Translate the settings into TRL's, for each of so many processes."""
    algorithm, batch = settings.algorithm, settings.batch
    rows, accumulation = rows_and_accumulation(settings, processes)
    clip_high = algorithm.clip_high or (CISPO_CLIP_HIGH if algorithm.loss == "cispo" else None)
    lengths = settings.sampling
    return GRPOConfig(
        **{**make_arguments(settings.model, settings.schedule, folder), **make_sharding_arguments(settings)},
        max_steps=settings.schedule.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulation,
        # All rollouts of a step are played at once.
        steps_per_generation=accumulation,
        num_iterations=algorithm.num_iterations,
        top_entropy_quantile=algorithm.top_entropy_quantile,
        off_policy_mask_threshold=algorithm.off_policy_mask_threshold,
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
        **correction_arguments(settings),
        **checkpoint_arguments(
            settings.output.checkpoint_every, usual=CHECKPOINT_STEPS, kept=settings.output.checkpoints_kept
        ),
    )


def idle_rows_add_nothing(settings: GRPOSettings) -> bool:
    """Return whether rows without advantage can be left out, because they cannot change the gradient.

    That is exact only where the loss is one sum over all tokens of the step divided by a constant, and
    nothing else acts on them or counts them.
    """
    algorithm = settings.algorithm
    others = algorithm.kl or algorithm.entropy_bonus or algorithm.top_entropy_quantile < 1
    return algorithm.loss in ("dapo", "cispo") and not others


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
    folder: Path, entries: Sequence[dict[str, Any]], outcome: Outcome, seconds: float
) -> GRPOResult:
    """Return what the run in a folder made, as its metrics tell."""
    rewards = [entry["reward"] for entry in entries if entry.get("reward") is not None]
    tenth = max(1, len(rewards) // 10)
    return GRPOResult(
        model=folder / MODEL,
        steps=len(entries),
        interrupted=not outcome.finished,
        first_reward=mean(rewards[:tenth]),
        final_reward=mean(rewards[-tenth:]),
        rollouts=sum(int(entry.get("rollouts", 0)) for entry in entries),
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
    played: Played | None = None,
) -> GRPOResult:
    """Improve a model on an environment and write it to `folder/model`.

    `folder` becomes a run folder: manifest, metrics of every step, sample rollouts, learning curves. `pin`
    tells how the manifest names an open environment. `resume` goes on from the newest checkpoint, or that of
    the step `checkpoint`; what differs from the beginning raises `RunError`, or is recorded with
    `allow_changes`. `observers` are called after all else, `evaluated` hear of evaluations. `serve` starts a
    vLLM server where the settings name none. `played` hears, in another thread, of ended rollouts.
    Of several processes the main one writes the folder and calls `observers`.
    """
    started = perf_counter()
    require_trackers(settings.logging.trackers)
    world, opponents = current_world(settings.model.device), Opponents(settings)
    loaded = world.together(lambda: load_dense_model(settings.model))
    torch.manual_seed(settings.schedule.seed)  # adapters begin with random numbers
    model = wrap_lora(loaded.model, settings.model)
    with tell_full_disk(folder), share_out(settings, world), contextlib.ExitStack() as stack:
        own = stack.enter_context(own_folder(folder, world))
        engine = stack.enter_context(open_engine(settings, model, loaded, folder, world, serve))
        client = PolicyClient(model, loaded.tokenizer, name=loaded.name, engine=engine)
        source = world.together(lambda: open_source(open_environment, client, settings, opponents))
        stack.callback(source.close)
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
        told = record.hashes.take_metrics, progress if world.is_main else None
        log = StepLog(own / METRICS, *told, keep=begun)
        log.agree = world.any
        schedule = Schedule(
            *(open_environment, source, settings, own, log, world, begun),
            lambda step, place: weights_digest(save_copy(model, loaded, place)),
            listeners=evaluated if world.is_main else (),
        )
        mixture = mixture_of(source, settings)
        player = StepPlayer(source, mixture, settings, world.rank, world.exchange, opponents, played)
        with (
            quiet_libraries(),
            record.arithmetic(),
            open_observers(source, settings, own, log, begun, world) as watching,
            play_ahead(player, model, loaded, settings, begun) as ahead,
        ):
            # Whatever else happens between steps (trackers, panels) is one more of these.
            sampling = SamplerCheckpoint(mixture, settings.batch.groups, begun)
            mine = [*schedule.callbacks, opponents, sampling, *record.callbacks_of(world), *watching]
            trainer = RolloutTrainer(
                *(player, model, loaded.tokenizer, settings, folder, log, record, world, ahead),
                callbacks=[*mine, *(observers if world.is_main else ())],
            )
            interrupted = train_until_interrupted(trainer, log, begun)
            outcome = schedule.outcome(trainer.state.global_step, interrupted=interrupted)
            if outcome.best is not None:
                record.keep_weights(outcome.best.step, own / BEST_MODEL)
            record.keep_model(outcome.steps, save_policy(trainer.model, loaded, own / MODEL))
        if not interrupted:
            record.finish()
        write_outcome(own, outcome)
    if world.is_main and outcome.finished and not settings.output.checkpoint_every:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result_of(folder, log.entries, outcome, perf_counter() - started)


def load_dense_model(section: ModelSection) -> LoadedModel:
    """Load the policy; raise `ConfigError` for a mixture of experts, whose balancing loss is not computed."""
    loaded = load_model(section.path, device=section.device, dtype=section.dtype)
    if hasattr(loaded.model.config.get_text_config(), "output_router_logits"):
        raise ConfigError(
            f"`{loaded.name}` is a mixture of experts: its balancing loss is not computed here",
            hint="train a dense model, or fine-tune this one with `wander model sft`",
        )
    return loaded


@contextlib.contextmanager
def play_ahead(
    player: StepPlayer, model: Any, loaded: LoadedModel, settings: GRPOSettings, begun: Path | None
) -> Iterator[StepsAhead | None]:
    """Yield what plays the run's steps before they are wanted; None where each waits for the one before."""
    if settings.batch.max_staleness == 0:
        yield None
        return
    clients = []
    for _ in range(settings.batch.max_staleness):
        engine = engine_beside(player.source.client.engine, settings)
        clients.append(PolicyClient(model, loaded.tokenizer, name=loaded.name, engine=engine))
        clients[-1].limit_context(settings.sampling.max_rollout_tokens)
    ahead = StepsAhead(player, clients, lambda: whole_weights(model), settings.schedule.steps, begun)
    with contextlib.closing(ahead):
        yield ahead


def open_source(
    open_environment: EnvironmentOpener,
    client: PolicyClient,
    settings: GRPOSettings,
    opponents: Opponents | None = None,
) -> RolloutSource:
    """Return what plays the run's rollouts, its environments open."""
    sampling, seed = settings.sampling, settings.environment.run_seed
    client.limit_context(sampling.max_rollout_tokens)
    return RolloutSource(
        open_environment,
        client,
        sampling=SamplingArgs(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            compact_at=sampling.compact_at,
        ),
        run_seed=settings.schedule.seed if seed is None else seed,
        choices=choices_of(settings),
        retries=settings.batch.retries,
        at_once=settings.environment.rollouts_at_once,
        opponents=opponents,
    )
