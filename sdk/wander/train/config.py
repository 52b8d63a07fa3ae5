"""The settings of training: TOML files, every field documented here, all but the model's path optional.

The principal dial of GRPO is `batch.rollouts`: under about 256 rollouts a step, runs on games collapse.
"""

from __future__ import annotations

import re
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
    """None means a GPU where there is one."""
    dtype: Precision = "float32"
    lora_rank: int = Field(default=0, ge=0)
    """0 trains all weights; otherwise adapters, merged at the end."""
    lora_alpha: float | None = Field(default=None, gt=0)
    """Adapters are multiplied by alpha / rank; None means 4 times the rank."""
    lora_targets: Literal["auto"] | list[str] = "auto"
    """Names of the layers that get adapters; `auto` finds every linear layer but the output's."""
    autocast: bool = False
    """Sample and compute the update in bfloat16 while the weights stay as `dtype` says."""
    gradient_checkpointing: bool = False
    """Compute layers a second time in the backward pass: less memory, about a third more time."""
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
    """Rollouts in one backward pass and one sampling batch of four times as many; less needs less memory."""

    retries: int = Field(default=1, ge=0)
    """How often a failed rollout is played again before it is left out of its group."""
    min_group: int = Field(default=2, gt=1)
    """A group with fewer scored rollouts teaches nothing: it is refilled, or left out."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Play so many steps ahead while the policy learns, with weights of so many updates before their
    own at most; every one takes a copy of the weights, or a vLLM server. 0 plays and learns in turns."""

    learners: Literal["one", "each"] = "one"
    """Where the policy plays several players: a rollout teaches as one of them, drawn by the seed of its
    example, or as each: it is then so many rows, each with that player's reward and compared with the same
    player's, and counts so often in `rollouts`."""

    @model_validator(mode="after")
    def _divisible(self) -> BatchSection:
        if self.min_group > self.group_size:
            raise ValueError(f"min_group ({self.min_group}) exceeds group_size ({self.group_size})")
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
"""How difficult an example is to the policy, by what its last group earned."""

POOL_WEIGHTS: dict[Pool, float] = {"hard": 1.0, "normal": 2.0, "easy": 1.0, "solved": 0.1}


class DataSection(Section):
    """Which examples each step plays."""

    order: Literal["dataset", "shuffled"] = "dataset"
    """`shuffled` draws a new order each epoch, within each stratum, by `schedule.seed`."""
    stratify: bool = True
    """Strata take turns, so that every step holds each of them evenly; False leaves the order alone."""
    refill_rounds: int = Field(default=0, ge=0)
    """How often a step plays more groups in place of those whose rewards do not differ; 0 keeps them. Each
    round plays as many as it should take by what was seen in the step, at most a step's worth."""
    curriculum: bool = False
    """Draw examples by how difficult they last were, instead of one epoch after another."""
    hard_below: float = 0.25
    """Mean reward of a group under which its example is hard."""
    easy_from: float = 0.75
    """Mean reward from which it is easy; one whose rollouts all earn the same and are not hard is solved."""
    pool_weights: dict[Pool, float] = Field(default_factory=lambda: dict(POOL_WEIGHTS))
    """How likely an example is drawn from each pool; one that is not given keeps its default."""
    unseen_share: float = Field(default=1.0, ge=0, le=1)
    """Share of draws that take an example never played while there is one; 1 plays all of them first."""

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
    max_rollout_tokens: int | None = Field(default=None, gt=0)
    """Tokens of a whole rollout, prompt and the environment's included; it ends there, truncated."""
    compact_at: int | None = Field(default=None, gt=0)
    """Tokens that a conversation may have before its oldest turns are left out; what follows is another
    sequence of the rollout, and learnt too. None leaves nothing out."""

    @model_validator(mode="after")
    def _one_end(self) -> SamplingSection:
        if self.compact_at is not None and self.max_rollout_tokens is not None:
            raise ValueError(
                "`max_rollout_tokens` ends a conversation that `compact_at` makes go on: give one of them"
            )
        return self


class ScheduleSection(Section):
    """How long and how fast."""

    steps: int = Field(default=100, gt=0)
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Schedule = "constant"
    max_grad_norm: float = Field(default=1.0, gt=0)
    seed: int = 0
    stop_grace: float = Field(default=30.0, gt=0)
    """Seconds that the step under way may take after a first Ctrl-C or SIGTERM. If the policy samples nothing
    for 10 seconds, the step is given up earlier. What the steps before it learned is saved."""


