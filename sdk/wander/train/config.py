"""The settings of training: TOML files, every field documented here, all but the model's path optional.

The principal dial of GRPO is `batch.rollouts`: under about 256 rollouts a step, runs on games collapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Literal

from pydantic import Field, model_validator

from wander.train.sections import (
    EARLIER,
    SCRIPTED,
    SELF,
    AlgorithmSection,
    EnvironmentSection,
    MixedEnvironmentSection,
    Player,
    Section,
    StoppingSection,
    TeacherSection,
    require_effect,
)

Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]


class ModelSection(Section):
    """Which model learns."""

    path: str
    """`smollm2`, a folder in Hugging Face form, `hub:owner/name` (pulled), or a Hugging Face repository."""
    device: str | None = None
    """None means a GPU if there is one."""
    dtype: Precision = "float32"
    """bfloat16 needs adapters (`lora_rank`), whose own weights stay in float32. Without adapters, `autocast`
    computes in bfloat16."""
    lora_rank: int = Field(default=0, ge=0)
    """0 trains all weights; otherwise adapters, merged at the end."""
    lora_alpha: float | None = Field(default=None, gt=0)
    """Adapters are multiplied by alpha / rank; None means 4 times the rank."""
    peft: dict[str, Any] = Field(default_factory=dict)
    """More arguments of PEFT's `LoraConfig` for the adapters, such as `use_dora` or `lora_dropout`."""
    lora_targets: Literal["auto"] | list[str] = "auto"
    """Names of the layers that get adapters; `auto` finds every linear layer but the output's."""
    autocast: bool = False
    """Sample and compute the update in bfloat16 while the weights stay as `dtype` says."""
    attention: str = "sdpa"
    """The implementation of attention in transformers: `sdpa`, `eager`, `flash_attention_2`."""
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass: less memory, about a third more time."""
    template_date: date | None = None
    """The date that the chat template shows, if it shows one; None means the day on which the run starts."""
    merge_system: bool = True
    """Put the system prompt into the first user message if the chat template has no system role."""


class BatchSection(Section):
    """How much is played a step, and how far ahead."""

    rollouts: int = Field(default=256, gt=1)
    """Rollouts of one step, all groups together. The principal dial."""
    group_size: int = Field(default=8, gt=1)
    """Rollouts of one example."""
    rows_at_once: int = Field(default=64, gt=0)
    """Rollouts in one backward pass. A sampling batch is four times as large. Fewer need less memory."""

    retries: int = Field(default=1, ge=0)
    """How often a failed rollout is played again before it is left out of its group."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Number of steps that are played ahead while the policy learns, so their weights are up to this many
    updates old. Each step needs a copy of the weights, or a vLLM server. 0 plays and learns in turns."""

    learners: Literal["one", "each"] = "one"
    """How a rollout teaches if the policy plays several players. `one`: as one of them, drawn by the seed of
    its example. `each`: as a row for every player, with the player's reward, which is compared with rewards
    of the same player. Every row counts in `rollouts`."""

    @model_validator(mode="after")
    def _divisible(self) -> BatchSection:
        if self.rollouts % self.group_size:
            raise ValueError(
                f"rollouts ({self.rollouts}) must be a multiple of group_size ({self.group_size})"
            )
        if self.rollouts % self.rows_at_once and self.rollouts > self.rows_at_once:
            raise ValueError(
                f"rollouts ({self.rollouts}) must be a multiple of rows_at_once ({self.rows_at_once})"
            )
        return self

    @property
    def groups(self) -> int:
        """Examples of one step."""
        return self.rollouts // self.group_size


Pool = Literal["hard", "normal", "easy", "solved"]
"""Difficulty of an example for the policy, by the rewards of its last group."""

POOL_WEIGHTS: dict[Pool, float] = {"hard": 1.0, "normal": 2.0, "easy": 1.0, "solved": 0.1}


class DataSection(Section):
    """Which examples each step plays."""

    order: Literal["dataset", "shuffled"] = "dataset"
    """`shuffled` draws a new order for each epoch and stratum, by `schedule.seed`."""
    refill_rounds: int = Field(default=0, ge=0)
    """Rounds in which a step plays other groups in place of those whose rewards do not differ; 0 keeps them.
    A round plays the number of groups that the step so far suggests, at most a whole step."""
    curriculum: bool = False
    """Draw examples by their last difficulty, instead of one epoch after another."""
    hard_below: float = 0.25
    """Mean reward of a group below which its example is hard."""
    easy_from: float = 0.75
    """Mean reward from which it is easy. If all rollouts earn the same and it is not hard, it is solved."""
    pool_weights: dict[Pool, float] = Field(default_factory=lambda: dict(POOL_WEIGHTS))
    """Weight with which an example is drawn from each pool; the others keep their default."""
    unseen_share: float = Field(default=1.0, ge=0, le=1)
    """Share of draws that take an example that was never played; 1 plays all of them first."""

    @model_validator(mode="after")
    def _check_order(self) -> DataSection:
        if self.hard_below > self.easy_from:
            raise ValueError(f"hard_below ({self.hard_below}) exceeds easy_from ({self.easy_from})")
        if any(weight < 0 for weight in self.pool_weights.values()):
            raise ValueError("pool_weights must not be negative")
        return self


class SamplingSection(Section):
    """How the policy plays while it learns."""

    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=128, gt=0)
    """Tokens of one turn."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the most probable tokens whose probabilities add up to this."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from so many most probable tokens; 0 means all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample only from tokens with at least this share of the probability of the most probable one."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end a turn."""
    max_rollout_tokens: int | None = Field(default=None, gt=0)
    """Tokens of a rollout, with the prompt and the environment's. A longer one ends there, truncated."""
    compact_at: int | None = Field(default=None, gt=0)
    """Tokens that a conversation may have before its oldest turns are left out. Then another sequence of the
    rollout begins, which is learnt too. None leaves nothing out."""

    overlong_tokens: int = Field(default=0, ge=0)
    """Tokens below the limit from which a rollout loses reward, 1 at the limit (DAPO's soft penalty). The
    limit is `max_rollout_tokens`, otherwise `max_tokens` of the longest turn."""

    @property
    def is_truncated(self) -> bool:
        """True if tokens are not drawn from the whole distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `SamplingArgs` that are not their default, and the first two."""
        given = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p, "stop": self.stop}
        usual = {
            name: SamplingSection.model_fields[name].get_default(call_default_factory=True) for name in given
        }
        return {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "compact_at": self.compact_at,
            **{name: value for name, value in given.items() if value != usual[name]},
        }

    @model_validator(mode="after")
    def _one_end(self) -> SamplingSection:
        if self.compact_at is not None and self.max_rollout_tokens is not None:
            raise ValueError(
                "`max_rollout_tokens` ends a conversation that `compact_at` makes go on: give one of them"
            )
        return self


