"""What playing runs again came to: the report of a replay, how the hub tells of its own, and what each
verification level says and leaves open.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field

from wander.types import Record
from wander.wire import CheckSummary, EnvironmentPin, Platform, SandboxPin, VerificationLevel
from wander.wire.changes import Body
from wander.wire.fields import Count, Integer, Line, RunId, Sha256, Text, Values

Method = Literal["replay", "rescore"]
"""How a run is derived again: the whole environment with the recorded completions, or the rubric alone on the
stored transcripts, where outside observations enter the rollouts."""
LevelSought = Literal["highest", "rescored", "replayed"]
LEVELS_SOUGHT: tuple[LevelSought, ...] = ("highest", "rescored", "replayed")
"""Which level to verify; the highest is what the environment allows: `replayed` where it is deterministic."""
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
Verdict = Literal["agrees", "differs", "inconclusive"]
"""Whether a run that repeats another one agrees with it (`wander.evals.stats.agreement`)."""
Proof = Literal["proved", "contradicted", "open"]
"""Whether a level was proved of a run; `open`: neither that nor the opposite."""


class LevelFacts(NamedTuple):
    """One level."""

    did: str
    """What the hub did with a run of this level."""
    unproven: str
    """What follows from that for none of its rollouts."""


LEVEL_FACTS: dict[VerificationLevel, LevelFacts] = {
    "claimed": LevelFacts(
        "accepted the upload; rollouts are missing or failed, or came out differently in a replay",
        "anything",
    ),
    "unverifiable": LevelFacts(
        "found all that `complete` requires, but could not replay the run; its page says why",
        "that the rewards follow from the transcripts",
    ),
    "complete": LevelFacts(
        "found every expected rollout, and computed all aggregates from them",
        "that the rewards follow from the transcripts",
    ),
    "rescored": LevelFacts(
        "ran the pinned version's rubric on the stored transcripts: the same rewards",
        "that the environment and its tools gave these answers",
    ),
    "replayed": LevelFacts(
        "ran the whole environment with the recorded completions: "
        "the same messages, metrics and rewards, bit for bit",
        "that the environment is fair: its owner can make it pay for a certain text, or recognize a replay "
        "by the processor, the kernel or the true time",
    ),
}
"""Every level, the lowest first."""

STATED = (
    "which model wrote the completions, with which sampling and tools and on which platform, how the "
    "examples were chosen, what the endpoint refused, filtered or cut short, and the tokens, seconds and "
    "cost that they took"
)
"""What no level proves: the submitter's word."""

STATED_BUT_COUNTED = STATED.replace("the tokens", "the prompt tokens")
"""The same of a run whose completion tokens agree with its texts (`TokenCheck`)."""


class Divergence(Record):
    """One rollout that came out otherwise."""

    example_id: Text
    index: Count
    difference: Text
    """What differs first, with both values."""
    part: Text = ""
    """Which part of the rollout that is: `completion`, `reward`..."""
    message: Integer | None = None
    """Number of the first message that differs, where the part holds messages."""