class OutputSection(Section):
    """What is kept."""

    checkpoint_every: int | None = Field(default=None, ge=0)
    """Steps between checkpoints. None means 20, of which the newest two stay until the run has ended; 0 keeps
    only that of an interrupted run. The final model is always kept."""
    checkpoints_kept: int = Field(default=0, ge=0)
    """How many of those that `checkpoint_every` asks for stay, the newest, two at least; 0 keeps all."""
    rollouts_every: int = Field(default=10, ge=0)
    """Steps between samples of rollouts in the run's record: one group of the step, and what the policy does
    on `fixed_prompts`; 0 keeps none."""
    fixed_prompts: int = Field(default=2, ge=0)
    """First examples of the training order that are played again at every sample, to be read one beside the
    other; they teach nothing."""
    keep_best: str | None = None
    """`CELL/METRIC` of the evaluations, such as `optimal/drawn` or `eval/reward`: the weights that did best
    in it are kept in `best`, beside those of the end in `model`."""
    best_mode: Literal["max", "min"] = "max"


class EvaluationCell(Section):
    """One of the evaluations during training: a name, and what differs from the training environment."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    environment: str | None = None
    """Another environment than the one that is trained on; its arguments are `arguments` alone."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Laid over `environment.arguments`."""
    players: dict[str, str] = Field(default_factory=dict)
    """Who plays beside the policy here, as in `[players]`; `earlier` cannot, and `frozen` always is the same.
    The policy plays everybody else."""
    examples: int | None = Field(default=None, gt=0)
    """None means `evaluation.examples`."""
    exhaustive: bool = False
    """Play every line of what the environment may reply in place of examples; the metrics count the lines
    that were `won`, `drawn`, `lost`, `unfinished`, `failed`, `invalid`, and `bad`: all but those won or drawn
    without an invalid move."""

    @model_validator(mode="after")
    def _either(self) -> EvaluationCell:
        if self.exhaustive and self.examples is not None:
            raise ValueError(f"cell `{self.name}` is exhaustive: it plays every line, not `examples`")
        return self


class EvaluationSection(Section):
    """Evaluation while the policy learns, on examples that it does not learn from."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 means none. One comes before the first step and one after the last."""
    examples: int = Field(default=100, gt=0)
    """The first so many of the eval split, one rollout each."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the most probable token."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Tokens of one turn; None means `sampling.max_tokens`."""
    seed: int = 0
    """Seeds the environment; the same at every evaluation, so that they can be compared."""
    cells: list[EvaluationCell] = Field(default_factory=list)
    """Empty means one, `eval`, of the training environment; of several environments one each, by label."""

    @model_validator(mode="after")
    def _distinct(self) -> EvaluationSection:
        names = [cell.name for cell in self.cells]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two cells are called `{twice[0]}`")
        if self.temperature and any(cell.exhaustive for cell in self.cells):
            raise ValueError("an exhaustive cell is greedy: `evaluation.temperature` must be 0")
        return self


class StoppingSection(Section):
    """When a run ends before its last step: it collapsed, or it reached what it is for."""

    entropy_share: float = Field(default=0.0, ge=0, lt=1)
    """Stop when the entropy stays below this share of the mean of its first `first_steps` steps."""
    first_steps: int = Field(default=20, gt=0)
    drop: dict[str, float] = Field(default_factory=dict)
    """Stop when a metric of the steps (`reward`, `rewards/format`) stays so far below its best."""
    patience: int = Field(default=20, gt=0)
    """Steps in a row that it must stay so; the best is that of the mean of so many steps."""
    collapse: bool = False
    """Stop when the alert `collapse` is raised."""
    target: dict[str, float | str] = Field(default_factory=dict)
    """Stop when one evaluation meets all of these: `CELL/METRIC` and the least value, or a bound as text
    (`"<=0"`)."""

    @model_validator(mode="after")
    def _bounds(self) -> StoppingSection:
        for name, bound in self.target.items():
            if isinstance(bound, str) and not re.fullmatch(r"(>=|<=|==|>|<)\s*-?\d+(\.\d+)?", bound):
                raise ValueError(f"the target of `{name}` is no bound: write a number, or text such as `<=0`")
        return self


