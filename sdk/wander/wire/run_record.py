"""The run record: the content of a run folder, which is also what a client posts to a hub.

A run folder contains `run.json` and `rollouts.jsonl` or `rollouts.jsonl.zst`. A training run may add
`metrics.jsonl` and plots. `summary.json` is computed from the other files, and the hub never trusts it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from wander.errors import RunError
from wander.types import (
    AGENT,
    EnvironmentInfo,
    Record,
    Rollout,
    SamplingArgs,
    SubCall,
    Usage,
    canonical_json,
    first_fault,
)
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
"""Maximum number of rollouts in a run."""
MOST_SHARDS = 10**6
"""Maximum number of parts that a run can be divided into."""

ExampleChoice = Literal["first", "shuffled", "strata", "shuffled strata"]
"""Choice of a run's examples: the first examples of the split (`first`), a sample drawn with the
seed (`shuffled`), evenly from the strata (`strata`), or both (`shuffled strata`)."""
STATED_ENDINGS = ("timeout_reached", "context_overflow")
"""Stop reasons that depend on the machine or the model's server. A replay takes them from the record."""
_ENDPOINT_NAME = re.compile(
    r"(?:^|[_-])(?:base_?ur[li]|api_?(?:base|ur[li])|(?:judge|server|model)_?ur[li]|endpoints?(?:_?ur[li]s?)?)s?$",
    re.IGNORECASE,
)
"""Pattern of argument names that hold the address of an endpoint: `judge_base_url`, `api_base`,
`endpoint`."""
_ENDPOINT_URL = re.compile(
    r"^\s*(?:https?|wss?)://(?:[^/?#]*@)?"
    r"(?:(?:localhost|127\.[0-9.]+|0\.0\.0\.0|\[::1?\])(?::\d+)?(?:[/?#]|\s*$)"
    r"|[^?#]*/v\d+(?:/(?:chat/)?completions)?/?\s*$)",
    re.IGNORECASE,
)
"""Pattern of URLs that are endpoints under any argument name: URLs of this machine, and APIs (`.../v1`)."""
ADDRESS = "ADDRESS"
"""Text that boards and pages show in place of an address whose argument is not named as an endpoint."""
RunKind = Literal["evaluation", "training", "exhaustive"]
"""Kind of a run. In an `exhaustive` run, the examples are openings and the rollouts are the lines of a walk
through every choice of the environment."""
SCRIPT = "script"
"""Kind of a player that is a function of the environment's own package (`wander.clients.scripted`)."""
Unlocked = Literal["chosen", "none_published", "folder"]
"""Reason why an environment ran without the packages of its version's lock: the user passed `--no-lock`, the
version has no lock, or the environment is an unpublished folder."""


class SandboxPin(Record):
    """The sandbox that confined the environment of a run."""

    tier: Literal["bubblewrap"] = "bubblewrap"
    version: Line
    """Version of bubblewrap."""
    profile_sha256: Sha256
    """Digest of the isolation, the system call filter and the limits."""
    limits: dict[Text, float] = Field(default_factory=dict)
    """Limits in bytes and seconds, as in `wander.sandbox.SandboxPolicy`."""
    memory_bound: Literal["cgroup", "process"]
    """Whether the memory limit applies to all processes of the sandbox together, or to each process."""


def _is_endpoint(name: str, value: Any) -> bool:
    """Return whether an argument only names an endpoint: its name says so, and its value is a URL or None."""
    plain = value is None or (isinstance(value, str) and "://" in value)
    return plain and bool(_ENDPOINT_NAME.search(name))


