"""The run record: what a run folder holds and what is posted of it.

The run folder is the unit of posting (`run.json`, `rollouts.jsonl` or `rollouts.jsonl.zst`, optional
`metrics.jsonl` and plots for training runs). `summary.json` is derived and the hub never trusts it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, model_validator

from wander.types import EnvironmentInfo, Record, SamplingArgs, Usage, canonical_json
from wander.wire.fields import (
    PROJECT_NAME,
    Count,
    Integer,
    Line,
    OwnerName,
    Positive,
    Release,
    RunId,
    Sha256,
    Text,
    Values,
)
from wander.wire.reproduction import Reproduction

RUN_SCHEMA: Literal["wander.run/1"] = "wander.run/1"

MOST_ROLLOUTS = 10**9
"""Rollouts of one run."""
MOST_SHARDS = 10**6
"""Parts that a run is divided into."""

ExampleChoice = Literal["first", "shuffled", "strata", "shuffled strata"]
"""How a run chooses its examples: the first of the split, drawn by the seed, evenly from the strata."""
STATED_ENDINGS = ("timeout_reached", "context_overflow")
"""Stop reasons that depend on the machine or the model's server. A replay takes them from the record."""
_ENDPOINT_NAME = re.compile(
    r"(?:^|[_-])(?:base_?ur[li]|api_?(?:base|ur[li])|(?:judge|server|model)_?ur[li]|endpoints?(?:_?ur[li]s?)?)s?$",
    re.IGNORECASE,
)
"""Names of arguments that hold addresses of endpoints: `judge_base_url`, `api_base`, `endpoint`."""
_ENDPOINT_URL = re.compile(
    r"^\s*(?:https?|wss?)://(?:[^/?#]*@)?"
    r"(?:(?:localhost|127\.[0-9.]+|0\.0\.0\.0|\[::1?\])(?::\d+)?(?:[/?#]|\s*$)"
    r"|[^?#]*/v\d+(?:/(?:chat/)?completions)?/?\s*$)",
    re.IGNORECASE,
)
"""URLs that are endpoints whatever their argument is called: those of this machine, and APIs (`.../v1`)."""
ADDRESS = "ADDRESS"
"""What boards and pages show for an address that an argument of another name holds."""
RunKind = Literal["evaluation", "training", "exhaustive", "play"]
"""`exhaustive`: its examples are the openings, its rollouts the lines of a walk through every choice of the
environment. `play`: a person took a side."""
SCRIPT = "script"
"""The kind of a player who is a function of the environment's own package (`wander.clients.scripted`)."""
Unlocked = Literal["chosen", "none_published", "folder"]
"""Why an environment does not run with the packages of its version's lock: `--no-lock` was given, the version
has no lock, or it is a folder that nobody published."""


class SandboxPin(Record):
    """By what the environment of a run was confined."""

    tier: Literal["bubblewrap"] = "bubblewrap"
    version: Line
    """Of the program that made it."""
    profile_sha256: Sha256
    """Digest of the isolation, the system call filter and the limits."""
    limits: dict[Text, float] = Field(default_factory=dict)
    """As in `wander.sandbox.SandboxPolicy`: bytes and seconds."""
    memory_bound: Literal["cgroup", "process"]
    """Whether the memory limit holds for all its processes together, or for each by itself."""


def _is_endpoint(name: str, value: Any) -> bool:
    """Tell whether an argument only says where an endpoint is: its name says so, and it is a URL or None."""
    plain = value is None or (isinstance(value, str) and "://" in value)
    return plain and bool(_ENDPOINT_NAME.search(name))


