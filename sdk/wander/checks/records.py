"""Requests and results of the processes of a check."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from wander.checks.answer_leaks import LeakedAnswer
from wander.checks.judge_trials import JudgedAnswer
from wander.checks.sources import SourceUse
from wander.handle import Split
from wander.types import EnvironmentInfo, Record, Rollout


class Trouble(Record):
    """An exception that was raised."""

    type: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """Return the relevant details of an exception."""
        return cls(type=type(error).__name__, message=str(error), hint=getattr(error, "hint", None))


class RowRead(Record):
    """A row that became an example, or failed to."""

    split: Split
    index: int
    example_id: str | None = None
    digest: str | None = None
    content: str | None = None
    """Digest of the example's prompt, answer and info, without its name, split and seed."""
    prompt: str | None = None
    """Digest of the example's prompt."""
    trouble: Trouble | None = None


class PlayRecord(Record):
    """A rollout of one player."""

    player: str
    split: Split
    position: int
    """Position of the example in its split."""
    rollout: Rollout
    gave_up: bool = False
    """Whether the environment requested more turns after the player stopped."""


class HackPlay(Record):
    """The result of an attempt to get a reward without solving the task (`wander.checks.hacks`)."""

    name: str
    reward: float | None
    failure: str | None = None
    """Reason why the rollout was not scored."""


class ProbeRequest(Record):
    """Request to a process."""

    target: str
    is_path: bool
    arguments: dict[str, Any] = Field(default_factory=dict)
    rows: int
    """Maximum number of rows read of each split."""
    examples: int
    """Number of examples to play."""
    watch: bool
    recorded: list[PlayRecord] | None = None
    """Rollouts played by another process, to be replayed."""
    demonstrations: int = 0
    """Number of training examples that only the gold player plays, instead of the checks."""


class ProbeResult(Record):
    """Result of a process."""

    trouble: Trouble | None = None
    """Error that ended the process early."""
    lost_while: str | None = None
    """Activity during which the process died or ran out of time."""
    import_seconds: float = 0.0
    load_seconds: float = 0.0
    heavy: list[str] = Field(default_factory=list)
    info: EnvironmentInfo | None = None
    has_judge: bool = False
    rows: list[RowRead] = Field(default_factory=list)
    moved: list[RowRead] = Field(default_factory=list)
    """Rows that were different when they were read from last to first."""
    plays: list[PlayRecord] = Field(default_factory=list)
    siblings: list[PlayRecord] = Field(default_factory=list)
    """The recorded rollouts, replayed as other members of their groups."""
    hacks: list[HackPlay] = Field(default_factory=list)
    """Attempts to get a reward without solving the first example, if the environment has a shell."""
    hung: list[str] = Field(default_factory=list)
    """Ids of examples whose rollouts did not end."""
    closing: Trouble | None = None
    """Error raised by the environment's teardown."""
    uses: list[SourceUse] = Field(default_factory=list)
    shares_rows: bool = False
    """Whether the environment has only one dataset, used for both splits."""
    told: LeakedAnswer = Field(default_factory=LeakedAnswer)
    judged: JudgedAnswer | None = None
    """Results with the scripted judges, or None if no judge is used."""
    changed: list[str] = Field(default_factory=list)
    """Changes caused by repeating the same rollouts."""