def _compared(value: Any, name: str = "") -> Any:
    """Return a JSON value without endpoints, with other addresses hidden and whole floats as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _compared(item, key) for key, item in value.items() if not _is_endpoint(key, item)}
    if isinstance(value, list):
        return [_compared(item, name) for item in value if not _is_endpoint(name, item)]
    if value and isinstance(value, str) and (_ENDPOINT_NAME.search(name) or _ENDPOINT_URL.search(value)):
        return ADDRESS
    return value


class EnvironmentPin(Record):
    """The exact environment that a run used."""

    owner: OwnerName | None = None
    """Owner of the environment; None if it was loaded from a local path."""
    name: Text
    version: Release | None = None
    wheel_sha256: Sha256 | None = None
    lock_sha256: Sha256 | None = None
    """Digest of the lock (PEP 751) that the packages were installed from; None if no lock was used."""
    unlocked: Unlocked | None = None
    """Reason why `lock_sha256` is None."""
    packages_sha256: Sha256 | None = None
    """Digest of the names and versions of the installed packages."""
    path: Text | None = None
    """Path that a local environment was loaded from."""
    source_sha256: Sha256 | None = None
    """Digest of the Python files and `pyproject.toml` of a local environment that a policy was trained on."""
    arguments: Values = Field(default_factory=dict)
    sealed: Sha256 | None = Field(default=None, exclude_if=lambda sealed: sealed is None)
    """Commitment of the sealed task set whose rows replaced those of the evaluation split; None if the
    environment's own examples were played."""
    sandbox: SandboxPin | None = None
    """Sandbox of the environment's process; None if it was not confined."""
    info: EnvironmentInfo

    @model_validator(mode="after")
    def _published_names_are_names(self) -> EnvironmentPin:
        """Reject names that are not safe as folder names: an environment is installed under its name."""
        if self.owner is not None and not PROJECT_NAME.fullmatch(self.name):
            raise ValueError(f"`{self.name[:100]}` is not the name of a published environment")
        return self

    @property
    def changed_arguments(self) -> dict[str, Any]:
        """Arguments that differ from the environment's defaults, with whole floats as integers.

        Arguments such as `judge_base_url` are left out, because the address of a judge does not change the
        task. An address under any other name is replaced by `ADDRESS`. It stays in the result because its
        presence may change the task, but the address itself may be private.
        """
        defaults, given = (_compared(values) for values in (self.info.defaults, self.arguments))
        return {
            name: value
            for name, value in given.items()
            if name not in defaults or canonical_json(value) != canonical_json(defaults[name])
        }

    @property
    def full_name(self) -> str:
        """`owner/name`, or only the name of an environment from a local path."""
        return f"{self.owner}/{self.name}" if self.owner else self.name


class ModelPin(Record):
    """The model that answered, as precisely as its client can identify it."""

    name: Text
    kind: Text
    """Name of the client class: OpenAIClient, TransformersClient, ScriptedClient..."""
    base_url: Text | None = None
    revision: Text | None = None
    weights_sha256: Sha256 | None = None
    chat_template_sha256: Sha256 | None = None
    details: Values = Field(default_factory=dict)


class TokenPrices(Record):
    """The prices of a model, in USD per million tokens."""

    model_config = ConfigDict(allow_inf_nan=False)

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0, exclude_if=lambda price: price is None)
    """Price of prompt tokens that the endpoint read from its cache; None if they cost as much as others."""
    reasoning: float | None = Field(default=None, ge=0, exclude_if=lambda price: price is None)
    """Price of reasoning tokens; None if they cost as much as other completion tokens."""

    def cost(self, usage: Usage) -> float:
        """Return the cost of these tokens in USD."""
        cached = self.prompt if self.cached is None else self.cached
        reasoning = self.completion if self.reasoning is None else self.reasoning
        return (
            (usage.prompt_tokens - usage.cached_tokens) * self.prompt
            + usage.cached_tokens * cached
            + (usage.completion_tokens - usage.reasoning_tokens) * self.completion
            + usage.reasoning_tokens * reasoning
        ) / 1e6


class Spending(Record):
    """The tokens and the cost of a run over all its parts, and its budget.

    All model answers count, including those of repeated rollouts. Answers from a cache do not count.
    """

    usage: Usage = Field(default_factory=Usage)
    usd: float | None = None
    """Cost in USD; None if the prices are not known."""
    prices: TokenPrices | None = None
    budget_tokens: Count | None = None
    budget_usd: float | None = None


class Platform(Record):
    """The machine and the software that made a run."""

    wander: Text
    python: Text
    system: Text
    machine: Text
    accelerator: Text | None = None
    packages: dict[Text, Text] = Field(default_factory=dict)
    """Versions of the libraries that can affect results: torch, transformers, vllm, trl."""
    git_commit: Text | None = None
    git_dirty: bool | None = None