def _compared(value: Any, name: str = "") -> Any:
    """Return a JSON value without endpoints, other addresses as one word, and whole floats as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _compared(one, key) for key, one in value.items() if not _is_endpoint(key, one)}
    if isinstance(value, list):
        return [_compared(one, name) for one in value if not _is_endpoint(name, one)]
    if value and isinstance(value, str) and (_ENDPOINT_NAME.search(name) or _ENDPOINT_URL.search(value)):
        return ADDRESS
    return value


class EnvironmentPin(Record):
    """Exactly which environment a run used."""

    owner: OwnerName | None = None
    """None for an environment taken from a local path."""
    name: Text
    version: Release | None = None
    wheel_sha256: Sha256 | None = None
    lock_sha256: Sha256 | None = None
    """Digest of the version's lock (PEP 751), from which its packages were installed; None without one."""
    unlocked: Unlocked | None = None
    """Why `lock_sha256` is None."""
    packages_sha256: Sha256 | None = None
    """Digest of the names and versions of the packages that it ran with."""
    path: Text | None = None
    """Where a local environment was loaded from."""
    source_sha256: Sha256 | None = None
    """Of a folder that a policy was trained on: the digest of its Python files and `pyproject.toml`."""
    arguments: Values = Field(default_factory=dict)
    sandbox: SandboxPin | None = None
    """None when its process was not confined."""
    info: EnvironmentInfo

    @model_validator(mode="after")
    def _published_names_are_names(self) -> EnvironmentPin:
        """What is installed by them lies in folders of these names."""
        if self.owner is not None and not PROJECT_NAME.fullmatch(self.name):
            raise ValueError(f"`{self.name[:100]}` is not the name of a published environment")
        return self

    @property
    def changed_arguments(self) -> dict[str, Any]:
        """The arguments that are not defaults of the environment; a whole float is an integer.

        It changes no question where a judge is served, so arguments such as `judge_base_url` are left out. An
        address under another name is `ADDRESS`: it may be private, and code may take it for a plain yes.
        """
        defaults, given = (_compared(values) for values in (self.info.defaults, self.arguments))
        return {
            name: value
            for name, value in given.items()
            if name not in defaults or canonical_json(value) != canonical_json(defaults[name])
        }

    @property
    def full_name(self) -> str:
        """`owner/name`, or the name alone of an environment from a local path."""
        return f"{self.owner}/{self.name}" if self.owner else self.name


class ModelPin(Record):
    """Which model answered, as precisely as the client knows."""

    name: Text
    kind: Text
    """Client class: OpenAIClient, TransformersClient, ScriptedClient..."""
    base_url: Text | None = None
    revision: Text | None = None
    weights_sha256: Sha256 | None = None
    chat_template_sha256: Sha256 | None = None
    details: Values = Field(default_factory=dict)


class TokenPrices(Record):
    """What a model costs, in USD for a million tokens."""

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)

    def cost(self, usage: Usage) -> float:
        """Return the USD that so many tokens cost."""
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / 1e6


class Spending(Record):
    """What a run took from its model, over all its parts, and what it was allowed to take.

    Counted are the answers to its rollouts, repeated ones included, without what a cache answered.
    """

    usage: Usage = Field(default_factory=Usage)
    usd: float | None = None
    """None where the prices are not known."""
    prices: TokenPrices | None = None
    budget_tokens: Count | None = None
    budget_usd: float | None = None


class Platform(Record):
    """Where a run was made."""

    wander: Text
    python: Text
    system: Text
    machine: Text
    accelerator: Text | None = None
    packages: dict[Text, Text] = Field(default_factory=dict)
    """Versions of the libraries that can change a number: torch, transformers, vllm, trl."""
    git_commit: Text | None = None
    git_dirty: bool | None = None


class EndpointUse(Record):
    """How the endpoints of a run were asked, those of judges that ask through the host included."""

    calls: Integer = 0
    """Model calls, each counted once however often it was sent."""
    retries: Integer = 0
    """How often one was sent again after a lost connection, a time-out or an error of the server."""
    refusals: Integer = 0
    """How often one was sent again because the endpoint said that it is asked too much (429, 503, 529)."""
    paused_seconds: float = 0.0
    """How long the endpoint kept everybody waiting for that."""
    cached: Integer = 0
    """Calls that a cache of responses answered in the endpoint's place; not among `calls`."""
    at_least: bool = Field(default=False, exclude_if=lambda known: not known)
    """A part of the run was killed, and of its calls those alone count whose answers are on record."""

    def told(self) -> str:
        """Return it in words: `1,200, 3 retried; refused 41 times for their rate, 12 s of pauses`."""
        calls = f"{'at least ' if self.at_least else ''}{self.calls:,}"
        retried = f", {self.retries:,} retried" if self.retries else ""
        retried += f", {self.cached:,} more from the cache" if self.cached else ""
        if not self.refusals:
            return f"{calls}{retried}"
        pauses = f"{self.paused_seconds:.0f} s of pauses"
        return f"{calls}{retried}; refused {self.refusals:,} times for their rate, {pauses}"

    def __add__(self, other: EndpointUse) -> EndpointUse:
        return self._combine(other, 1)

    def __sub__(self, other: EndpointUse) -> EndpointUse:
        return self._combine(other, -1)

    def _combine(self, other: EndpointUse, sign: int) -> EndpointUse:
        return EndpointUse(
            calls=self.calls + sign * other.calls,
            retries=self.retries + sign * other.retries,
            refusals=self.refusals + sign * other.refusals,
            paused_seconds=round(self.paused_seconds + sign * other.paused_seconds, 3),
            cached=self.cached + sign * other.cached,
            at_least=self.at_least or other.at_least,
        )


