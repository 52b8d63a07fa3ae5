"""Leaderboards as the hub answers them, how owners arrange them, and their form as comma-separated values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from wander.types import Record
from wander.wire.environments import VerificationLevel
from wander.wire.fields import (
    Address,
    Count,
    Integer,
    Line,
    OwnerName,
    ProjectName,
    Release,
    RunId,
    RunName,
    Sha256,
    Text,
    Values,
    Word,
)
from wander.wire.run_record import PassRate

BOARD_COLUMNS = (
    "rank",
    "model",
    "reward",
    "interval",
    "metrics",
    "pass",
    "examples",
    "tokens",
    "cost",
    "level",
    "by",
    "posted",
)
"""What a board may show, in the usual order. `metrics` stands for every metric, `metric:NAME` for one, and
`pass` for the chance that at least one of all rollouts of an example passes."""
REQUIRED_COLUMNS = ("rank", "model", "reward", "interval", "level")
"""What an owner cannot leave out."""
_METRIC = re.compile(r"metric:[^\x00-\x1f\x7f-\x9f]{1,100}")
LEVELS_UP: tuple[VerificationLevel, ...] = ("unverifiable", "complete", "rescored", "replayed")
"""The levels of runs that stand on boards, the lowest first."""
TIERS: tuple[VerificationLevel, ...] = ("replayed", "rescored", "complete", "unverifiable")
"""What the hub's own replays proved, by which a board keeps its rows apart: a row ranks below all rows of the
levels before its own."""


class StratumScore(Record):
    """What the rollouts of one stratum of a run earned; it changes no rank."""

    stratum: Integer
    reward_mean: float | None
    """Of those that did not fail; None where all did."""
    rollouts: Count
    failed: Count


class FoldedRun(Record):
    """A run that a row of a board stands for too, since it shares at least half of its completions."""

    run_id: RunId
    model: Line
    name: RunName | None = None
    reward_mean: float
    level: VerificationLevel
    posted_by: Line
    posted_at: datetime
    url: Address


class LeaderboardRow(Record):
    """One ranked run."""

    rank_low: Count
    rank_high: Count
    """The rank is a range: 1 + the number of other rows that are surely better, to the number of rows less
    those that are surely worse. Surely means that the hub proved more of them (`level`), or as much and
    that the 95 % intervals do not overlap. A row is the first run of a model by an account. Runs that the hub
    could not verify share the ranks below all others."""
    run_id: RunId
    name: RunName | None = None
    """The name that its submitter gave the run, if any."""
    model: Line
    model_kind: Line
    reward_mean: float
    reward_low: float
    reward_high: float
    examples: Count
    rollouts_per_example: Count
    rollouts: Count
    failed: Count
    stated_endings: Count = 0
    """Rollouts that ended for their time or the model's context, as the submitter states: a replay cannot
    derive that."""
    metrics: dict[Text, float] = Field(default_factory=dict)
    metric_intervals: dict[Text, tuple[float, float]] = Field(default_factory=dict)
    """Lower and upper end of the 95 % interval of each metric's mean; none of runs that are too small."""
    tokens_per_rollout: float | None = None
    usd_per_rollout: float | None = None
    """Tokens at prices, both as the submitter stated them; None where no prices were. Tokens and seconds of a
    rollout are the submitter's word too."""
    seconds_per_rollout: float | None = None
    pass_rates: list[PassRate] = Field(default_factory=list)
    """Empty with one rollout an example."""
    checkpoint: Line | None = None
    """`owner/name@revision` of its weights on this hub, by their digest; None if they are not here."""
    checkpoint_stated_by: Line | None = None
    """Who says that the run has these weights; None if the same user pushed them first."""
    version: Release
    level: VerificationLevel
    level_reason: Text = ""
    """Why the run has that level, if there is more to say than the level itself."""
    tokens_counted: bool = False
    """Whether the hub counted the completion tokens, and they agree with what was stated."""
    repeated_by: list[Line] = Field(default_factory=list)
    """Other users whose repetition of the run agrees with it; no rank depends on them."""
    posted_by: Line
    posted_at: datetime
    url: Address
    best: bool = True
    """Whether it is a row of the board: the first run of its model and account, and not folded."""
    people: Count = 1
    """How many users posted it or a run that is folded under it."""
    looks_like: list[Line] = Field(default_factory=list)
    """Other names that the model's looks like: ASCII, or names of models in the same environment."""
    players_stated_by: Line | None = None
    """Who says who the other players were; None without players, and if all are scripts of the package."""
    names: list[Line] = Field(default_factory=list)
    """The model names of these runs, its own first; the first 20."""
    folded: list[FoldedRun] = Field(default_factory=list)
    """Runs with the same answers, for which this row stands: the earliest 20."""
    folded_runs: Count = 0
    """How many there are."""
    folded_into: RunId | None = None
    """The row under which this run is folded."""
    on_top: bool = False
    """Whether the environment's owners chose it to stand for the runs with its answers."""

    stratum: StratumScore | None = Field(default=None, exclude_if=lambda stratum: stratum is None)
    """Of the stratum that was asked for; None of runs whose rollouts are too many to be read for a board."""

    stated: Text = (
        "name model model_kind checkpoint stated_endings tokens_per_rollout usd_per_rollout "
        "seconds_per_rollout"
    )
    """Which of its fields nothing proves: they are as the submitter stated them."""

    def interval(self, metric: str) -> tuple[float, float] | tuple[None, None]:
        """Return the 95 % interval of a metric's mean."""
        return self.metric_intervals.get(metric, (None, None))


