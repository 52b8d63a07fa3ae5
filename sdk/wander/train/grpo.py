"""GRPO on any environment, with TRL's `GRPOTrainer`.

A step has these parts, in this order; draw, play and logprobs are in step_trainer.py:

    draw          choose the example of each group                        ours   rollouts/sampler.py
    play          play each example `group_size` times with the policy    ours   rollouts/step.py, source.py
    advantages_G  reward minus the mean of its group, optionally scaled   TRL    0 for a failed rollout
    logprobs_GT   current log-probability of every sampled token          ours   rollouts/buckets.py
    loss          dapo, cispo, ...: advantages times ratios, clipped      TRL    ours: choice of the rows
    update        gradients, clipping, AdamW, schedule, checkpoints       TRL    and transformers
    sync          send the new weights to the sampling engine             ours   engine.py

In the first update on some rollouts, the ratio to the policy that sampled them is 1. Clipping therefore only
has an effect if the engine computes different bits (vLLM), which importance sampling corrects
(correction.py). The same correction applies with `batch.max_staleness`, where later steps are played during
the update (rollouts/ahead.py). With `algorithm.num_iterations`, further updates follow. Each of them is a
step that neither draws nor plays, its ratio is relative to the policy before the first update, and a
checkpoint between two of them stores the rollouts.

Names end in their dimensions. `G`: rollouts of a backward pass, which are whole groups or a part of them.
`T`: tokens of a completion (the messages of policy and environment after the first prompt), padded on the
right. `S`: prompt and completion, padded on both sides. `P`: sequences of tokens of these rollouts. `B`:
sequences of a forward pass. `L`: their tokens, unpadded.

TRL leaves four points open, which are decided as follows:

- A rollout is a single row, even if it was sampled in several sequences. The row contains the sequences one
  after another, and each is computed separately (rollouts/rows.py, buckets.py). A rollout therefore counts
  once in any loss.
- TRL passes only prompts to `_generate`, so each prompt carries its slot in the step as an extra key.
- Rows are computed without their padding, in buckets of similar length, and shared beginnings are computed
  only once (rollouts/buckets.py).
- Rows without advantage are not computed if that changes nothing (dapo and cispo without a KL term). Their
  gradient is exactly zero, and late in a run most groups are like that.

Parts that are the same for every loss are in step_trainer.py. losses/rloo.py and distill.py use other
trainers of TRL. Several processes may share a step (`wander.train.distributed`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from wander.errors import ConfigError, require_extra

with require_extra("train", needed_for="training"):
    import torch
    from transformers import TrainerCallback
    from trl import GRPOConfig

from wander.evals.store.folder import RunFolder
from wander.models.chat import ChatFormat, ChatOptions
from wander.models.engines.base import Engine
from wander.models.engines.weights import whole_weights
from wander.models.loading import LoadedModel, weights_digest
from wander.models.policy import PolicyClient
from wander.models.quiet import quiet_libraries
from wander.models.sampling import ending_problem
from wander.train.config import GRPOSettings, LoggingSection
from wander.train.distributed import (
    current_world,
    process_folder,
    shards_policy,
    sharing_work,
)
from wander.train.engine import (
    ServerOpener,
    engine_for_later_steps,
    open_engine,
)
from wander.train.hugging_face_trainer import tell_full_disk, train_until_interrupted
from wander.train.internals import GRPOInternals
from wander.train.losses.distill import DistillTrainer, load_teacher
from wander.train.losses.rloo import LeaveOneOutTrainer
from wander.train.records.checkpoints import MODEL
from wander.train.records.files import BestCheckpoint, Outcome, Stopped, write_arguments
from wander.train.records.grpo_record import GRPORecord
from wander.train.records.record import Progress
from wander.train.rollouts.ahead import StepsAhead
from wander.train.rollouts.environments import EnvironmentOpener, PinSource, choices_of
from wander.train.rollouts.opponents import Opponents
from wander.train.rollouts.rollout_func import reward
from wander.train.rollouts.source import Played, RolloutSource
from wander.train.rollouts.step import StepPlayer, mixture_of
from wander.train.rollouts.step_metrics import mean
from wander.train.settings.library_arguments import build_library_config
from wander.train.step_trainer import StepTrainer, common_arguments, group_arguments
from wander.train.watch.evaluation import PolicyEvaluation
from wander.train.watch.reporting import open_reporters, require_trackers
from wander.train.watch.watch import Watch
from wander.train.weights import load_learner, save_copy, save_policy, turn_off_dropout, wrap_lora
from wander.types import SamplingArgs

CISPO_CLIP_HIGH = 5.0
"""TRL's default for cispo is 0.2, which multiplies every on-policy gradient by 0.2."""