class ScheduleSection(Section):
    """How many steps the policy learns, and how fast."""

    steps: int = Field(default=100, gt=0)
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Schedule = "constant"
    max_grad_norm: float = Field(default=1.0, gt=0)
    seed: int = 0
    stop_grace: float = Field(default=30.0, gt=0)
    """Seconds that the current step may take after a first Ctrl-C or SIGTERM. If the policy samples nothing
    for 10 seconds, the step is abandoned earlier. The result of the steps before it is saved."""


class OutputSection(Section):
    """What is kept."""

    checkpoint_every: int | None = Field(default=None, ge=0)
    """Steps between checkpoints. None means 20, and the newest two are kept until the run ends. 0 keeps only
    the checkpoint of an interrupted run. The final model is always kept."""
    checkpoints_kept: int = Field(default=0, ge=0)
    """Number of checkpoints of `checkpoint_every` that are kept, at least two; 0 keeps all."""
    rollouts_every: int = Field(default=10, ge=0)
    """Steps between samples of rollouts in the run's record: one group of the step, and the rollouts of
    `fixed_prompts`. 0 keeps no rollouts."""
    fixed_prompts: int = Field(default=2, ge=0)
    """Number of first training examples that are played again at every sample, so that you can compare them.
    The policy does not learn from them."""
    keep_best: str | None = None
    """`CELL/METRIC` of the evaluations, such as `optimal/drawn` or `eval/reward`. The weights with the best
    value are kept in `best`; `model` has the weights of the end."""
    best_mode: Literal["max", "min"] = "max"


class EvaluationCell(Section):
    """One of the evaluations during training: a name, and the differences from the training environment."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    environment: str | None = None
    """Another environment than the one of the training; only `arguments` are passed to it."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Override `environment.arguments`."""
    players: dict[str, str] = Field(default_factory=dict)
    """Models of other players, as in `[players]`, except `earlier`. The policy plays the players that are not
    named."""
    examples: int | None = Field(default=None, gt=0)
    """None means `evaluation.examples`."""
    exhaustive: bool = False
    """Play every line of the environment's replies instead of examples. The metrics count the lines that were
    `won`, `drawn`, `lost`, `unfinished`, `failed`, `invalid`, and `bad`: all except those won or drawn
    without an invalid move."""

    @model_validator(mode="after")
    def _either(self) -> EvaluationCell:
        if self.exhaustive and self.examples is not None:
            raise ValueError(f"cell `{self.name}` is exhaustive: it plays every line, not `examples`")
        return self