class EndpointUse(Record):
    """The number of calls to the endpoints of a run, including judges that the host calls."""

    calls: Integer = 0
    """Number of model calls; a call that was sent several times counts once."""
    retries: Integer = 0
    """Number of repeated requests after a lost connection, a timeout or a server error."""
    refusals: Integer = 0
    """Number of repeated requests after the endpoint's rate limit was exceeded (status 429, 503 or 529)."""
    paused_seconds: float = 0.0
    """Seconds during which all calls waited because of the rate limit."""
    cached: Integer = 0
    """Number of calls that were answered from a cache of responses; they do not count in `calls`."""
    at_least: bool = Field(default=False, exclude_if=lambda known: not known)
    """Whether the numbers are lower bounds, because a part of the run was killed and only its recorded
    answers count."""

    def told(self) -> str:
        """Describe the use in words, such as `1,200, 3 retried; rate-limited 41 times, 12 s of pauses`."""
        calls = f"{'at least ' if self.at_least else ''}{self.calls:,}"
        retried = f", {self.retries:,} retried" if self.retries else ""
        retried += f", {self.cached:,} more from the cache" if self.cached else ""
        if not self.refusals:
            return f"{calls}{retried}"
        pauses = f"{self.paused_seconds:.0f} s of pauses"
        return f"{calls}{retried}; rate-limited {self.refusals:,} times, {pauses}"

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
    """A part of a run that is played separately, in its own folder.

    A unit is a rollout, or all rollouts of an example if the rewards compare them. Units are numbered in the
    manifest's order. The shard contains the units whose `number % of` is between `first` and `end - 1`.
    An unfinished shard therefore covers the examples as evenly as an unfinished run.
    """

    first: Count
    end: Count
    of: Annotated[Positive, Field(le=MOST_SHARDS)]

    @model_validator(mode="after")
    def _check_order(self) -> Shard:
        if not self.first < self.end <= self.of:
            raise ValueError(f"a shard cannot range from {self.first} to {self.end} of {self.of}")
        return self

    def __str__(self) -> str:
        last = self.end - 1
        return f"{self.first}/{self.of}" if last == self.first else f"{self.first}-{last}/{self.of}"

    def takes(self, number: int) -> bool:
        """Return whether the unit with this number belongs to the shard."""
        return self.first <= number % self.of < self.end

    def count(self, whole: int) -> int:
        """Return the number of the shard's units in a run of `whole` units."""
        rounds, rest = divmod(whole, self.of)
        return rounds * (self.end - self.first) + max(0, min(rest, self.end) - self.first)


class MixedEnvironment(Record):
    """An environment of a training run that mixes several environments."""

    label: Text
    """Prefix of the environment's metrics."""
    weight: float
    environment: EnvironmentPin
    examples: Count
    """Number of its examples that the run may use."""
    task_set_sha256: Sha256