def grpo_config(settings: GRPOSettings, folder: Path, processes: int = 1) -> GRPOConfig:
    """Return TRL's settings for each of `processes` training processes."""
    algorithm = settings.algorithm
    own = {
        **common_arguments(settings, folder, processes),
        **group_arguments(settings, processes),
        "top_entropy_quantile": algorithm.top_entropy_quantile,
        "off_policy_mask_threshold": algorithm.off_policy_mask_threshold,
        "loss_type": "grpo" if algorithm.loss == "gspo" else algorithm.loss,
        "importance_sampling_level": "sequence" if algorithm.loss == "gspo" else "token",
        "scale_rewards": algorithm.scale_rewards,
        "entropy_coef": algorithm.entropy_bonus,
        # The KL term times the ratio has the gradient of the divergence; without the ratio it is biased.
        "use_bias_correction_kl": True,
    }
    if algorithm.loss == "cispo":
        own["epsilon_high"] = algorithm.clip_high or CISPO_CLIP_HIGH
    return build_library_config(GRPOConfig, own, settings.trl, "trl")


def can_skip_idle_rows(settings: GRPOSettings) -> bool:
    """Return whether rows without advantage can be left out, because they cannot change the gradient.

    This is exact only if the loss is a single sum over all tokens of the step divided by a constant, and
    no other option reads or counts these rows.
    """
    algorithm = settings.algorithm
    adapts = settings.trl.get("use_adaptive_entropy")
    others = algorithm.kl or algorithm.entropy_bonus or algorithm.top_entropy_quantile < 1 or adapts
    return algorithm.loss in ("dapo", "cispo") and not others