class EvaluationSection(Section):
    """Evaluation during training, on examples that the policy does not learn from."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations, with one before the first step and one after the last. 0 turns them off."""
    examples: int = Field(default=100, gt=0)
    """Number of examples, the first of the eval split, with one rollout each."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the most probable token."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Tokens of one turn; None means `sampling.max_tokens`."""
    seed: int = 0
    """Seeds the environment, in the same way at every evaluation, so that you can compare them."""
    cells: list[EvaluationCell] = Field(default_factory=list)
    """Empty means one cell for each training environment, named by its label, or `eval` if there is one."""

    @model_validator(mode="after")
    def _distinct(self) -> EvaluationSection:
        names = [cell.name for cell in self.cells]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two cells are called `{twice[0]}`")
        if self.temperature and any(cell.exhaustive for cell in self.cells):
            raise ValueError("an exhaustive cell is greedy: `evaluation.temperature` must be 0")
        return self


Tracker = Literal["tensorboard", "trackio", "wandb"]


class LoggingSection(Section):
    """Where metrics go in addition to `metrics.jsonl`."""

    profile_steps: int = Field(default=0, ge=0)
    """Steps that PyTorch's profiler watches, from the second on. `profile.json` has them for chrome://tracing."""

    trackers: list[Tracker] = Field(default_factory=list)
    """Each is an extra of `wander-sdk`. TensorBoard and W&B write into the run folder, trackio into its own
    database."""
    project: str = Field(default="wander", min_length=1)
    """Project under which trackio and W&B list the run, by the name of its folder."""


class InferenceSection(Section):
    """The engine that samples the rollouts."""

    engine: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    """transformers in this process; vLLM in this process, on the policy's GPU; or a vLLM server."""
    url: str | list[str] | None = None
    """vllm-server: address of the server, or of several. None starts one on this machine for the run."""
    python: str | None = None
    """vllm-server: the Python with vLLM that starts it. None means the one of the `wander` settings."""
    arguments: list[str] = Field(default_factory=list)
    """vllm-server: more arguments for the command of the server."""
    sync: Literal["folder", "nccl"] = "folder"
    """vllm-server: how new weights travel: as a checkpoint in a folder that both see, or from GPU to GPU."""
    folder: str | None = None
    """vllm-server: the folder for `sync`. None means a folder of the run."""
    group_port: int = Field(default=51216, gt=0, lt=65536)
    """vllm-server: first port of the broadcast. Each server uses a port of its own, in order."""
    sleep: bool = False
    """vLLM releases its memory while the policy learns, so that one GPU can hold both."""
    memory: float = Field(default=0.3, gt=0, lt=1)
    """vllm: share of the GPU's memory that vLLM takes."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "token_truncate"
    )
    """How gradients are corrected if samples were drawn with other probabilities than the policy's (vLLM,
    older weights, bfloat16). They are weighted by the ratio of the two, per token or per completion. A ratio
    above the bound is cut to it, or its tokens are left out."""
    correction_max: float = Field(default=3.0, gt=0)
    """Upper bound of that ratio."""


class ParallelSection(Section):
    """How the processes of a run share the policy, if `torchrun` or `accelerate launch` started several."""

    policy: Literal["replicated", "fsdp2"] = "replicated"
    """`fsdp2` shards weights, gradients and the optimizer's state over the processes. With `replicated`, each
    process has all of them."""


class PolicySettings(Section):
    """Settings of every kind of training."""

    model: ModelSection
    trl: dict[str, Any] = Field(default_factory=dict)
    """More arguments of TRL's configuration (`GRPOConfig`, `SFTConfig`...): `weight_decay`, `optim`..."""

    @model_validator(mode="after")
    def _check_adapters(self) -> PolicySettings:
        """Refuse settings of adapters that there are not."""
        if self.model.peft and self.model.lora_rank == 0:
            raise ValueError("`model.peft` is for adapters: set `model.lora_rank`")
        if self.trl.get("sync_ref_model") and self.model.lora_rank:
            raise ValueError("`trl.sync_ref_model` needs all weights: leave `model.lora_rank` out")
        return self

    @model_validator(mode="after")
    def _check_precision(self) -> PolicySettings:
        """Refuse to train weights whose precision rounds most updates away."""
        if self.model.dtype == "bfloat16" and self.model.lora_rank == 0:
            raise ValueError(
                '`model.dtype = "bfloat16"` rounds most updates of the weights away: set '
                "`model.autocast = true`, which computes in bfloat16 and keeps float32 weights, or train "
                "adapters with `model.lora_rank`"
            )
        return self