Tracker = Literal["tensorboard", "trackio", "wandb"]


class LoggingSection(Section):
    """Where metrics go beside `metrics.jsonl`."""

    trackers: list[Tracker] = Field(default_factory=list)
    """Each is an extra of `wander-sdk`. TensorBoard and W&B write into the run folder, trackio where it
    keeps its databases."""
    project: str = Field(default="wander", min_length=1)
    """Under which trackio and W&B list the run; its name there is that of its folder."""


class AlertsSection(Section):
    """What raises an alert. Alerts stop nothing: `stopping` does."""

    reward_drop: float = Field(default=0.3, gt=0)
    """A collapse: the mean reward of five steps is this share under the best that it was, and further than
    chance explains."""
    entropy_burst: float = Field(default=2.0, gt=1)
    """A collapse: the reward is no higher than in the first five steps, and the entropy is so many times what
    it was, or under `entropy_share` of that."""
    entropy_share: float = Field(default=0.2, ge=0, lt=1)
    """Entropy under this share of the mean of its first `entropy_first_steps` steps, for `steps` steps."""
    entropy_first_steps: int = Field(default=10, gt=0)
    without_variance: float = Field(default=0.8, ge=0, le=1)
    """More than this share of groups without variance, for `steps` steps."""
    truncated: float = Field(default=0.3, ge=0, le=1)
    """More than this share of rollouts cut short."""
    environment_errors: float = Field(default=0.05, ge=0, le=1)
    """More than this share of rollouts that failed in the environment."""
    steps: int = Field(default=10, gt=0)
    """Steps in a row that a lasting condition takes, and that one must be gone before it is told again."""


