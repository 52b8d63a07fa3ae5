"""Results of verifying runs and of checking versions: replay reports, the hub's verifications, the meaning of
each level, and the proof that a policy learns."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field, FiniteFloat

from wander.types import Record, canonical_json
from wander.wire import CheckSummary, EnvironmentPin, Histogram, Platform, SandboxPin, VerificationLevel
from wander.wire.changes import Body
from wander.wire.fields import Count, Integer, Line, RunId, Sha256, Text, Values

Method = Literal["replay", "rescore"]
"""Method of verification. `replay` runs the whole environment with the recorded completions. `rescore` runs
only the rubric on the stored transcripts, for rollouts with observations from outside the environment."""
LevelSought = Literal["highest", "rescored", "replayed"]
LEVELS_SOUGHT: tuple[LevelSought, ...] = ("highest", "rescored", "replayed")
"""Levels that a verification can aim at. `highest` is the highest level that the environment allows, which is
`replayed` if it is deterministic."""
JobState = Literal["queued", "running", "done", "failed", "canceled"]
Verdict = Literal["agrees", "differs", "inconclusive"]
"""Whether a run agrees with the run that it repeats (`wander.evals.stats.agreement`)."""
Proof = Literal["proved", "contradicted", "open"]
"""Whether a level was proved for a run, contradicted, or neither (`open`)."""


class LevelFacts(NamedTuple):
    """The meaning of a verification level, in words."""

    did: str
    """Work that the hub did for a run of this level."""
    unproven: str
    """Claim that this work does not prove."""


LEVEL_FACTS: dict[VerificationLevel, LevelFacts] = {
    "claimed": LevelFacts(
        "accepted the upload; rollouts are missing or failed, or differed in a replay",
        "any result",
    ),
    "unverifiable": LevelFacts(
        "found all rollouts, as for `complete`, but could not replay the run; its page shows why",
        "that the rewards follow from the transcripts",
    ),
    "complete": LevelFacts(
        "found every expected rollout, and computed all aggregates from them",
        "that the rewards follow from the transcripts",
    ),
    "rescored": LevelFacts(
        "ran the pinned version's rubric on the stored transcripts, with the same rewards",
        "that the environment and its tools gave these answers",
    ),
    "replayed": LevelFacts(
        "ran the whole environment with the recorded completions, "
        "with the same messages, metrics and rewards, bit for bit (for commands in a box: the same files "
        "and rewards)",
        "that the environment is fair: its owner can make it reward a certain text, or detect a replay "
        "by the processor, the kernel or the real clock",
    ),
}
"""Facts about every level, lowest level first."""

STATED = (
    "which model wrote the completions, its sampling settings, tools and platform, how the examples were "
    "chosen, what the endpoint refused, filtered or cut short, and the tokens, seconds and cost that the "
    "completions took"
)
"""Claims that no level proves, because they are self-reported by the submitter."""

STATED_BUT_COUNTED = STATED.replace("the tokens", "the prompt tokens")
"""The same for a run whose completion tokens agree with its texts (`TokenCheck`)."""


class Divergence(Record):
    """A rollout that differed in a replay."""

    example_id: Text
    index: Count
    difference: Text
    """First difference, with both values."""
    part: Text = ""
    """Part of the rollout that differs: `completion`, `reward`..."""
    message: Integer | None = None
    """Index of the first message that differs, if the part consists of messages."""
    in_box: bool = Field(default=False, exclude=True)
    """Whether the rollout ran commands in a box, whose output may differ without anybody's fault."""


