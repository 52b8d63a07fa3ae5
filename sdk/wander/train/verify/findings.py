"""What a check of a run's record finds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from wander.types import Record


class RecordDifference(Record):
    """Something in a run's folder that is not what was written there, or not what comes out again."""

    file: str
    """Its path in the run's folder."""
    step: int | None = None
    key: str | None = None
    """Name of the value."""
    problem: str
    """In words."""

    def __str__(self) -> str:
        where = [self.file]
        where += [f"step {self.step}"] * (self.step is not None) + [f"`{self.key}`"] * (self.key is not None)
        return f"{', '.join(where)}: {self.problem}"


class RecordCheck(Record):
    """What became of checking one part of a run's record."""

    part: Literal["metrics", "evaluations", "checkpoints"]
    checked: int = 0
    """Steps of `metrics`, cells of `evaluations`, files of `checkpoints`."""
    played_again: list[int] = Field(default_factory=list)
    """Steps whose evaluations were made again, with the weights of then."""
    differences: list[RecordDifference] = Field(default_factory=list)
    unchecked: list[str] = Field(default_factory=list)
    """What could not be checked, and why."""

    def differ(self, file: str, problem: str, *, step: int | None = None, key: str | None = None) -> None:
        """Add a difference."""
        self.differences.append(RecordDifference(file=file, step=step, key=key, problem=problem))


def show(value: Any) -> str:
    """Return a recorded value so that every digit is seen."""
    return "nothing" if value is None else f"{value}"