class Shard(Record):
    """A part of a run that is played by itself, in a folder of its own.

    What is played together (a rollout, or where rewards compare them the rollouts of an example) is numbered
    in the manifest's order; the shard holds those whose number leaves `first` to `end - 1` when it is divided
    by `of`. So every beginning of a shard is as even as that of the whole.
    """

    first: Count
    end: Count
    of: Annotated[Positive, Field(le=MOST_SHARDS)]

    @model_validator(mode="after")
    def _check_order(self) -> Shard:
        if not self.first < self.end <= self.of:
            raise ValueError(f"there is no part {self.first} to {self.end} of {self.of}")
        return self

    def __str__(self) -> str:
        last = self.end - 1
        return f"{self.first}/{self.of}" if last == self.first else f"{self.first}-{last}/{self.of}"

    def takes(self, number: int) -> bool:
        """Tell whether what has this number is played here."""
        return self.first <= number % self.of < self.end

    def count(self, whole: int) -> int:
        """Return how many of so many are played here."""
        rounds, rest = divmod(whole, self.of)
        return rounds * (self.end - self.first) + max(0, min(rest, self.end) - self.first)


class MixedEnvironment(Record):
    """One of several environments that a training run mixes."""

    label: Text
    """What its metrics are called by."""
    weight: float
    environment: EnvironmentPin
    examples: Count
    """How many of its examples the run may play."""
    task_set_sha256: Sha256


