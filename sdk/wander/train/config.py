"""The settings of training, which are read from TOML files. Every field is documented here, and all but the
model's path are optional.

The most important setting of GRPO is `batch.rollouts`: with fewer than about 256 rollouts per step, runs on
games collapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Literal

from pydantic import Field, model_validator

from wander.train.settings.sections import (
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
    require_no_copies,
)

Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]


class ModelSection(Section):
    """The model that learns."""

    path: str
    """`smollm2`, a folder in Hugging Face format, `hub:owner/name` (pulled), or a Hugging Face repository."""
    device: str | None = None
    """Device, such as `cuda:0`; None means a GPU if available."""
    dtype: Precision = "float32"
    """Precision of the weights. bfloat16 needs adapters (`lora_rank`), which stay in float32; see also
    `autocast`."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of the adapters, which are merged at the end; 0 trains all weights."""
    quantization: Literal["nf4"] | None = None
    """`nf4`: the linear layers have 4 bits while adapters learn on them (QLoRA). It needs `lora_rank` and
    bitsandbytes. The saved model has the same weights as numbers of `dtype`, with the adapters merged."""
    peft: dict[str, Any] = Field(default_factory=dict)
    """More arguments of PEFT's `LoraConfig` for the adapters, such as `use_dora` or `lora_dropout`. By
    default, `lora_alpha` is 4 times the rank, and `target_modules` are all linear layers except the output
    layer."""
    autocast: bool = False
    """Whether to sample and to compute updates in bfloat16. The weights keep their `dtype`."""
    attention: str = "sdpa"
    """Implementation of attention in transformers: `sdpa`, `eager` or `flash_attention_2`."""
    gradient_checkpointing: bool = False
    """Whether to compute layers again in the backward pass, to save memory for about a third more time."""
    template_date: date | None = None
    """Date for chat templates that show a date; None means the day when the run starts."""
    merge_system: bool = True
    """Whether to merge the system prompt into the first user message if the template lacks a system role."""


class BatchSection(Section):
    """The number of rollouts in a step, and how far ahead steps are played."""

    rollouts: int = Field(default=256, gt=1)
    """Number of rollouts in a step, in all groups together. This is the most important setting."""
    group_size: int = Field(default=8, gt=1)
    """Number of rollouts of an example."""
    rows_at_once: int = Field(default=64, gt=0)
    """Rollouts in a backward pass; a sampling batch is four times as large. Fewer use less memory."""

    retries: int = Field(default=1, ge=0)
    """Number of times that a failed rollout is played again before it is left out of its group."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Number of steps that are played ahead while the policy learns, so that their weights are up to this
    many updates old. Each step needs a copy of the weights, or a vLLM server. 0 plays and learns in turns."""

    learners: Literal["one", "each"] = "one"
    """Rows that are learned from a rollout in which the policy plays several players. `one`: the row of a
    single player, drawn with the seed of the example. `each`: a row for every player, with its own reward,
    which is compared with rewards of the same player. Every row counts in `rollouts`."""

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
        """Number of examples in a step."""
        return self.rollouts // self.group_size


Pool = Literal["hard", "normal", "easy", "solved"]
"""Difficulty of an example for the policy, by the rewards of its last group."""

POOL_WEIGHTS: dict[Pool, float] = {"hard": 1.0, "normal": 2.0, "easy": 1.0, "solved": 0.1}