class LeaderboardPlace(Record):
    """Where a run stands on its board among the runs with the same answers."""

    run_id: RunId
    on_top: bool
    """Whether the environment's owners chose it to stand for them."""
    folded_into: RunId | None
    """The row that stands for it; None if it is a row itself."""
    folded_runs: Count
    """How many runs it stands for."""


class BoardInfo(Record):
    """What one board compares: a task set and a protocol of one environment version."""

    board: Word
    """Names it among the boards of its version."""
    task_set_sha256: Sha256
    split: Literal["train", "eval"]
    examples: Count
    rollouts_per_example: Count
    arguments: Values = Field(default_factory=dict)
    max_tokens: Count | None = None
    """Upper bound on the tokens of one turn; None where runs set none."""
    players: dict[Text, Line] = Field(default_factory=dict)
    """Who plays beside the models, by player, in an environment with players."""
    title: Text = ""
    pinned: bool = False
    """Whether the owners show it first."""
    runs: Count
    """Complete ones."""
    models: Count = 0
    last_posted_at: datetime


class VersionBoard(Record):
    """The board of another version that is nearest to this one; scores of two versions are not comparable."""

    version: Release
    board: Word
    same_protocol: bool
    """Whether task set and protocol are those of the board that names it."""
    runs: Count
    models: Count
    best_model: Line
    best_reward: float


class HistoryPoint(Record):
    """A leading row, and when it was posted."""

    run_id: RunId
    model: Line
    reward_mean: float
    posted_at: datetime


class ModelElsewhere(Record):
    """A model that has no row on a board, with its best row on another board of the environment."""

    model: Line
    run_id: RunId
    name: RunName | None = None
    """The name that its submitter gave the run, if any."""
    reward_mean: float
    version: Release
    board: BoardInfo
    because: Text
    """Why the two boards cannot be compared."""


class HiddenRunInfo(Record):
    """A run that the environment's owners keep off its board, and why."""

    run_id: RunId
    model: Line
    name: RunName | None = None
    reward_mean: float | None
    posted_by: Line
    posted_at: datetime
    reason: Text
    hidden_by: Line
    hidden_at: datetime
    url: Address


class Leaderboard(Record):
    """Rows that may be compared: one environment version, one task set, one protocol."""

    owner: OwnerName
    name: ProjectName
    version: Release
    board: Word | None = None
    """Names it among the boards of its version; None where there is none."""
    title: Text = ""
    description: Text = ""
    """As its owners wrote them."""
    columns: list[Line] = Field(default_factory=lambda: list(BOARD_COLUMNS))
    """What its owners show, in their order; see `BOARD_COLUMNS`."""
    pinned: bool = False
    refuses_rescored: bool = False
    """Whether its owners keep runs of the level `rescored` off it."""
    unfolded: bool = False
    """Whether runs with the same answers stand on it one by one, as its owners chose."""
    task_set_sha256: Sha256 | None
    split: Literal["train", "eval"] | None = None
    examples: Count
    rollouts_per_example: Count
    arguments: Values = Field(default_factory=dict)
    max_tokens: Count | None = None
    players: dict[Text, Line] = Field(default_factory=dict)
    runs: Count = 0
    """That stand on it, whatever the filters."""
    models: Count = 0
    """Its rows; a model that two accounts posted has two."""
    proved: Count = 0
    """The rows whose rewards the hub derived itself: those of the levels `rescored` and `replayed`."""
    showing: Literal["best", "all"] = "best"
    """The first run of each model and account (`best`), or all runs. Neither this nor a filter changes a
    rank."""
    rows: list[LeaderboardRow]
    next: Address | None = None
    """Cursor of the next page."""
    strata: list[Integer] = Field(default_factory=list, exclude_if=lambda strata: not strata)
    """Those of its examples that may be asked for; none where they are all of one."""
    hidden_incomplete: Count = 0
    """Runs left out because rollouts are missing."""
    hidden: list[HiddenRunInfo] = Field(default_factory=list)
    """What its owners left out, the last ones first."""
    history: list[HistoryPoint] = Field(default_factory=list)
    """Its leading rows, by time."""
    boards: Count = 1
    """How many boards (task set x protocol) this version has; unless asked otherwise this is the pinned one,
    or else that of the environment's own defaults over its whole evaluation split."""
    others: list[BoardInfo] = Field(default_factory=list)
    """The first of the others."""
    elsewhere: list[ModelElsewhere] = Field(default_factory=list)
    """Models that only other boards of the environment have, each once; the first 50."""
    versions: list[VersionBoard] = Field(default_factory=list)
    """Boards of other versions, the newest first."""