class GRPOSettings(PolicySettings):
    """All settings of a GRPO run."""

    environment: EnvironmentSection = EnvironmentSection()
    environments: list[MixedEnvironmentSection] = Field(default_factory=list)
    """Several environments instead of one. `environment` then holds their common settings."""
    players: dict[str, Player] = Field(default_factory=dict)
    """Models of the environment's players. The policy plays, and learns as, the players that are not
    named."""
    algorithm: AlgorithmSection = AlgorithmSection()
    teacher: TeacherSection = TeacherSection()
    data: DataSection = DataSection()
    batch: BatchSection = BatchSection()
    sampling: SamplingSection = SamplingSection()
    inference: InferenceSection = InferenceSection()
    parallel: ParallelSection = ParallelSection()
    schedule: ScheduleSection = ScheduleSection()
    evaluation: EvaluationSection = EvaluationSection()
    stopping: StoppingSection = StoppingSection()
    output: OutputSection = OutputSection()
    logging: LoggingSection = LoggingSection()

    @model_validator(mode="after")
    def _one_place_for_arguments(self) -> GRPOSettings:
        if self.environments and self.environment.arguments:
            raise ValueError("with `[[environments]]` each of them has its own `arguments`")
        if self.environments and self.environments[0].name is not None:
            raise ValueError("the first of `[[environments]]` is the command's: it has no `name`")
        workers = [self.environment.workers, *(section.workers for section in self.environments)]
        if self.environment.worker_token_file is not None and not any(isinstance(n, list) for n in workers):
            raise ValueError(
                "`environment.worker_token_file` needs a worker elsewhere: `--worker tcp://HOST:PORT`"
            )
        return self

    @model_validator(mode="after")
    def _check_players(self) -> GRPOSettings:
        if self.players and self.environments:
            raise ValueError(
                "`players` are those of one environment: they cannot stand beside `environments`"
            )
        if self.batch.learners == "each" and self.environments:
            raise ValueError('`batch.learners = "each"` is for one environment, not beside `environments`')
        cells = [model for cell in self.evaluation.cells for model in cell.players.values()]
        if EARLIER in cells:
            raise ValueError(
                f"`{EARLIER}` changes between evaluations, so a cell cannot use it: name a player that stays"
            )
        models = [model for model in [*self.other_players.values(), *cells] if model != SELF]
        engine = self.inference.engine
        if engine != "transformers" and (
            other := [model for model in models if not model.startswith(SCRIPTED)]
        ):
            raise ValueError(f"`{other[0]}` plays beside the engine `transformers`, not beside `{engine}`")
        return self

    @property
    def other_players(self) -> dict[str, str]:
        """Models that play in the policy's place, by player. The policy does not learn as these players."""
        return {name: player.model for name, player in self.players.items() if player.model != SELF}

    def count_roles(self, players: Sequence[str]) -> int:
        """Return as how many of an environment's players the policy learns from a rollout."""
        learners = [player for player in players if player not in self.other_players]
        return max(1, len(learners)) if self.batch.learners == "each" else 1

    @model_validator(mode="after")
    def _require_effect(self) -> GRPOSettings:
        """Refuse settings that the loss does not read."""
        require_effect(self)
        return self

    @model_validator(mode="after")
    def _require_two_at_once(self) -> GRPOSettings:
        """Refuse settings that do not work with steps that are played ahead, or learnt from several times."""
        if self.batch.max_staleness and (self.inference.engine == "vllm" or self.inference.sleep):
            raise ValueError(
                "`batch.max_staleness` needs an engine that samples while the policy learns: "
                '`inference.engine = "vllm-server"` without `sleep`, or `transformers`'
            )
        if self.batch.max_staleness and self.algorithm.num_iterations > 1:
            raise ValueError(
                "`algorithm.num_iterations` and `batch.max_staleness` exclude each other: either makes "
                "rollouts old before they are learnt from"
            )
        if self.inference.sleep and self.algorithm.num_iterations > 1:
            raise ValueError(
                "`inference.sleep` and `algorithm.num_iterations` exclude each other: vLLM would be awake "
                "during every update after the first"
            )
        return self

    @model_validator(mode="after")
    def _require_evaluations(self) -> GRPOSettings:
        """Refuse a best or a target that no evaluation measures."""
        asked = [*self.stopping.target, *([self.output.keep_best] if self.output.keep_best else [])]
        cells = {cell.name for cell in self.evaluation_cells}
        for name in asked:
            if self.evaluation.every == 0:
                raise ValueError(f"`{name}` comes from evaluations, and `evaluation.every` is 0")
            if name.partition("/")[0] not in cells or not name.partition("/")[2]:
                known = ", ".join(f"`{cell}/METRIC`" for cell in sorted(cells))
                raise ValueError(f"`{name}` is no metric of the evaluations: write {known}")
        return self

    def on_record(self) -> dict[str, Any]:
        """Return the settings for the run's record: with the number of workers instead of their addresses."""
        data = self.model_dump(mode="json")
        data["environment"]["worker_token_file"] = None
        for section in (data["environment"], *data["environments"]):
            if isinstance(section["workers"], list):
                section["workers"] = len(section["workers"])
        return data

    @property
    def batches(self) -> int:
        """Number of times that the run plays: once for `algorithm.num_iterations` steps."""
        return -(-self.schedule.steps // self.algorithm.num_iterations)

    @property
    def evaluation_cells(self) -> list[EvaluationCell]:
        """The cells that are evaluated: those of the settings, or the training environments."""
        if self.evaluation.cells or not self.environments:
            return self.evaluation.cells or [EvaluationCell(name="eval")]
        return [
            EvaluationCell(
                name=section.label or (section.name or "eval").rpartition("/")[2].partition("@")[0],
                environment=section.name,
                arguments=section.arguments,
            )
            for section in self.environments
        ]


class OfflineScheduleSection(ScheduleSection):
    """How long and how fast the policy learns from rows: a number of epochs or of steps."""

    steps: int = Field(default=0, ge=0)
    """0 means the number that `epochs` need."""
    epochs: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Schedule = "cosine"
    checkpoint_every: int | None = Field(default=None, ge=0)
    """Steps between checkpoints, of which the newest two are kept. None means 200, and removes them when the
    run ends. 0 keeps only the checkpoint of an interrupted run."""


class SFTScheduleSection(OfflineScheduleSection):
    """How long and how fast the policy learns, and how often the loss on held-out rows is measured."""

    eval_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the conversations that is held out to measure the loss, with those of one prompt together."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between measurements. 0 measures only before the first step and after the last."""


class SFTBatchSection(Section):
    """Number of conversations in a step."""

    rows: int = Field(default=32, gt=0)
    max_length: int = Field(default=1024, gt=0)
    """Tokens of one conversation. Longer ones are left out and counted."""


class OfflineSettings(PolicySettings):
    """Settings of every run that learns from rows."""

    batch: SFTBatchSection = SFTBatchSection()
    schedule: OfflineScheduleSection = OfflineScheduleSection()
    logging: LoggingSection = LoggingSection()


class SFTSettings(OfflineSettings):
    """All settings of a supervised fine-tuning run."""

    schedule: SFTScheduleSection = SFTScheduleSection()


class PreferenceBatchSection(SFTBatchSection):
    """Number of pairs (dpo) or rollouts (kto) in a step."""

    rows: int = Field(default=32, gt=1)
    max_length: int = Field(default=1024, gt=0)
    """Tokens of one rollout. Longer ones are left out and counted."""


class DPOSection(Section):
    """Which rollouts are compared, and how the comparison becomes a gradient."""

    loss: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to its starting point: a larger value moves it less."""
    pairs_per_example: int = Field(default=1, gt=0)
    """The best rollout of an example against its worst, the second best against the second worst..."""
    min_gap: float = Field(default=0.0, ge=0)
    """The rewards of a pair differ by more than this."""
    imitation: float = Field(default=0.0, ge=0)
    """Weight of the mean log-likelihood of the better rollout, which is added to the loss. It keeps the
    format that both rollouts of a pair share, and which DPO may unlearn."""


class DPOSettings(OfflineSettings):
    """All settings of a run that learns from pairs of rollouts."""

    preference: DPOSection = DPOSection()
    batch: PreferenceBatchSection = PreferenceBatchSection()


class KTOSection(Section):
    """Which rollouts are good, and how that becomes a gradient."""

    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to its starting point: a larger value moves it less."""
    good_from: float | None = None
    """Reward from which a rollout is good; rollouts with less are bad. None means the mean of the example,
    and leaves out rollouts of exactly this reward."""


class KTOSettings(OfflineSettings):
    """All settings of a run that learns from good and bad rollouts."""

    preference: KTOSection = KTOSection()
    batch: PreferenceBatchSection = PreferenceBatchSection()


PreferenceSettings = DPOSettings | KTOSettings