class RunManifest(Record):
    """`run.json`: everything that pins a run, written before the first rollout."""

    schema_: Literal["wander.run/1"] = Field(default=RUN_SCHEMA, alias="schema")
    run_id: RunId
    """26-character sortable id, made by the client."""
    kind: RunKind = "evaluation"
    environment: EnvironmentPin
    model: ModelPin
    sampling: SamplingArgs = Field(default_factory=SamplingArgs)
    split: Literal["train", "eval"] = "eval"
    example_ids: list[Text]
    """Ordered ids of the examples that the run plays."""
    rollouts_per_example: Annotated[Positive, Field(le=MOST_ROLLOUTS)]
    strata: list[Integer | None] = Field(default_factory=list)
    """Stratum of each of those examples; empty where the environment declares none."""
    task_set_sha256: Sha256
    choice: ExampleChoice = "first"
    """How the examples were chosen from the split."""
    rerun_of: RunId | None = None
    """Id of the run that this one repeats from its manifest."""
    seed: Integer = 0
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    platform: Platform
    training: Values | None = None
    """The resolved training configuration, for training runs."""
    mixture: list[MixedEnvironment] = Field(default_factory=list)
    """All environments of a training run that mixes several; `environment` and the examples are those of the
    first."""
    reproduction: Reproduction | None = None
    """With what a training run can be repeated, and how exactly."""
    endpoints: EndpointUse | None = None
    """Over all parts of a resumed run but those that were killed; None where no endpoint was asked."""
    spending: Spending | None = None
    """Of runs with a budget or known prices."""
    lines: Annotated[Count, Field(le=MOST_ROLLOUTS)] | None = None
    """Of an exhaustive run: how many lines there are; None until all of them are known. 1 where a person made
    the environment's choices."""
    notes: Text = ""
    shard: Shard | None = Field(default=None, exclude_if=lambda shard: shard is None)
    """Which part of the run this folder holds; None where it is the whole."""
    players: dict[Text, ModelPin] = Field(default_factory=dict, exclude_if=lambda players: not players)
    """Who played in the model's place, by player; of kind `script`, a function of the environment's package.
    Empty where the model played alone, or everybody."""

    @model_validator(mode="after")
    def _check_size(self) -> RunManifest:
        if len(self.example_ids) * self.rollouts_per_example > MOST_ROLLOUTS:
            raise ValueError(f"it plays more than {MOST_ROLLOUTS:,} rollouts")
        return self

    @property
    def scripts(self) -> dict[str, str]:
        """The players whom functions of the environment's package played: a replay plays them anew."""
        return {player: pin.name for player, pin in self.players.items() if pin.kind == SCRIPT}

    @property
    def stated_players(self) -> list[str]:
        """The players whom another model played: nobody can derive which model that was."""
        return sorted(self.players.keys() - self.scripts.keys())

    @property
    def played_together(self) -> int:
        """How many rollouts of an example are played, retried and resumed as one."""
        return self.rollouts_per_example if self.environment.info.group_rewards else 1

    @property
    def expected_rollouts(self) -> int:
        """How many rollouts a complete run holds; of a shard, how many its folder does."""
        if self.kind == "exhaustive" and self.lines is not None:
            return self.lines
        whole = len(self.example_ids) * self.rollouts_per_example
        if self.shard is None:
            return whole
        return self.shard.count(whole // self.played_together) * self.played_together


class MetricSummary(Record):
    """Mean of one reward function over the rollouts that were scored."""

    mean: float
    std: float
    count: Count
    low: float | None = None
    """Of the 95 % interval of the mean, clustered by example as the reward's; None where too few have it."""
    high: float | None = None


class Histogram(Record):
    """Equal-width bins over the observed rewards."""

    edges: list[float]
    """len(counts) + 1 ascending edges."""
    counts: list[Count]


class PassRate(Record):
    """How surely an example passes when it is tried `k` times; each estimate with its 95 % interval.

    Both are unbiased, means over the examples with at least `k` scored rollouts.
    """

    k: Count
    examples: Count
    """Examples with at least `k` scored rollouts."""
    pass_at_k: float
    """Chance that at least one of `k` rollouts passes."""
    pass_at_k_low: float
    pass_at_k_high: float
    pass_hat_k: float
    """Chance that all of `k` rollouts pass (pass^k)."""
    pass_hat_k_low: float
    pass_hat_k_high: float


class RunSummary(Record):
    """Aggregates of a run, always recomputed from its rollouts."""

    rollouts: Count
    """Rollouts on record, failed ones included."""
    expected: Count
    failed: Count
    failures: dict[Text, Count] = Field(default_factory=dict)
    """Failed rollouts by boundary."""
    examples: Count
    reward_mean: float | None
    """Mean over examples of the mean over that example's scored rollouts; None when nothing was scored."""
    reward_low: float | None
    reward_high: float | None
    """95 % interval, clustered by example."""
    reward_std: float | None
    metrics: dict[Text, MetricSummary] = Field(default_factory=dict)
    histogram: Histogram | None = None
    stop_reasons: dict[Text, Count] = Field(default_factory=dict)
    truncated: Count = 0
    refused: Count = 0
    """Number of rollouts in which the model refused to answer, as its endpoint reports."""
    filtered: Count = 0
    """Number of rollouts in which a content filter removed or cut short a turn."""
    turns_mean: float | None = None
    usage: Usage = Field(default_factory=Usage)
    seconds_mean: float | None = None
    pass_threshold: float | None = None
    """The reward from which a rollout counts as passed: 1 where all are 0 or 1; None for graded ones."""
    pass_rates: list[PassRate] = Field(default_factory=list)
    """For k = 1, 2, 4... up to the most rollouts of an example; empty with one rollout an example."""

    @property
    def stated_endings(self) -> int:
        """Rollouts that ended for a reason that no replay can derive: their time, or the model's context."""
        return sum(self.stop_reasons.get(reason, 0) for reason in STATED_ENDINGS)

    def endings(self, info: EnvironmentInfo) -> dict[str, int]:
        """Return how often rollouts ended for which reason, without the end that a single turn always has."""
        usual = ("answered", "max_turns_reached") if info.max_turns == 1 else ()
        return {reason: number for reason, number in self.stop_reasons.items() if reason not in usual}
