"""What the processes of a check are asked for and what they tell."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from wander.checks.answer_leaks import ToldAnswer
from wander.checks.judge_trials import JudgedAnswer
from wander.checks.sources import SourceUse
from wander.handle import Split
from wander.types import EnvironmentInfo, Record, Rollout


class Trouble(Record):
    """Something that was raised."""

    type: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """Return what is worth telling about an exception."""
        return cls(type=type(error).__name__, message=str(error), hint=getattr(error, "hint", None))


class RowRead(Record):
    """One row that became an example, or did not."""

    split: Split
    index: int
    example_id: str | None = None
    digest: str | None = None
    content: str | None = None
    """Digest of what the example asks and of its answer, whatever its name, split and seed."""
    prompt: str | None = None
    """Digest of what the example asks alone."""
    trouble: Trouble | None = None


class PlayRecord(Record):
    """One rollout of a player."""

    player: str
    split: Split
    position: int
    """The example's position in its split."""
    rollout: Rollout
    gave_up: bool = False
    """True when the environment still wanted turns when the player stopped."""


class ProbeRequest(Record):
    """What a process is to do."""

    target: str
    is_path: bool
    arguments: dict[str, Any] = Field(default_factory=dict)
    rows: int
    """Most rows of each split that are read."""
    examples: int
    """Examples that are played."""
    watch: bool
    recorded: list[PlayRecord] | None = None
    """What another process played, to be played again."""


class ProbeResult(Record):
    """What happened in a process."""

    trouble: Trouble | None = None
    """What ended the process early."""
    lost_while: str | None = None
    """What the process was doing when it died or ran out of time."""
    import_seconds: float = 0.0
    load_seconds: float = 0.0
    heavy: list[str] = Field(default_factory=list)
    info: EnvironmentInfo | None = None
    has_judge: bool = False
    rows: list[RowRead] = Field(default_factory=list)
    moved: list[RowRead] = Field(default_factory=list)
    """Rows that were another example when they were read from the last to the first."""
    plays: list[PlayRecord] = Field(default_factory=list)
    siblings: list[PlayRecord] = Field(default_factory=list)
    """The recorded rollouts, played as other members of their groups."""
    hung: list[str] = Field(default_factory=list)
    """Ids of the examples whose rollouts did not end."""
    closing: Trouble | None = None
    """What the environment's teardown raised."""
    uses: list[SourceUse] = Field(default_factory=list)
    shares_rows: bool = False
    """True when the environment gave one dataset, which stands for both splits."""
    told: ToldAnswer = Field(default_factory=ToldAnswer)
    judged: JudgedAnswer | None = None
    """None where no judge is asked."""
    changed: list[str] = Field(default_factory=list)
    """What playing the same rollouts once more left changed."""
