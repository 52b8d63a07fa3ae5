"""How a training run ended, and which weights were its best: `outcome.json` and `best.json` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from wander.evals.store import jsonl
from wander.train.records.checkpoints import BEST_MODEL, forget_model
from wander.types import Record

OUTCOME = "outcome.json"
BEST = "best.json"


StopKind = Literal["collapse", "entropy", "drop", "gradient", "target"]


class Stopped(Record):
    """Why a run ended before its last step."""

    kind: StopKind
    step: int
    reason: str
    """In words, with the numbers."""

    @property
    def collapsed(self) -> bool:
        """True when it ended because learning failed, not because it succeeded."""
        return self.kind != "target"


class BestCheckpoint(Record):
    """Which weights lie in `best`, and by what they are the best: `best.json`."""

    metric: str
    mode: Literal["max", "min"]
    value: float
    step: int
    """The evaluations of this step tell more of it."""
    weights_sha256: str | None = None

    def is_beaten_by(self, value: float) -> bool:
        """Tell whether a value is strictly better: of equal ones the first stays."""
        return value > self.value if self.mode == "max" else value < self.value


class Outcome(Record):
    """What a training run came to."""

    steps: int
    finished: bool
    """False when it was interrupted and can be resumed."""
    stopped: Stopped | None = None
    """None when it played all its steps, or was interrupted."""
    best: BestCheckpoint | None = None
    """None when it kept none."""


def read_outcome(folder: Path) -> Outcome | None:
    """Return how a run ended; None while it plays, and of runs that were killed."""
    return jsonl.read_record(folder / OUTCOME, Outcome)


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Say how a run ended."""
    jsonl.write_record(folder / OUTCOME, outcome)


def read_best(folder: Path) -> BestCheckpoint | None:
    """Return which weights a run kept as its best, if it did."""
    return jsonl.read_record(folder / BEST, BestCheckpoint)


def write_best(folder: Path, best: BestCheckpoint) -> None:
    """Say which weights lie in `best`."""
    jsonl.write_record(folder / BEST, best)


def forget_best(folder: Path) -> None:
    """Remove the weights in `best` and what tells of them, where a run kept some."""
    if (folder / BEST).is_file():
        forget_model(folder, BEST_MODEL)
        (folder / BEST).unlink()