class ReplayReport(Record):
    """The result of replaying or rescoring a run."""

    run_id: RunId
    method: Method = "replay"
    expected: Count
    """Number of rollouts in a complete run."""
    recorded: Count
    """Number of recorded rollouts."""
    replayed: Count
    """Number of rollouts that were replayed or rescored, and compared."""
    same: Count
    differing: Count
    failed: Count
    """Number of rollouts that are recorded as failed, and so were not compared."""
    twice: Count = 0
    """Number of rollouts that were replayed a second time, under different conditions."""
    answered: Count = 0
    """Number of rollouts in which recorded answers stood in for a judge or for another model than the
    run's."""
    judged: Count = 0
    """Number of those rollouts that had answers of a judge."""
    undecided: Count = 0
    """Number of rollouts that failed in every attempt to replay them, and so neither agree nor differ."""
    undecided_reason: Text | None = None
    """Failure of the first undecided rollout."""
    unfinished: Count = 0
    """Number of rollouts whose process was lost or exceeded a limit. Another replay may finish them."""
    rescored: Count = 0
    """Number of rollouts whose commands left another final state in the replay, so that the recorded state
    was only scored again, with the same rewards."""
    other_output: Count = 0
    """Number of rollouts whose commands printed something else in the replay, but left the same final state
    with the same rewards."""
    sampled: bool = False
    """Whether only a random sample was replayed."""
    sample_seed: Integer | None = None
    """Seed of the sample, so that anyone can draw it again; None if all rollouts were replayed."""
    divergences: list[Divergence] = Field(default_factory=list)
    """First divergences, in the order of the record."""
    refused: Text | None = None
    """Reason why nothing could be compared; None if rollouts were compared."""
    contradicted: bool = False
    """Whether the manifest is wrong about the environment or its examples."""
    seconds: float = 0.0

    @classmethod
    def empty(cls, run_id: str, expected: int, **more: Any) -> ReplayReport:
        """Return the report of a replay that compared no rollouts."""
        return cls(
            run_id=run_id, expected=expected, recorded=0, replayed=0, same=0, differing=0, failed=0, **more
        )

    @property
    def agrees(self) -> bool:
        """Whether all rollouts of the run were replayed and none differed."""
        whole = self.recorded == self.expected and not self.sampled and self.refused is None
        return whole and self.same == self.expected

    @property
    def level(self) -> Literal["claimed", "complete", "rescored", "replayed"]:
        """Verification level that this report supports.

        A sample supports `complete` at most. So does a run in which judges or other models answered, because
        the replay takes their answers from the record.
        """
        if self.recorded < self.expected or self.failed or self.contradicted or self.differing:
            return "claimed"
        if not self.agrees or self.answered:
            return "complete"
        return "rescored" if self.method == "rescore" or self.rescored else "replayed"

    @property
    def taken_as_recorded(self) -> str:
        """Sentence about the answers that the replay took from the record; empty if it took none."""
        sources = []
        if self.judged:
            sources.append("the judge's answers are taken as recorded")
        if self.answered > self.judged:
            sources.append("the answers of other models are taken as recorded")
        return " and ".join(sources)


class Surroundings(Record):
    """The settings of a process that rewards must not depend on, drawn at random for each process."""

    hash_seed: Integer
    """Seed of Python's text hashes, which decide the order of sets."""
    time_zone: Text
    """Time zone in the POSIX format of `TZ`."""
    locale: Text
    host_name: Text | None = None
    """Host name inside the sandbox; None without a sandbox, because the process then sees the machine's
    name."""


class VerifiedWith(Record):
    """The environment and the platform of a replay."""

    environment: EnvironmentPin
    """Environment that was replayed, with its lock and its sandbox."""
    platform: Platform
    surroundings: list[Surroundings] = Field(default_factory=list)
    """Surroundings of the process that replayed all rollouts, and of the process that replayed some of them a
    second time."""
    hub: Text | None = None
    """Version of the hub that replayed the run; None if it was replayed on another machine."""


class VerificationInfo(Record):
    """A verification of a run by the hub, finished or not."""

    id: Count
    run_id: RunId
    state: JobState
    sample: Count | None = None
    """Number of rollouts to replay, drawn at random; None means all."""
    sought: LevelSought = "highest"
    """Level that was requested."""
    gave: VerificationLevel | None = None
    """Level of the run after the verification; None until it is done."""
    requested_by: Line | None = None
    """User who requested the verification; None if the hub started it after the run was posted."""
    created_at: datetime
    finished_at: datetime | None = None
    progress: Values = Field(default_factory=dict)
    """Numbers of rollouts as `done`, `differing` and `total`, once the verification has started."""
    error: Text | None = None
    """Reason why the verification failed."""
    report: ReplayReport | None = None
    """Report with the first divergences; `GET /api/v1/verifications/{id}/divergences` returns all of them."""
    made_with: VerifiedWith | None = None


class VerificationList(Record):
    """All verifications of a run, newest first."""

    data: list[VerificationInfo]


class Agreement(Record):
    """The result of comparing a run with a run that repeats it."""

    run_id: RunId
    rerun_id: RunId
    verdict: Verdict
    before: float
    """Mean reward of the first run over the examples that both scored."""
    after: float
    difference: float
    low: float | None
    high: float | None
    """Upper end of the 90% interval of the difference; both ends are None for a single example."""
    p_value: float | None
    """Two-sided p-value for the hypothesis that there is no difference."""
    margin: float
    """Largest difference that counts as agreement, in units of the reward."""
    examples: Count
    """Number of compared examples."""
    unshared: Count
    """Number of examples that only one of the runs scored."""
    identical: Count = 0
    """Number of scored rollouts if all of them are bit for bit the same in both runs; otherwise 0."""
    needed: Count | None = None
    """Estimated number of examples that would decide the comparison. None if the verdict is not
    `inconclusive`, if a run lacks examples, or if no feasible number would decide."""
    differing: list[Text]
    """Fields in which the manifests differ, except the endpoint and values that follow from it."""

    @property
    def told(self) -> str:
        """Numbers of the comparison, in words."""
        interval = "" if self.low is None else f", 90% interval [{self.low:+.4f}, {self.high:+.4f}]"
        return (
            f"difference {self.difference:+.4f}{interval}, margin {self.margin:.4f}, "
            f"{self.examples} example{'s' if self.examples > 1 else ''}"
            + (f", all {self.identical} rollouts identical" if self.identical else "")
            + (f", about {self.needed} needed" if self.needed is not None else "")
        )