class DataSection(Section):
    """The choice of the examples in each step."""

    order: Literal["dataset", "shuffled"] = "dataset"
    """Order of examples. `shuffled` draws a new order for each epoch and stratum, with `schedule.seed`."""
    refill_rounds: int = Field(default=0, ge=0)
    """Number of rounds that play other groups in place of groups with equal rewards; 0 keeps those groups. A
    round plays the number of groups that the step so far suggests, at most a whole step."""
    curriculum: bool = False
    """Whether to draw examples by their last difficulty, instead of playing one epoch after another."""
    hard_below: float = 0.25
    """Mean reward of a group below which its example is hard."""
    easy_from: float = 0.75
    """Minimum mean reward of an easy example. If all rewards are equal and it is not hard, it is solved."""
    pool_weights: dict[Pool, float] = Field(default_factory=lambda: dict(POOL_WEIGHTS))
    """Weights for drawing an example, by pool; pools that are not listed keep their default."""
    unseen_share: float = Field(default=1.0, ge=0, le=1)
    """Share of draws that take an unplayed example; 1 plays all examples once before any is repeated."""

    @model_validator(mode="after")
    def _check_order(self) -> DataSection:
        if self.hard_below > self.easy_from:
            raise ValueError(f"hard_below ({self.hard_below}) exceeds easy_from ({self.easy_from})")
        if any(weight < 0 for weight in self.pool_weights.values()):
            raise ValueError("pool_weights must not be negative")
        return self


class SamplingSection(Section):
    """The sampling of the policy's turns during training."""

    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=128, gt=0)
    """Maximum number of tokens in a turn."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sum of the probabilities of the most probable tokens, to which sampling is limited; 1 allows all."""
    top_k: int = Field(default=0, ge=0)
    """Number of the most probable tokens, to which sampling is limited; 0 allows all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Minimum probability of a sampled token, as a share of the highest probability."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end a turn."""
    max_rollout_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens in a rollout, including the prompt's and the environment's. A longer rollout
    ends there, truncated."""
    compact_at: int | None = Field(default=None, gt=0)
    """Number of tokens in a conversation above which its oldest turns are left out. A new sequence of the
    rollout then begins, which is also learned. None leaves nothing out."""

    overlong_tokens: int = Field(default=0, ge=0)
    """Number of tokens before the limit over which the reward's penalty grows to 1 (DAPO's soft penalty). The
    limit is `max_rollout_tokens`, or `max_tokens` for the longest turn."""

    @property
    def is_truncated(self) -> bool:
        """Whether tokens are drawn from only a part of the distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `SamplingArgs`, without the optional settings that have their default."""
        return {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "compact_at": self.compact_at,
            **self.model_dump(include={"top_p", "top_k", "min_p", "stop"}, exclude_defaults=True),
        }

    @model_validator(mode="after")
    def _one_end(self) -> SamplingSection:
        if self.compact_at is not None and self.max_rollout_tokens is not None:
            raise ValueError(
                "`max_rollout_tokens` ends a conversation that `compact_at` would continue: use one of them"
            )
        return self


class ScheduleSection(Section):
    """The number of steps, and the learning rate."""

    steps: int = Field(default=100, gt=0)
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Schedule = "constant"
    max_grad_norm: float = Field(default=1.0, gt=0)
    seed: int = 0
    stop_grace: float = Field(default=30.0, gt=0)
    """Seconds that the current step may take after a first Ctrl-C or SIGTERM. If the policy samples nothing
    for 10 seconds, the step is abandoned earlier. The result of the previous steps is saved."""


class OutputSection(Section):
    """The files that a run keeps."""

    checkpoint_every: int | None = Field(default=None, ge=0)
    """Steps between checkpoints. None means 20, and the newest two are kept until the run ends. 0 keeps only
    the checkpoint of an interrupted run. The final model is always kept."""
    checkpoints_kept: int = Field(default=0, ge=0)
    """Number of checkpoints of `checkpoint_every` that are kept, at least two; 0 keeps all."""
    rollouts_every: int = Field(default=10, ge=0)
    """Steps between samples of rollouts in the run's record: one group of the step, and the rollouts of
    `fixed_prompts`. 0 keeps no rollouts."""
    fixed_prompts: int = Field(default=2, ge=0)
    """Number of training examples, from the first, that are played at every sample, so that you can compare
    them. The policy does not learn from them."""
    keep_best: str | None = None
    """`CELL/METRIC` of the evaluations, such as `optimal/drawn` or `eval/reward`. The weights with the best
    value are kept in `best`; `model` contains the final weights."""
    best_mode: Literal["max", "min"] = "max"


class EvaluationCell(Section):
    """An evaluation during training: its name, and its differences from the training environment."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    environment: str | None = None
    """Environment to use instead of the training environment; it gets only `arguments`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments that override `environment.arguments`."""
    players: dict[str, str] = Field(default_factory=dict)
    """Models of other players, as in `[players]`, except `earlier`. The policy plays the players that are not
    named."""
    examples: int | None = Field(default=None, gt=0)
    """Number of examples; None means `evaluation.examples`."""
    exhaustive: bool = False
    """Whether to play every line of the environment's replies instead of examples. The metrics count the
    lines that were `won`, `drawn`, `lost`, `unfinished`, `failed`, `invalid`, and `bad`: all except those won
    or drawn without an invalid move."""

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
    """Temperature; 0 always takes the most probable token."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens in a turn; None means `sampling.max_tokens`."""
    seed: int = 0
    """Seed of the environment, the same at every evaluation, so that you can compare them."""
    cells: list[EvaluationCell] = Field(default_factory=list)
    """Evaluations. An empty list means a cell for each training environment, named by its label, or only
    `eval` if there is a single environment."""

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
    """The experiment trackers that receive metrics, in addition to `metrics.jsonl`."""

    profile_steps: int = Field(default=0, ge=0)
    """Number of steps to profile with PyTorch, from the second on, in `profile.json` (chrome://tracing)."""

    trackers: list[Tracker] = Field(default_factory=list)
    """Trackers; each is an extra of `wander-sdk`. TensorBoard and W&B write into the run folder,
    trackio into its own database."""
    project: str = Field(default="wander", min_length=1)
    """Project for trackio and W&B, which list the run by the name of its folder."""