class RunManifest(Record):
    """The content of `run.json`: everything that defines a run, written before the first rollout."""

    schema_: Literal["wander.run/1"] = Field(default=RUN_SCHEMA, alias="schema")
    run_id: RunId
    """Sortable id of 26 characters, created by the client."""
    kind: RunKind = "evaluation"
    environment: EnvironmentPin
    model: ModelPin
    sampling: SamplingArgs = Field(default_factory=SamplingArgs)
    split: Literal["train", "eval"] = "eval"
    example_ids: list[Text]
    """Ids of the run's examples, in order."""
    rollouts_per_example: Annotated[Positive, Field(le=MOST_ROLLOUTS)]
    strata: list[Integer | None] = Field(default_factory=list)
    """Stratum of each example; empty if the environment does not declare strata."""
    task_set_sha256: Sha256
    choice: ExampleChoice = "first"
    """Choice of the examples from the split."""
    rerun_of: RunId | None = None
    """Id of the run whose manifest this run repeats."""
    seed: Integer = 0
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    platform: Platform
    training: Values | None = None
    """Resolved training configuration; None for other kinds of runs."""
    mixture: list[MixedEnvironment] = Field(default_factory=list)
    """All environments of a training run that mixes several; `environment` and the examples are then those of
    the first environment."""
    reproduction: Reproduction | None = None
    """Exactness of a training run's repetition, with the machine and libraries that it needs."""
    endpoints: EndpointUse | None = None
    """Use of endpoints over all parts of a resumed run; None if the run called no endpoint."""
    spending: Spending | None = None
    """Tokens and cost of a run with a budget or known prices."""
    lines: Annotated[Count, Field(le=MOST_ROLLOUTS)] | None = None
    """Number of lines of an exhaustive run; None until all lines are known."""
    notes: Text = ""
    shard: Shard | None = Field(default=None, exclude_if=lambda shard: shard is None)
    """Part of the run that this folder contains; None if it contains the whole run."""
    players: dict[Text, ModelPin] = Field(default_factory=dict, exclude_if=lambda players: not players)
    """Players that were not played by the run's model, and the model that played each. The kind `script`
    marks a function of the environment's package. Empty if there is a single player or the model played all
    players."""

    @model_validator(mode="after")
    def _check_size(self) -> RunManifest:
        if len(self.example_ids) * self.rollouts_per_example > MOST_ROLLOUTS:
            raise ValueError(f"it plays more than {MOST_ROLLOUTS:,} rollouts")
        return self

    @property
    def scripts(self) -> dict[str, str]:
        """Players that functions of the environment's package played, which a replay runs again."""
        return {player: pin.name for player, pin in self.players.items() if pin.kind == SCRIPT}

    @property
    def stated_players(self) -> list[str]:
        """Players that another model played. Only the submitter states which model that was."""
        return sorted(self.players.keys() - self.scripts.keys())

    @property
    def played_together(self) -> int:
        """Number of rollouts of an example that are played, retried and resumed as a unit."""
        return self.rollouts_per_example if self.environment.info.group_rewards else 1

    @property
    def expected_rollouts(self) -> int:
        """Number of rollouts in a complete run, or in the folder of a complete shard."""
        if self.lines is not None:
            return self.lines
        whole = len(self.example_ids) * self.rollouts_per_example
        if self.shard is None:
            return whole
        return self.shard.count(whole // self.played_together) * self.played_together


class MetricSummary(Record):
    """The mean of a reward function or metric over the scored rollouts."""

    mean: float
    std: float
    count: Count
    low: float | None = None
    """Lower end of the 95% interval of the mean, clustered by example; None if too few examples have a
    value."""
    high: float | None = None
    """Upper end of the same interval."""


class Histogram(Record):
    """Observed rewards in bins of equal width."""

    edges: list[float]
    """Ascending edges of the bins, `len(counts) + 1` numbers."""
    counts: list[Count]


class PassRate(Record):
    """The estimated probability that an example passes in `k` attempts, with 95% intervals.

    Both estimates are unbiased means over the examples with at least `k` scored rollouts.
    """

    k: Count
    examples: Count
    """Number of examples with at least `k` scored rollouts."""
    pass_at_k: float
    """Probability that at least one of `k` rollouts passes."""
    pass_at_k_low: float
    pass_at_k_high: float
    pass_hat_k: float
    """Probability that all `k` rollouts pass (pass^k)."""
    pass_hat_k_low: float
    pass_hat_k_high: float


class RunSummary(Record):
    """Aggregates of a run, always recomputed from its rollouts."""

    rollouts: Count
    """Number of recorded rollouts, failed rollouts included."""
    expected: Count
    failed: Count
    failures: dict[Text, Count] = Field(default_factory=dict)
    """Number of failed rollouts by boundary."""
    examples: Count
    reward_mean: float | None
    """Mean over the examples of the mean reward of each example's scored rollouts; None if no rollout was
    scored."""
    reward_low: float | None
    reward_high: float | None
    """Upper end of the 95% interval of the mean, clustered by example."""
    reward_std: float | None
    metrics: dict[Text, MetricSummary] = Field(default_factory=dict)
    histogram: Histogram | None = None
    stop_reasons: dict[Text, Count] = Field(default_factory=dict)
    truncated: Count = 0
    refused: Count = 0
    """Number of rollouts where the model refused to answer, as its endpoint reports."""
    filtered: Count = 0
    """Number of rollouts where a content filter removed or cut short a turn."""
    turns_mean: float | None = None
    """Mean over the scored rollouts."""
    usage: Usage = Field(default_factory=Usage)
    """Tokens of all rollouts, including failed ones."""
    seconds_mean: float | None = None
    """Mean over the scored rollouts."""
    pass_threshold: float | None = None
    """Smallest reward of a passing rollout: 1 if all rewards are 0 or 1; None for graded rewards."""
    pass_rates: list[PassRate] = Field(default_factory=list)
    """Pass rates for k = 1, 2, 4... up to the number of rollouts per example; empty for one rollout per
    example."""

    @property
    def stated_endings(self) -> int:
        """Number of rollouts that ended by timeout or context overflow, which a replay cannot derive."""
        return sum(self.stop_reasons.get(reason, 0) for reason in STATED_ENDINGS)

    def endings(self, info: EnvironmentInfo) -> dict[str, int]:
        """Return the number of rollouts by stop reason, without the usual reasons of a single turn."""
        usual = ("answered", "max_turns_reached") if info.max_turns == 1 else ()
        return {reason: number for reason, number in self.stop_reasons.items() if reason not in usual}


_SUB_CALLS = TypeAdapter(list[SubCall], config=ConfigDict(defer_build=True))
"""Validator of sub-calls, built when first used, because building takes milliseconds."""


def read_sub_calls(rollout: Rollout) -> list[SubCall]:
    """Return the sub-calls of a stored rollout, ordered by path; raises `RunError` if they are malformed."""
    records = [rollout.info.get(name) for name in ("rlm", AGENT)]
    lists: list[Any] = [record.get("sub_calls", []) for record in records if isinstance(record, dict)]
    calls: Any = next((calls for calls in lists if calls != []), [])
    if calls == []:
        return []
    try:
        return _SUB_CALLS.validate_python(calls)
    except ValidationError as error:
        raise RunError(
            f"the sub-calls of rollout `{rollout.example_id}/{rollout.index}` cannot be read: "
            f"{': '.join(first_fault(error))}"
        ) from error