class InferenceSection(Section):
    """What samples the rollouts."""

    engine: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    """transformers in this process; vLLM in this process, on the policy's GPU; or a vLLM server."""
    waves: int = Field(default=1, gt=0)
    """transformers: parts of a step that are sampled in turns, so that the environments of one work while
    another is sampled; 2 pays where environments are slow. As repeatable as 1."""
    url: str | list[str] | None = None
    """vllm-server: where it runs, or several; None starts one on this machine for the run."""
    python: str | None = None
    """vllm-server: the Python that has vLLM, to start it; None means that of the `wander` settings."""
    arguments: list[str] = Field(default_factory=list)
    """vllm-server: further arguments of the server that is started."""
    sync: Literal["folder", "nccl"] = "folder"
    """vllm-server: how new weights get there: a checkpoint in a folder that both see, or a broadcast from GPU
    to GPU."""
    folder: str | None = None
    """vllm-server: that folder; None means one in the run's."""
    group_port: int = Field(default=51216, gt=0, lt=65536)
    """vllm-server: first port of the broadcast; every further server takes the next."""
    sleep: bool = False
    """vLLM gives its memory back while the policy learns: for one GPU that holds both."""
    memory: float = Field(default=0.3, gt=0, lt=1)
    """vllm: share of the GPU's memory that it takes."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "token_truncate"
    )
    """Where what samples has not the policy's probabilities bit for bit (vLLM, weights of before), gradients
    are weighted by the ratio of the two, of tokens or of whole completions; the ratio is bounded, or what
    exceeds the bound left out."""
    correction_max: float = Field(default=3.0, gt=0)
    """Upper bound of that ratio."""


class ParallelSection(Section):
    """What the processes of a run share, where `torchrun` or `accelerate launch` started several."""

    policy: Literal["replicated", "fsdp2"] = "replicated"
    """`fsdp2`: weights, gradients and the optimizer's state are sharded over the processes; otherwise each
    has all of them."""


class PolicySettings(Section):
    """What the settings of every kind of training have in common."""

    model: ModelSection


class GRPOSettings(PolicySettings):
    """All settings of a GRPO run."""

    environment: EnvironmentSection = EnvironmentSection()
    environments: list[MixedEnvironmentSection] = Field(default_factory=list)
    """Several environments in place of one; `environment` then holds what is common to them."""
    players: dict[str, Player] = Field(default_factory=dict)
    """Who plays the environment's players; the policy plays, and learns as, those that are not named."""
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
    alerts: AlertsSection = AlertsSection()

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
        """Who plays in the policy's place, by player; nothing is learnt as one of these."""
        return {name: player.model for name, player in self.players.items() if player.model != SELF}

    def count_roles(self, players: Sequence[str]) -> int:
        """Return as how many of an environment's players the policy learns from a rollout."""
        learners = [player for player in players if player not in self.other_players]
        return max(1, len(learners)) if self.batch.learners == "each" else 1

    @model_validator(mode="after")
    def _require_effect(self) -> GRPOSettings:
        """Refuse what the loss does not read."""
        require_effect(self)
        return self

    @model_validator(mode="after")
    def _require_two_at_once(self) -> GRPOSettings:
        """Refuse what cannot be had beside steps that are played ahead, or learnt from several times."""
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
        """Refuse a best or a target that no evaluation will ever tell."""
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
        """Return the settings as a run's record has them: how many workers, and not where they listen."""
        data = self.model_dump(mode="json")
        data["environment"]["worker_token_file"] = None
        for section in (data["environment"], *data["environments"]):
            if isinstance(section["workers"], list):
                section["workers"] = len(section["workers"])
        return data

    @property
    def batches(self) -> int:
        """How often the run plays: once for `algorithm.num_iterations` steps."""
        return -(-self.schedule.steps // self.algorithm.num_iterations)

    @property
    def evaluation_cells(self) -> list[EvaluationCell]:
        """What is evaluated: the cells, or what is trained on."""
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
    """How long and how fast, over rows that are there; one epoch or more, or a number of steps."""

    steps: int = Field(default=0, ge=0)
    """0 means as many as `epochs` need."""
    epochs: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Schedule = "cosine"
    checkpoint_every: int | None = Field(default=None, ge=0)
    """Steps between checkpoints, of which the newest two stay. None means 200, and none is left once the run
    has ended; 0 keeps only that of an interrupted run."""


class SFTScheduleSection(OfflineScheduleSection):
    """How long and how fast, and how often the loss is measured on what is held back."""

    eval_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the conversations that is held back to measure the loss on; those of one prompt together."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between measurements; 0 measures before the first step and after the last alone."""


class SFTBatchSection(Section):
    """How many conversations a step."""

    rows: int = Field(default=32, gt=0)
    max_length: int = Field(default=1024, gt=0)
    """Tokens of one conversation; longer ones are left out, and counted."""


class OfflineSettings(PolicySettings):
    """What the settings of all have in common that learn from rows."""

    batch: SFTBatchSection = SFTBatchSection()
    schedule: OfflineScheduleSection = OfflineScheduleSection()
    logging: LoggingSection = LoggingSection()


class SFTSettings(OfflineSettings):
    """All settings of a supervised fine-tuning run."""

    schedule: SFTScheduleSection = SFTScheduleSection()


class PreferenceBatchSection(SFTBatchSection):
    """How many pairs (dpo) or rollouts (kto) a step."""

    rows: int = Field(default=32, gt=1)
    max_length: int = Field(default=1024, gt=0)
    """Tokens of one rollout; longer ones are left out, and counted."""


class DPOSection(Section):
    """Which rollouts are compared, and how that becomes gradients."""

    loss: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to what it was before: more moves it less."""
    pairs_per_example: int = Field(default=1, gt=0)
    """The best rollout of an example against its worst, the second best against the second worst..."""
    min_gap: float = Field(default=0.0, ge=0)
    """The rewards of a pair differ by more than this."""
    imitation: float = Field(default=0.0, ge=0)
    """Weight of the mean log-likelihood of the better rollout beside the loss: it keeps form, which both
    rollouts of a pair share and DPO alone may unlearn."""


class DPOSettings(OfflineSettings):
    """All settings of a run that learns from pairs of rollouts."""

    preference: DPOSection = DPOSection()
    batch: PreferenceBatchSection = PreferenceBatchSection()


class KTOSection(Section):
    """Which rollouts are good, and how that becomes gradients."""

    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to what it was before: more moves it less."""
    good_from: float | None = None
    """Reward from which a rollout is good, and under which it is bad; None means the mean of its example,
    where those of exactly that reward are left out."""


class KTOSettings(OfflineSettings):
    """All settings of a run that learns from good and bad rollouts."""

    preference: KTOSection = KTOSection()
    batch: PreferenceBatchSection = PreferenceBatchSection()


PreferenceSettings = DPOSettings | KTOSettings