class Rerun(Record):
    """A run that repeats another run from its manifest."""

    run_id: RunId
    posted_by: Line
    level: VerificationLevel
    agreement: Agreement | None = None
    """Agreement that the hub computed from both runs' rollouts; None if they cannot be compared."""
    note: Text = ""
    """Reason why the run does not count as a repetition; empty if it does."""


class TokenCheck(Record):
    """A comparison of a run's stated completion tokens with its texts, using the tokenizer of its model.

    The check only detects numbers that are too small. Sampled text may use more tokens than necessary, and
    templates and hidden reasoning use tokens that no text shows.
    """

    model: Line
    tokenizer_sha256: Sha256
    """SHA-256 of the `tokenizer.json`, which the hub's operator provided."""
    rollouts: Count
    """Number of counted rollouts: all that did not fail, or a random sample of a long run."""
    stated: Count
    """Number of completion tokens that these rollouts state."""
    counted: Count
    """Number of tokens in their texts: content, reasoning, and the values in tool calls."""
    least: Count
    """Smallest plausible number: four fifths of `counted`, minus four for each message."""

    @property
    def understated(self) -> bool:
        """Whether the stated number of tokens is too small for these texts."""
        return self.stated < self.least

    @property
    def told(self) -> str:
        """Numbers of the check, in words."""
        verdict = f"fewer than the minimum of {self.least:,}" if self.understated else "which agrees"
        return (
            f"{self.rollouts:,} rollouts state {self.stated:,} completion tokens, and their texts have "
            f"{self.counted:,} by the tokenizer of `{self.model}`: {verdict}"
        )


class LevelProof(Record):
    """Whether a level was proved for a run."""

    level: VerificationLevel
    proof: Proof
    told: Text
    """Result, or the reason for a missing result."""
    did: Text
    """Work that the hub does for this level."""
    unproven: Text
    """Claim that this work does not prove."""


class RunEvidence(Record):
    """The evidence for a run's verification level."""

    run_id: RunId
    level: VerificationLevel
    level_reason: Text
    examined_at: datetime | None = None
    """Time when the hub examined the run; None if it has not done so yet."""
    rerun_of: RunId | None = None
    reruns: list[Rerun] = Field(default_factory=list)
    """Runs that repeat this run, newest first."""
    repeated_by: list[Line] = Field(default_factory=list)
    """Other users whose repetition agrees with the run. They affect neither level nor rank."""
    proofs: list[LevelProof] = Field(default_factory=list)
    """Proofs of the levels from `complete` to `replayed`; empty for a training run."""
    tokens: TokenCheck | None = None
    """Check of the completion tokens; None if the hub has no tokenizer for the model."""
    stated: Text = ""
    """Claims that nothing proves, because only the submitter states them."""


class CheckedWith(Record):
    """The software that checked a version."""

    wander: Text
    """Version of the SDK that ran the checks."""
    python: Line
    wheel_sha256: Sha256 | None = None
    lock_sha256: Sha256 | None = None
    sandbox: SandboxPin | None = None
    """Sandbox of the checks; None if their processes were not confined."""
    hub: Text | None = None
    """Version of the hub that ran the checks; None if they ran on another machine."""


class HubCheck(Record):
    """The hub's own checks of a version, finished or not."""

    state: JobState
    created_at: datetime
    finished_at: datetime | None = None
    error: Text | None = None
    """Reason for a missing result."""
    summary: CheckSummary | None = None
    earned: dict[Text, float] = Field(default_factory=dict)
    """Mean reward of each scripted player, by its name in `wander.checks`; empty if no player was scored."""
    gap: FiniteFloat | None = None
    """Mean reward of correct answers, minus that of the best scripted player that does not know them. None if
    one of the two was not played."""
    seconds: float | None = None
    made_with: CheckedWith | None = None


RECIPE = 1
"""Version of the recipe. Reports of different versions cannot be compared."""

Demonstrations = Literal["expert", "random"]
"""Player whose transcripts the policy imitates first: the environment's own `gold`, or random replies."""


class LearningPoint(Record):
    """The reward on held-out examples after a number of GRPO steps."""

    step: Count
    reward: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    """Bounds of the 95% interval; None if there are too few examples."""