class GRPORolloutTrainer(StepTrainer, GRPOInternals):
    """TRL's GRPO on the rollouts of an environment."""

    config = staticmethod(grpo_config)

    def __init__(self, *args: Any, **given: Any) -> None:
        """Create the trainer, with the arguments of `StepTrainer`."""
        super().__init__(*args, **given, reward_funcs=[reward])
        # If the policy is sharded, all processes must take part in every forward pass.
        self.skips_idle_rows = can_skip_idle_rows(self.settings) and not shards_policy(self.settings)

    def loss_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a slice of the step, without the rows whose advantage is zero."""
        if not self.skips_idle_rows:
            return inputs
        keep_G = self._rows_to_compute(inputs["advantages"])
        return {
            name: value[keep_G]
            if torch.is_tensor(value) and value.dim() and len(value) == len(keep_G)
            else value
            for name, value in inputs.items()
        }

    def _rows_to_compute(self, advantages_G: torch.Tensor) -> torch.Tensor:
        """Return a mask of the rows with an advantage, plus the additional rows that every process needs.

        TRL gathers values of every row, so all processes must compute the same number. The optimizer also
        needs a gradient, even if it is zero, so at least one row is computed.
        """
        keep_G = advantages_G != 0
        most = self.accelerator.gather(keep_G.sum().reshape(1)).max().clamp(min=1)
        idle = (~keep_G).nonzero()[:, 0]
        keep_G[idle[: most - keep_G.sum()]] = True
        return keep_G


@dataclass(frozen=True)
class GRPOResult:
    """The result of a GRPO run."""

    model: Path
    steps: int
    interrupted: bool
    first_reward: float
    """Mean reward of the first tenth of the steps."""
    final_reward: float
    """Mean reward of the last tenth of the steps."""
    averaged_steps: int
    """Number of steps in such a tenth, which is at least one."""
    rollouts: int
    seconds: float
    stopped: Stopped | None = None
    """Reason why the run ended before its last step; None if it did not."""
    best: BestCheckpoint | None = None
    """Description of the weights in `best`, if the run keeps them."""


def result_of(
    folder: Path, entries: Sequence[dict[str, Any]], outcome: Outcome, seconds: float
) -> GRPOResult:
    """Return the result of the run in a folder, from its metrics."""
    rewards = [entry["reward"] for entry in entries if entry.get("reward") is not None]
    tenth = max(1, len(rewards) // 10)
    return GRPOResult(
        model=folder / MODEL,
        steps=len(entries),
        interrupted=not outcome.finished,
        first_reward=mean(rewards[:tenth]),
        final_reward=mean(rewards[-tenth:]),
        averaged_steps=tenth,
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
    serve: ServerOpener | None = None,
    played: Played | None = None,
) -> GRPOResult:
    """Improve a model on an environment and write it to `folder/model`.

    `folder` becomes a run folder. `pin` returns the manifest's description of an open environment. `resume`
    continues from the newest checkpoint, or from step `checkpoint`. A difference from the recorded run raises
    `RunError`, unless `allow_changes` is true. Only the main process calls `observers`, after its callbacks.
    `serve` starts a missing vLLM server. `played` is called from another thread with the finished rollouts.
    """
    started = perf_counter()
    require_trackers(settings.logging.trackers)
    world, opponents = current_world(settings.model.device), Opponents(settings)
    loaded, model = world.together(lambda: load_policy(settings))
    given, settings = world.together(lambda: load_teacher(settings, loaded))
    settings = world.from_main(lambda: with_template_date(settings, loaded, folder if resume else None))
    with tell_full_disk(folder), sharing_work(settings, world), contextlib.ExitStack() as stack:
        own = stack.enter_context(process_folder(folder, world))
        engine = stack.enter_context(open_engine(settings, model, loaded, folder, world, serve))
        client = policy_client(model, loaded, settings, engine)
        source = world.together(lambda: open_source(open_environment, client, settings, opponents))
        stack.callback(source.close)
        record = world.together(
            lambda: GRPORecord.open(
                *(own, settings, source, client, loaded, world, pin),
                resume=resume and world.is_main,
                checkpoint=checkpoint,
                allow_changes=allow_changes,
                progress=progress if world.is_main else None,
            )
        )
        stack.callback(record.close)
        begun = world.from_main(lambda: record.checkpoint)
        covered = begun.step if begun else 0
        watch = Watch(settings, record, writes=world.is_main)
        evaluation = None
        if settings.evaluation.every:
            evaluation = PolicyEvaluation(
                *(open_environment, source, settings, world, record),
                lambda place: weights_digest(save_copy(model, loaded, place)),
                covered,
            )
        mixture = mixture_of(source, settings)
        player = StepPlayer(source, mixture, settings, world.rank, world.exchange, opponents, played)
        trackers = settings.logging if world.is_main else LoggingSection()
        with (
            quiet_libraries(),
            record.arithmetic(),
            open_reporters(trackers, own, covered) as reporters,
            play_ahead(player, model, loaded, settings) as ahead,
        ):
            trainer = TRAINERS.get(settings.algorithm.loss, GRPORolloutTrainer)(
                *(player, model, loaded.tokenizer, settings, folder, record, world, ahead),
                evaluation=evaluation,
                callbacks=[watch, *reporters, *(observers if world.is_main else ())],
                begun=begun,
                **given,
            )
            if world.is_main:
                write_arguments(own, trainer.args)
            train_until_interrupted(
                *(trainer, record, begun, settings.schedule.stop_grace, source.idle_seconds)
            )
            save_policy(trainer.model, loaded, own / MODEL)
            best = evaluation.best if evaluation else None
            outcome = record.end(trainer.state.global_step, watch.stopped, best)
    if world.is_main and outcome.finished and not settings.output.checkpoint_every:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result_of(folder, record.entries, outcome, perf_counter() - started)


TRAINERS: dict[str, type[StepTrainer]] = {"rloo": LeaveOneOutTrainer, "distill": DistillTrainer}
"""Trainers of the losses that do not use `GRPORolloutTrainer`."""


def load_policy(settings: GRPOSettings) -> tuple[LoadedModel, Any]:
    """Load the model, and return it together with the policy to train, which may have adapters.

    Raises `ConfigError` for a mixture of experts, because its balancing loss is not computed.
    """
    section = settings.model
    loaded = load_learner(section)
    if hasattr(loaded.model.config.get_text_config(), "output_router_logits"):
        raise ConfigError(
            f"`{loaded.name}` is a mixture of experts: its balancing loss is not computed here",
            hint="train a dense model, or fine-tune this one with `wander model sft`",
        )
    turn_off_dropout(loaded.model)
    torch.manual_seed(settings.schedule.seed)  # adapters start with random numbers
    return loaded, wrap_lora(loaded.model, section)


def with_template_date(settings: GRPOSettings, loaded: LoadedModel, begun: Path | None) -> GRPOSettings:
    """Return the settings with the date that the chat template shows, if it shows one.

    `begun` is the folder of a resumed run, which keeps the date when it started.
    """
    section = settings.model
    if section.template_date is not None or not ChatFormat(loaded.tokenizer, frozenset()).shows_date:
        return settings
    day = datetime.now().date()
    if begun is not None and (begun / "run.json").is_file():
        recorded = (RunFolder.open(begun).manifest.training or {}).get("model", {}).get("template_date")
        day = date.fromisoformat(recorded) if recorded else day
    return settings.model_copy(update={"model": section.model_copy(update={"template_date": day})})


def policy_client(model: Any, loaded: LoadedModel, settings: GRPOSettings, engine: Engine) -> PolicyClient:
    """Return the client that plays a policy as the settings say.

    Raises `ConfigError` for a policy whose turns cannot end.
    """
    chat = ChatOptions(settings.model.template_date, settings.model.merge_system)
    client = PolicyClient(model, loaded.tokenizer, name=loaded.name, engine=engine, chat=chat)
    if problem := ending_problem(client.format):
        raise ConfigError(
            problem,
            hint="or fine-tune the model first: `wander model sft` writes a model that declares this end",
        )
    return client


@contextlib.contextmanager
def play_ahead(
    player: StepPlayer, model: Any, loaded: LoadedModel, settings: GRPOSettings
) -> Iterator[StepsAhead | None]:
    """Yield the object that plays steps ahead; None if each step is played only when it is needed."""
    if settings.batch.max_staleness == 0:
        yield None
        return
    clients = []
    for _ in range(settings.batch.max_staleness):
        engine = engine_for_later_steps(player.source.client.engine, settings)
        clients.append(policy_client(model, loaded, settings, engine))
        clients[-1].limit_context(settings.sampling.max_rollout_tokens)
    ahead = StepsAhead(player, clients, lambda: whole_weights(model), settings.schedule.steps)
    with contextlib.closing(ahead):
        yield ahead


def open_source(
    open_environment: EnvironmentOpener,
    client: PolicyClient,
    settings: GRPOSettings,
    opponents: Opponents | None = None,
) -> RolloutSource:
    """Return the source of the run's rollouts, with open environments."""
    sampling, seed = settings.sampling, settings.environment.run_seed
    client.limit_context(sampling.max_rollout_tokens)
    return RolloutSource(
        open_environment,
        client,
        sampling=SamplingArgs(**sampling.arguments()),
        run_seed=settings.schedule.seed if seed is None else seed,
        choices=choices_of(settings),
        retries=settings.batch.retries,
        at_once=settings.environment.rollouts_at_once,
        opponents=opponents,
    )