class InferenceSection(Section):
    """The engine that samples the rollouts."""

    engine: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    """Engine: transformers in this process; vLLM in this process, on the policy's GPU; or a vLLM server."""
    dtype: Precision | None = None
    """transformers: precision of the weights that are sampled, in a copy if it is not `model.dtype`. None
    means bfloat16 on a GPU with `model.autocast`, and otherwise `model.dtype`."""
    url: str | list[str] | None = None
    """vllm-server: address of the server, or of several. None starts one on this machine for the run."""
    python: str | None = None
    """vllm-server: path of the Python with vLLM that starts the server. None means the one of the `wander`
    settings."""
    arguments: list[str] = Field(default_factory=list)
    """vllm-server: additional arguments for the command of the server."""
    sync: Literal["folder", "nccl"] = "folder"
    """vllm-server: transfer of new weights, as a checkpoint in a shared folder, or from GPU to GPU."""
    folder: str | None = None
    """vllm-server: the folder for `sync`. None means a folder of the run."""
    group_port: int = Field(default=51216, gt=0, lt=65536)
    """vllm-server: first port of the broadcast. Each server uses its own port, in order."""
    sleep: bool = False
    """Whether vLLM releases its memory while the policy learns, so that a single GPU can hold both."""
    memory: float = Field(default=0.3, gt=0, lt=1)
    """vllm: share of the GPU's memory for vLLM."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "token_truncate"
    )
    """Correction of gradients if samples were drawn with other probabilities than the policy's (vLLM, older
    weights, bfloat16). They are weighted by the ratio of the two, per token or per completion. A ratio above
    the bound is cut to it, or its tokens are left out."""
    correction_max: float = Field(default=3.0, gt=0)
    """Upper bound of that ratio."""


class ParallelSection(Section):
    """How several processes (started by `torchrun` or `accelerate launch`) share the policy."""

    policy: Literal["replicated", "fsdp2"] = "replicated"
    """Placement of the policy. `fsdp2` shards weights, gradients and the optimizer's state over the
    processes. With `replicated`, each process has all of them."""


class PolicySettings(Section):
    """Settings of every kind of training."""

    model: ModelSection
    trl: dict[str, Any] = Field(default_factory=dict)
    """More arguments of TRL's configuration (`GRPOConfig`, `SFTConfig`...): `weight_decay`, `optim`..."""

    @model_validator(mode="after")
    def _check_adapters(self) -> PolicySettings:
        """Reject settings that need adapters if there are no adapters, and the reverse."""
        if self.model.peft and self.model.lora_rank == 0:
            raise ValueError("`model.peft` is for adapters: set `model.lora_rank`")
        if self.model.quantization and self.model.lora_rank == 0:
            raise ValueError(
                "`model.quantization`: weights with 4 bits cannot learn, so adapters learn on them: set "
                "`model.lora_rank`"
            )
        if self.trl.get("sync_ref_model") and self.model.lora_rank:
            raise ValueError("`trl.sync_ref_model` needs all weights: leave out `model.lora_rank`")
        return self

    @model_validator(mode="after")
    def _check_precision(self) -> PolicySettings:
        """Reject a precision of the weights that rounds most updates away."""
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
    """Models of the environment's players. The policy plays, and learns as, unnamed players."""
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
            raise ValueError("with `[[environments]]`, set `arguments` in each of them instead")
        if self.environments and self.environments[0].name is not None:
            raise ValueError(
                "the first of `[[environments]]` is the command's environment: leave out its `name`"
            )
        workers = [self.environment.workers, *(section.workers for section in self.environments)]
        if self.environment.worker_token_file is not None and not any(isinstance(n, list) for n in workers):
            raise ValueError(
                "`environment.worker_token_file` needs a remote worker: `--worker tcp://HOST:PORT`"
            )
        return self

    @model_validator(mode="after")
    def _check_players(self) -> GRPOSettings:
        if self.players and self.environments:
            raise ValueError(
                "`players` belong to a single environment, so they cannot be used with `environments`"
            )
        if self.batch.learners == "each" and self.environments:
            raise ValueError('`batch.learners = "each"` needs a single environment, without `environments`')
        cells = [model for cell in self.evaluation.cells for model in cell.players.values()]
        if EARLIER in cells:
            raise ValueError(
                f"`{EARLIER}` changes between evaluations, so a cell cannot use it: name a fixed model"
            )
        models = [model for model in [*self.other_players.values(), *cells] if model != SELF]
        engine = self.inference.engine
        if engine != "transformers" and (
            other := [model for model in models if not model.startswith(SCRIPTED)]
        ):
            raise ValueError(f"the player `{other[0]}` needs the engine `transformers`, not `{engine}`")
        return self

    @property
    def other_players(self) -> dict[str, str]:
        """Models that play in the policy's place, by player. The policy does not learn as these players."""
        return {name: player.model for name, player in self.players.items() if player.model != SELF}

    def count_roles(self, players: Sequence[str]) -> int:
        """Return the number of players that the policy learns as from a rollout."""
        learners = [player for player in players if player not in self.other_players]
        return max(1, len(learners)) if self.batch.learners == "each" else 1

    @model_validator(mode="after")
    def _require_effect(self) -> GRPOSettings:
        """Reject settings that the loss does not read."""
        require_effect(self)
        require_no_copies(self)
        return self

    @model_validator(mode="after")
    def _require_two_at_once(self) -> GRPOSettings:
        """Reject settings that do not work with steps played ahead, or with several updates per rollout."""
        if self.batch.max_staleness and (self.inference.engine == "vllm" or self.inference.sleep):
            raise ValueError(
                "`batch.max_staleness` needs an engine that samples while the policy learns: "
                '`inference.engine = "vllm-server"` without `sleep`, or `transformers`'
            )
        if self.batch.max_staleness and self.algorithm.num_iterations > 1:
            raise ValueError(
                "`algorithm.num_iterations` and `batch.max_staleness` cannot be used together: with both, "
                "rollouts would be too old to learn from"
            )
        if self.inference.sleep and self.algorithm.num_iterations > 1:
            raise ValueError(
                "`inference.sleep` and `algorithm.num_iterations` cannot be used together: vLLM would be "
                "awake during every update after the first"
            )
        return self

    @model_validator(mode="after")
    def _require_evaluations(self) -> GRPOSettings:
        """Reject a best metric or a target that no evaluation measures."""
        metrics = [*self.stopping.target, *([self.output.keep_best] if self.output.keep_best else [])]
        cells = {cell.name for cell in self.evaluation_cells}
        for name in metrics:
            if self.evaluation.every == 0:
                raise ValueError(f"`{name}` comes from evaluations, but `evaluation.every` is 0")
            if name.partition("/")[0] not in cells or not name.partition("/")[2]:
                known = ", ".join(f"`{cell}/METRIC`" for cell in sorted(cells))
                raise ValueError(f"`{name}` is not a metric of the evaluations: write {known}")
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
        """Number of batches of rollouts that the run plays, each for `algorithm.num_iterations` steps."""
        return -(-self.schedule.steps // self.algorithm.num_iterations)

    @property
    def evaluation_cells(self) -> list[EvaluationCell]:
        """Cells to evaluate: the cells in the settings, or the training environments."""
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
    """The duration and learning rate of training on rows, as a number of epochs or of steps."""

    steps: int = Field(default=0, ge=0)
    """Number of steps; 0 means the number that `epochs` need."""
    epochs: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Schedule = "cosine"
    checkpoint_every: int | None = Field(default=None, ge=0)
    """Steps between checkpoints; the newest two are kept. None means 200, and removes the checkpoints when
    the run ends. 0 keeps only the checkpoint of an interrupted run."""


class SFTScheduleSection(OfflineScheduleSection):
    """The duration and learning rate of fine-tuning, and the measurement of the loss on held-out rows."""

    eval_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the conversations that is held out to measure the loss. Conversations with the same prompt
    stay together."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between measurements; 0 measures only before the first step and after the last."""


class SFTBatchSection(Section):
    """The conversations in a step."""

    rows: int = Field(default=32, gt=0)
    max_length: int = Field(default=1024, gt=0)
    """Maximum number of tokens in a conversation. Longer conversations are left out and counted."""


class OfflineSettings(PolicySettings):
    """Settings of every run that learns from rows."""

    batch: SFTBatchSection = SFTBatchSection()
    schedule: OfflineScheduleSection = OfflineScheduleSection()
    logging: LoggingSection = LoggingSection()


class SFTSettings(OfflineSettings):
    """All settings of a supervised fine-tuning run."""

    schedule: SFTScheduleSection = SFTScheduleSection()


class PreferenceBatchSection(SFTBatchSection):
    """The pairs (dpo) or rollouts (kto) in a step."""

    rows: int = Field(default=32, gt=1)
    max_length: int = Field(default=1024, gt=0)
    """Maximum number of tokens in a rollout. Longer rollouts are left out and counted."""


class DPOSection(Section):
    """The choice of the rollouts that are compared, and the loss."""

    loss: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the starting policy; larger values move the policy less."""
    pairs_per_example: int = Field(default=1, gt=0)
    """Number of pairs from an example: its best rollout with its worst, its second best with its second
    worst..."""
    min_gap: float = Field(default=0.0, ge=0)
    """Difference that the rewards of a pair must exceed."""
    imitation: float = Field(default=0.0, ge=0)
    """Weight of the mean log-likelihood of the better rollout, which is added to the loss. It preserves the
    format that both rollouts of a pair share, and which DPO may unlearn."""


class DPOSettings(OfflineSettings):
    """All settings of a run that learns from pairs of rollouts."""

    preference: DPOSection = DPOSection()
    batch: PreferenceBatchSection = PreferenceBatchSection()


class KTOSection(Section):
    """The distinction between good and bad rollouts, and the loss."""

    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the starting policy; larger values move the policy less."""
    good_from: float | None = None
    """Smallest reward of a good rollout; all others are bad. None means the mean of the example, and leaves
    out rollouts with exactly this reward."""


class KTOSettings(OfflineSettings):
    """All settings of a run that learns from good and bad rollouts."""

    preference: KTOSection = KTOSection()
    batch: PreferenceBatchSection = PreferenceBatchSection()


PreferenceSettings = DPOSettings | KTOSettings