class LearningReport(Record):
    """The result of the recipe on one environment."""

    schema_: Literal["wander.learning/1"] = Field(default="wander.learning/1", alias="schema")
    recipe: Count = RECIPE
    environment: Line
    arguments: Values = Field(default_factory=dict)
    shown: bool = False
    """Whether the interval of the reward after GRPO lies above the interval before it."""
    reason: Text = ""
    """Reason why the curve does not show learning; empty if it does."""
    demonstrations: Demonstrations | None = None
    demonstrated: FiniteFloat | None = None
    """Mean reward of the transcripts that the policy imitates."""
    untrained: FiniteFloat | None = None
    """Mean reward of the policy before it imitates anything, on training examples."""
    imitation_steps: Count = 0
    parameters: Count = 0
    rollouts: Count = 0
    """Number of rollouts that GRPO learned from."""
    examples: Count = 0
    """Number of held-out examples at each point of the curve."""
    held_out: bool = True
    """Whether the examples of the curve come from the eval split. Without such a split, they are training
    examples."""
    curve: list[LearningPoint] = Field(default_factory=list)
    weights_sha256: Sha256 | None = None
    """Digest of the final weights."""
    cpu_seconds: FiniteFloat = 0.0
    """Processor time of the recipe and the environment together."""
    platform: Line = ""
    """Operating system, architecture, maker and instructions of the processor. The bits are the same on every
    machine of the platform."""
    versions: dict[Line, Line] = Field(default_factory=dict)
    """Versions of Python and of the libraries that compute."""

    @property
    def digest(self) -> str:
        """SHA-256 of the results, which is the same wherever the same software runs on the same platform."""
        other = {"cpu_seconds", "platform", "versions", "environment", "reason"}
        measured = self.model_dump(mode="json", by_alias=True, exclude=other)
        return hashlib.sha256(canonical_json(measured).encode()).hexdigest()

    @property
    def steps(self) -> int:
        """Number of GRPO steps."""
        return self.curve[-1].step if self.curve else 0

    def describe(self) -> str:
        """Return the result in words, such as `learnable: 0.31 to 0.58 in 40 steps`."""
        if not self.shown:
            return f"learning not shown: {self.reason}" if self.reason else "learning not shown"
        return f"learnable: {self.curve[0].reward:.2f} to {self.curve[-1].reward:.2f} in {self.steps} steps"


class HubLearning(Record):
    """The hub's own proof of learning for a version, finished or not."""

    state: JobState
    created_at: datetime
    finished_at: datetime | None = None
    error: Text | None = None
    """Reason for a missing report."""
    report: LearningReport | None = None
    digest: Sha256 | None = None
    """Digest of the report's results."""


class RolloutReward(Record):
    """The address of a rollout, and its reward."""

    run_id: RunId
    number: Count
    reward: FiniteFloat


class ExampleDifficulty(Record):
    """The scored rollouts of an example in several runs."""

    example_id: Text
    rollouts: Count
    solve_rate: FiniteFloat
    """Share of the rollouts that earned the highest reward."""
    reward_mean: FiniteFloat
    lowest: RolloutReward
    """The rollout with the lowest reward, the newest if several are equal."""
    highest: RolloutReward
    """The rollout with the highest reward, the newest if several are equal."""


class Difficulty(Record):
    """Difficulty of the examples of a version, in the evaluations that the reader may see.

    The runs have all their rollouts, the same split and the same arguments. At most 100 runs with 100,000
    rollouts are read, newest first.
    """

    split: Line = ""
    """Split of the examples; empty without a run."""
    arguments: Values = Field(default_factory=dict)
    """Arguments that differ from the environment's defaults."""
    runs: Count = 0
    models: Count = 0
    rollouts: Count = 0
    """Number of scored rollouts."""
    examples: Count = 0
    highest_reward: FiniteFloat = 1.0
    """Highest reward of the environment, which a rollout must earn to solve its example."""
    solve_rate: FiniteFloat | None = None
    """Mean solve rate of the examples."""
    histogram: Histogram | None = None
    """Number of examples by solve rate."""
    hardest: list[ExampleDifficulty] = Field(default_factory=list)
    """The examples with the lowest solve rates. Examples with equal rates are ordered by mean reward."""
    easiest: list[ExampleDifficulty] = Field(default_factory=list)
    """Other examples with the highest solve rates."""


class VerificationRequest(Body):
    """Request to verify a run."""

    sample: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of rollouts to replay, drawn at random by the hub; None means all."""
    level: LevelSought = "highest"


class DivergencePage(Record):
    """A page of the divergences of a replay, by offset."""

    data: list[Divergence]
    total: Count
    """Number of stored divergences. The hub stores only the first ones if `differing` is larger."""
    differing: Count
    offset: Count