class ReplayReport(Record):
    """What playing a run again, or scoring it again, came to."""

    run_id: RunId
    method: Method = "replay"
    expected: Count
    """Rollouts that a complete run holds."""
    recorded: Count
    """Rollouts on record."""
    replayed: Count
    """Rollouts that were played, or scored, again and compared."""
    same: Count
    differing: Count
    failed: Count
    """Recorded as failed, so not compared."""
    twice: Count = 0
    """Of those that were replayed: how many were so a second time, in other surroundings."""
    answered: Count = 0
    """Rollouts in which a judge, or another model than the run's, answered from the record."""
    judged: Count = 0
    """Of those: how many had answers of a judge."""
    undecided: Count = 0
    """Rollouts that failed in the replay, each time that they were tried: neither the same nor differing."""
    undecided_reason: Text | None = None
    """The failure of the first one."""
    unfinished: Count = 0
    """Rollouts whose process was lost, or over a limit: another replay may get further."""
    sampled: bool = False
    """True when only a random sample was played again."""
    sample_seed: Integer | None = None
    """What drew the sample, so that anyone can draw it again; None without one."""
    divergences: list[Divergence] = Field(default_factory=list)
    """The first ones, in the order of the record."""
    refused: Text | None = None
    """Why nothing could be compared; None when it was."""
    contradicted: bool = False
    """True when what the manifest says of the environment is not so, its examples included."""
    seconds: float = 0.0

    @classmethod
    def empty(cls, run_id: str, expected: int, **more: Any) -> ReplayReport:
        """Return the report of a replay that has compared nothing."""
        return cls(
            run_id=run_id, expected=expected, recorded=0, replayed=0, same=0, differing=0, failed=0, **more
        )

    @property
    def agrees(self) -> bool:
        """Whether every rollout of the run came out the same."""
        whole = self.recorded == self.expected and not self.sampled and self.refused is None
        return whole and self.same == self.expected

    @property
    def level(self) -> Literal["claimed", "complete", "rescored", "replayed"]:
        """The verification level that this report supports.

        A sample gives no more than `complete`, and neither does a run in which judges or other models
        answered: their answers come from the record.
        """
        if self.recorded < self.expected or self.failed or self.contradicted or self.differing:
            return "claimed"
        if not self.agrees or self.answered:
            return "complete"
        return "rescored" if self.method == "rescore" else "replayed"

    @property
    def taken_as_recorded(self) -> str:
        """The answers that the replay took from the record, in words; empty if there are none."""
        told = []
        if self.judged:
            told.append("the judge's answers are taken as recorded")
        if self.answered > self.judged:
            told.append("the answers of other models are taken as recorded")
        return " and ".join(told)


class Surroundings(Record):
    """What a process sees of its machine. It is drawn for every sandboxed worker, and for every replay."""

    hash_seed: Integer
    """Decides the hashes of text, and so the order of sets."""
    time_zone: Text
    """As POSIX writes it in `TZ`."""
    locale: Text
    host_name: Text | None = None
    """None where it saw the machine's own: outside of a sandbox."""


class VerifiedWith(Record):
    """What a run was played again with."""

    environment: EnvironmentPin
    """With the lock it ran with and the sandbox that confined it."""
    platform: Platform
    surroundings: list[Surroundings] = Field(default_factory=list)
    """Those of the process that played every rollout, and of the one that played some of them once more."""
    hub: Text | None = None
    """Version of the hub that did it; None on anyone else's machine."""


class VerificationInfo(Record):
    """One time that the hub played a run again, or is about to."""

    id: Count
    run_id: RunId
    state: JobState
    sample: Count | None = None
    """How many rollouts are drawn; None means all."""
    sought: LevelSought = "highest"
    """The level that was asked for."""
    gave: VerificationLevel | None = None
    """The level that the run had after it; None until it is done."""
    requested_by: Line | None = None
    """None where the hub asked itself, after a post."""
    created_at: datetime
    finished_at: datetime | None = None
    progress: Values = Field(default_factory=dict)
    """`done`, `differing` and `total` rollouts, once it is under way."""
    error: Text | None = None
    """Why it failed."""
    report: ReplayReport | None = None
    """With the first divergences; `GET /api/v1/verifications/{id}/divergences` has all."""
    made_with: VerifiedWith | None = None


class VerificationList(Record):
    """Every verification of a run, the newest first."""

    data: list[VerificationInfo]


class Agreement(Record):
    """What comparing a run with its repetition came to."""

    run_id: RunId
    rerun_id: RunId
    verdict: Verdict
    before: float
    """Mean reward of the first run over the examples that both scored."""
    after: float
    difference: float
    low: float | None
    high: float | None
    """90 % interval of the difference; None for a single example."""
    p_value: float | None
    """Two-sided, of no difference."""
    margin: float
    """Largest difference that counts as the same, in units of the reward."""
    examples: Count
    """Compared ones."""
    unshared: Count
    """Examples that only one of the runs scored."""
    identical: Count = 0
    """Rollouts that are the same in both runs, bit for bit, if all scored ones are; otherwise 0."""
    needed: Count | None = None
    """Estimate of the examples that would decide. None if the verdict is not `inconclusive`, if one run lacks
    examples, or if no number that can be played would."""
    differing: list[Text]
    """What the manifests do not share, beside the endpoint and what follows from it."""

    @property
    def told(self) -> str:
        """The numbers in words."""
        interval = "" if self.low is None else f", 90% interval [{self.low:+.4f}, {self.high:+.4f}]"
        return (
            f"difference {self.difference:+.4f}{interval}, margin {self.margin:.4f}, "
            f"{self.examples} example{'s' if self.examples > 1 else ''}"
            + (f", all {self.identical} rollouts identical" if self.identical else "")
            + (f", about {self.needed} needed" if self.needed is not None else "")
        )