class BoardSettings(Record, defer_build=False):
    """How an environment's owners show a board."""

    title: str = Field(default="", max_length=100)
    description: str = Field(default="", max_length=2000)
    columns: list[Line] | None = Field(default=None, max_length=40)
    """In this order; None for the usual ones."""
    pinned: bool = False
    """Show it first of its version's boards."""
    refuses_rescored: bool = False
    """Keep runs of the level `rescored` off it: what tools answered is their submitters' word."""
    unfolded: bool = False
    """Show runs with the same answers one by one. Meant for tasks whose whole answer is a letter or a number,
    where honest models agree."""

    @model_validator(mode="after")
    def _columns_are_known(self) -> Self:
        wanted = self.columns
        if wanted is None:
            return self
        for one in wanted:
            if one not in BOARD_COLUMNS and not _METRIC.fullmatch(one):
                raise ValueError(
                    f"`{one[:40]}` is no column; there are {', '.join(BOARD_COLUMNS)}, metric:NAME"
                )
        if len(set(wanted)) != len(wanted):
            raise ValueError("a column is named twice")
        if missing := [one for one in REQUIRED_COLUMNS if one not in wanted]:
            raise ValueError(f"a board always shows {', '.join(missing)}")
        return self


class HidingReason(Record, defer_build=False):
    """Why a run is kept off its board; everybody can read it."""

    reason: str = Field(min_length=3, max_length=500, pattern=r"\S")


CSV_COLUMNS = {
    "rank_low": "rank_low",
    "rank_high": "rank_high",
    "model": "model",
    "name": "name",
    "reward_mean": "reward_mean",
    "reward_low_95": "reward_low",
    "reward_high_95": "reward_high",
    "examples": "examples",
    "rollouts_per_example": "rollouts_per_example",
    "rollouts": "rollouts",
    "failed_rollouts": "failed",
    "cut_short_rollouts_stated": "stated_endings",
    "tokens_per_rollout": "tokens_per_rollout",
    "usd_per_rollout": "usd_per_rollout",
    "seconds_per_rollout": "seconds_per_rollout",
    "level": "level",
    "posted_by": "posted_by",
    "posted_at_utc": "posted_at",
    "environment_version": "version",
    "run_id": "run_id",
    "url": "url",
    "checkpoint": "checkpoint",
    "stated_by_the_submitter": "stated",
}
"""Of every board, with the fields of a row; `stratum:N_mean`, `_rollouts`, `_failed`, `pass@K` and `pass^K`,
each with `_low_95` and `_high_95`, and `metric:NAME_mean` with the same follow for what its rows have."""
_CHANCES = {
    f"pass{sign}{{k}}{end}": f"pass_{name}_k{part}"
    for sign, name in (("@", "at"), ("^", "hat"))
    for end, part in (("", ""), ("_low_95", "_low"), ("_high_95", "_high"))
}
"""Columns of the tries `k`, with the fields of a rate."""


def csv_table(rows: Iterable[LeaderboardRow]) -> Iterator[list[str | int | float | None]]:
    """Yield a header and one line a row, safe to open in a spreadsheet: no text in it is a formula."""
    known = list(rows)
    rates = sorted({rate.k for row in known for rate in row.pass_rates})
    metrics = list(dict.fromkeys(name for row in known for name in row.metrics))
    passes = [column.format(k=k) for k in rates for column in _CHANCES]
    parts = ("mean", "low_95", "high_95")
    strata = sorted({row.stratum.stratum for row in known if row.stratum is not None})
    stratum = [f"stratum:{one}_{part}" for one in strata for part in ("mean", "rollouts", "failed")]
    metric = [f"metric:{name}_{part}" for name in metrics for part in parts]
    yield [*CSV_COLUMNS, *stratum, *passes, *metric]
    for row in known:
        found = {rate.k: rate for rate in row.pass_rates}
        chances = [getattr(found.get(k), field, None) for k in rates for field in _CHANCES.values()]
        means = [value for name in metrics for value in (row.metrics.get(name), *row.interval(name))]
        own = [row.stratum if row.stratum and row.stratum.stratum == one else None for one in strata]
        scores = [
            value
            for one in own
            for value in ((one.reward_mean, one.rollouts, one.failed) if one else (None, None, None))
        ]
        cells = [_csv_cell(getattr(row, field)) for field in CSV_COLUMNS.values()]
        yield [*cells, *scores, *chances, *means]


def _csv_cell(value: Any) -> str | int | float | None:
    if isinstance(value, datetime):
        return value.isoformat()
    cell: str | int | float | None = harmless(value) if isinstance(value, str) else value
    return cell


def harmless(text: str) -> str:
    """Return text that no spreadsheet takes for a formula: a quote goes before what begins like one."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