class Rerun(Record):
    """A run that repeats another one from its manifest."""

    run_id: RunId
    posted_by: Line
    level: VerificationLevel
    agreement: Agreement | None = None
    """As the hub computed it from both runs' rollouts; None if they cannot be compared."""
    note: Text = ""
    """Why it does not count as a repetition; empty if it does."""


class TokenCheck(Record):
    """What the stated completion tokens of a run are against its texts, by its model's tokenizer.

    Only too few can be proved: sampled text may take more tokens than it needs, and templates and hidden
    reasoning take some that no text shows.
    """

    model: Line
    tokenizer_sha256: Sha256
    """Of the `tokenizer.json`, which the hub's operator gave."""
    rollouts: Count
    """How many were counted: all that did not fail, or of a long run some that were drawn at random."""
    stated: Count
    """Completion tokens that these state."""
    counted: Count
    """Tokens of what they say: content, reasoning, and the values in tool calls."""
    least: Count
    """What had to be stated: four fifths of `counted`, less four for each message."""

    @property
    def understated(self) -> bool:
        """Whether that many tokens cannot have written these texts."""
        return self.stated < self.least

    @property
    def told(self) -> str:
        """The numbers in words."""
        judged = f"fewer than the {self.least:,} that are certain" if self.understated else "which agrees"
        return (
            f"{self.rollouts:,} rollouts state {self.stated:,} completion tokens, and by the tokenizer of "
            f"`{self.model}` their texts have {self.counted:,}: {judged}"
        )


class LevelProof(Record):
    """Whether one level was proved of a run."""

    level: VerificationLevel
    proof: Proof
    told: Text
    """What came out, or why nothing did."""
    did: Text
    """What the hub does for this level."""
    unproven: Text
    """What is not proved by it."""


class RunEvidence(Record):
    """What a run's level rests on."""

    run_id: RunId
    level: VerificationLevel
    level_reason: Text
    examined_at: datetime | None = None
    """When the hub read it; None before."""
    rerun_of: RunId | None = None
    reruns: list[Rerun] = Field(default_factory=list)
    """Runs that repeat it, the newest first."""
    repeated_by: list[Line] = Field(default_factory=list)
    """Other users whose repetition agrees with it; no level and no rank depends on them."""
    proofs: list[LevelProof] = Field(default_factory=list)
    """What was proved and what was not, from `complete` to `replayed`; empty for a training run."""
    tokens: TokenCheck | None = None
    """The completion tokens as the hub counted them; None where it has no tokenizer of the model."""
    stated: Text = ""
    """What nothing proves: the submitter's word."""


class CheckedWith(Record):
    """What a version was checked with."""

    wander: Text
    """Version of the SDK whose checks these were."""
    python: Line
    wheel_sha256: Sha256 | None = None
    lock_sha256: Sha256 | None = None
    sandbox: SandboxPin | None = None
    """None when its processes were not confined."""
    hub: Text | None = None
    """Version of the hub that did it; None on anyone else's machine."""


class HubCheck(Record):
    """What a hub's own checks of a version came to, or how far they are."""

    state: JobState
    created_at: datetime
    finished_at: datetime | None = None
    error: Text | None = None
    """Why there is no result."""
    summary: CheckSummary | None = None
    earned: dict[Text, float] = Field(default_factory=dict)
    """Mean reward of each scripted player, by the names of `wander.checks`; empty where none was scored, and
    of checks by a hub that kept none."""
    seconds: float | None = None
    made_with: CheckedWith | None = None


class VerificationRequest(Body):
    """What to play again."""

    sample: int | None = Field(default=None, ge=1, le=1_000_000)
    """Only so many rollouts, drawn at random by the hub; None means all."""
    level: LevelSought = "highest"


class DivergencePage(Record):
    """A page of the rollouts that came out otherwise, by offset."""

    data: list[Divergence]
    total: Count
    """As many as are kept, which are the first ones of a report with more than `differing`."""
    differing: Count
    offset: Count
