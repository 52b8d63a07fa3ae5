"""Leaderboards: the hub's answers, the settings that owners choose, and export as comma-separated values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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

_METRIC = re.compile(r"metric:[^\x00-\x1f\x7f-\x9f]{1,100}")
LEVELS_UP: tuple[VerificationLevel, ...] = ("unverifiable", "complete", "rescored", "replayed")
"""Levels of the runs that a board ranks, lowest level first."""
TIERS: tuple[VerificationLevel, ...] = ("replayed", "rescored", "complete", "unverifiable")
"""Levels in the order of their rank on a board. A row ranks below all rows of earlier levels in this
list."""


@dataclass(frozen=True)
class BoardColumn:
    """A column that a leaderboard can show."""

    title: str
    """Heading; `{k}` is the largest number of attempts in the rows' pass rates."""
    fields: Mapping[str, str]
    """Fields of a row that fill it, with their names in exports; empty if the export splits the field."""
    text: Callable[[Any], str | int]
    """The cell of a `LeaderboardRow` as text."""
    hint: str = ""
    """Explanation of the heading."""
    term: str = ""
    """Entry of the glossary that explains the column."""
    usual: bool = True
    """Whether a board shows the column if its owners chose no columns."""
    required: bool = False
    """Whether owners cannot remove the column."""
    stated: bool = False
    """Whether only the submitter states the values."""
    ascending: bool = False
    """Whether a board that is sorted by the column shows the smallest value first."""


def number_text(value: float | None, digits: str = ".4f") -> str:
    """Return a number as text, or an empty text for None."""
    return "" if value is None else format(value, digits)


def pass_text(rates: list[PassRate], k: int | None = None) -> str:
    """Return pass@k and pass^k, by default for the largest k, or an empty text."""
    k = k or max((rate.k for rate in rates), default=0)
    return "".join(f"{rate.pass_at_k:.2f} / {rate.pass_hat_k:.2f}" for rate in rates if rate.k == k)


BOARD_COLUMNS = {
    "rank": BoardColumn(
        "Rank",
        {"rank_low": "rank_low", "rank_high": "rank_high"},
        lambda row: "-".join(map(str, dict.fromkeys((row.rank_low, row.rank_high)))),
        hint="the best and the worst rank that the intervals allow: rows that are clearly better come "
        "before, rows that are clearly worse come after",
        term="rank",
        required=True,
    ),
    "model": BoardColumn(
        "Model",
        {"model": "model", "name": "name"},
        lambda row: row.model,
        hint="self-reported by the submitter",
        term="stated",
        required=True,
        stated=True,
    ),
    "reward": BoardColumn(
        "Mean reward",
        {"reward_mean": "reward_mean"},
        lambda row: number_text(row.reward_mean),
        term="mean",
        required=True,
    ),
    "interval": BoardColumn(
        "95% interval",
        {"reward_low": "reward_low_95", "reward_high": "reward_high_95"},
        lambda row: f"{row.reward_low:.4f} to {row.reward_high:.4f}",
        term="interval",
        required=True,
    ),
    "level": BoardColumn(
        "Level",
        {"level": "level"},
        lambda row: row.level,
        hint="what the hub proved; select a level to see what it means",
        term="level",
        required=True,
    ),
    "by": BoardColumn("By", {"posted_by": "posted_by"}, lambda row: row.posted_by),
    "posted": BoardColumn("Posted", {"posted_at": "posted_at_utc"}, lambda row: f"{row.posted_at:%Y-%m-%d}"),
    "pass": BoardColumn(
        "pass@{k} / ^{k}",
        {"pass_rates": ""},
        lambda row: pass_text(row.pass_rates),
        hint="chance that at least one of {k} rollouts passes / that all {k} pass",
        term="pass",
    ),
    "tokens": BoardColumn(
        "Tokens",
        {"tokens_per_rollout": "tokens_per_rollout"},
        lambda row: number_text(row.tokens_per_rollout, ".0f"),
        hint="prompt and completion tokens per rollout",
        term="stated",
        stated=True,
        ascending=True,
    ),
    "cost": BoardColumn(
        "USD",
        {"usd_per_rollout": "usd_per_rollout"},
        lambda row: number_text(row.usd_per_rollout, ".3g"),
        hint="per rollout, from the tokens and prices that the submitter reported",
        term="stated",
        stated=True,
        ascending=True,
    ),
    "examples": BoardColumn(
        "Examples",
        {"examples": "examples", "rollouts_per_example": "rollouts_per_example"},
        lambda row: row.examples,
        usual=False,
    ),
    "metrics": BoardColumn(
        "Metrics", {"metrics": ""}, lambda row: ", ".join(row.metrics), term="metric", usual=False
    ),
}
"""Columns by name, in the default order. `metrics` means every metric, and `metric:NAME` a single metric."""
USUAL_COLUMNS = [name for name, column in BOARD_COLUMNS.items() if column.usual]
REQUIRED_COLUMNS = [name for name, column in BOARD_COLUMNS.items() if column.required]


class StratumScore(Record):
    """The score of a run on a stratum of the examples. It does not affect ranks."""

    stratum: Integer
    reward_mean: float | None
    """Mean reward of the rollouts that did not fail; None if all failed."""
    rollouts: Count
    failed: Count


class FoldedRun(Record):
    """A run without its own row, because it shares at least half of its completions with a row's run."""

    run_id: RunId
    model: Line
    name: RunName | None = None
    reward_mean: float
    level: VerificationLevel
    posted_by: Line
    posted_at: datetime
    url: Address


class LeaderboardRow(Record):
    """A ranked run."""

    rank_low: Count
    rank_high: Count
    """Upper end of the range of ranks. `rank_low` is 1 plus the number of rows that are certainly better, and
    `rank_high` is the number of rows minus the number of rows that are certainly worse. A row is certainly
    better than another row if its `level` is higher, or if the levels are equal and the 95% intervals do not
    overlap. Each row is the first run of a model by an account. Runs that the hub could not verify share the
    last ranks."""
    run_id: RunId
    name: RunName | None = None
    """Name that the submitter gave the run, if any."""
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
    """Number of rollouts that ended by timeout or context overflow. Only the submitter states it, because a
    replay cannot derive it."""
    metrics: dict[Text, float] = Field(default_factory=dict)
    metric_intervals: dict[Text, tuple[float, float]] = Field(default_factory=dict)
    """Lower and upper end of the 95% interval of each metric's mean; empty for runs with too few
    examples."""
    tokens_per_rollout: float | None = None
    usd_per_rollout: float | None = None
    """Cost of a rollout by the stated tokens and prices; None without prices. Tokens, prices and seconds are
    stated by the submitter."""
    seconds_per_rollout: float | None = None
    pass_rates: list[PassRate] = Field(default_factory=list)
    """Pass rates; empty if the run has one rollout per example."""
    checkpoint: Line | None = None
    """`owner/name@revision` of the model on this hub that has the run's weights; None if there is no such
    model."""
    checkpoint_stated_by: Line | None = None
    """User who states that the run has these weights; None if the same user first pushed them."""
    version: Release
    level: VerificationLevel
    level_reason: Text = ""
    """Reason for the level, if the level itself does not explain it."""
    tokens_counted: bool = False
    """Whether the hub counted the completion tokens and the count agrees with the stated number."""
    repeated_by: list[Line] = Field(default_factory=list)
    """Other users whose repetition agrees with the run. They do not affect its rank."""
    posted_by: Line
    posted_at: datetime
    url: Address
    best: bool = True
    """Whether the run is a ranked row: the first run of its model and account, and not folded."""
    people: Count = 1
    """Number of users who posted the run or a run that is folded into it."""
    looks_like: list[Line] = Field(default_factory=list)
    """Other names that are easily confused with the model's name: its spelling in ASCII, and names of models
    in the same environment."""
    players_stated_by: Line | None = None
    """User who states who the other players were; None if there are no other players or all are scripts of
    the package."""
    names: list[Line] = Field(default_factory=list)
    """Model names of this run and its folded runs, starting with its own; at most 20."""
    folded: list[FoldedRun] = Field(default_factory=list)
    """Runs that are folded into this row because they have the same answers; the earliest 20."""
    folded_runs: Count = 0
    """Number of folded runs."""
    folded_into: RunId | None = None
    """If this run is folded, the run whose row includes it."""

    stratum: StratumScore | None = Field(default=None, exclude_if=lambda stratum: stratum is None)
    """Score on the requested stratum; None if the run has too many rollouts to be read for a board."""

    stated: Text = " ".join(
        [field for column in BOARD_COLUMNS.values() if column.stated for field in column.fields]
        + ["model_kind", "checkpoint", "stated_endings", "seconds_per_rollout"]
    )
    """Names of the row's fields that nothing proves, because only the submitter states them."""

    def interval(self, metric: str) -> tuple[float, float] | tuple[None, None]:
        """Return the 95% interval of a metric's mean, or `(None, None)` if it has no interval."""
        return self.metric_intervals.get(metric, (None, None))


class BoardInfo(Record):
    """A board: a task set and a protocol of an environment version, for which runs are comparable."""

    board: Word
    """Name that identifies the board within its version."""
    task_set_sha256: Sha256
    split: Literal["train", "eval"]
    examples: Count
    rollouts_per_example: Count
    arguments: Values = Field(default_factory=dict)
    max_tokens: Count | None = None
    """Maximum number of tokens in a turn; None if the runs set no maximum."""
    players: dict[Text, Line] = Field(default_factory=dict)
    """Other players and who plays them, in an environment with several players."""
    title: Text = ""
    pinned: bool = False
    """Whether the owners chose to show this board first."""
    runs: Count
    """Number of complete runs."""
    models: Count = 0
    last_posted_at: datetime


class VersionBoard(Record):
    """The most similar board of another version. Scores of different versions are not comparable."""

    version: Release
    board: Word
    same_protocol: bool
    """Whether it has the same task set and protocol as the board whose answer contains it."""
    runs: Count
    models: Count
    best_model: Line
    best_reward: float


class ModelElsewhere(Record):
    """A model that has no row on a board, with its best row on another board of the environment."""

    model: Line
    run_id: RunId
    name: RunName | None = None
    """Name that the submitter gave the run, if any."""
    reward_mean: float
    version: Release
    board: BoardInfo
    because: Text
    """Reason why the two boards are not comparable."""


class HiddenRunInfo(Record):
    """A run that the environment's owners hid from its board, with their reason."""

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
    """Rows that can be compared: runs of an environment version with the same task set and protocol."""

    owner: OwnerName
    name: ProjectName
    version: Release
    board: Word | None = None
    """Name that identifies the board within its version; None without a board."""
    title: Text = ""
    description: Text = ""
    """Description written by the owners."""
    columns: list[Line] | None = None
    """Columns in the order that the owners chose; None means the default columns."""
    pinned: bool = False
    refuses_rescored: bool = False
    """Whether the owners exclude runs of the level `rescored`."""
    unfolded: bool = False
    """Whether the owners chose to show runs with the same answers as separate rows."""
    task_set_sha256: Sha256 | None
    split: Literal["train", "eval"] | None = None
    examples: Count
    rollouts_per_example: Count
    arguments: Values = Field(default_factory=dict)
    max_tokens: Count | None = None
    players: dict[Text, Line] = Field(default_factory=dict)
    runs: Count = 0
    """Number of ranked runs, regardless of filters."""
    models: Count = 0
    """Number of rows; a model that two accounts posted has two rows."""
    proved: Count = 0
    """Number of rows whose rewards the hub computed itself: those of the levels `rescored` and `replayed`."""
    showing: Literal["best", "all"] = "best"
    """Runs that the rows show: the first run of each model and account (`best`), or every run (`all`). Ranks
    depend neither on this choice nor on filters."""
    rows: list[LeaderboardRow]
    next: Address | None = None
    """Cursor of the next page."""
    strata: list[Integer] = Field(default_factory=list, exclude_if=lambda strata: not strata)
    """Strata that the board can be filtered by; empty if all examples are in the same stratum."""
    hidden_incomplete: Count = 0
    """Number of runs that are left out because rollouts are missing."""
    hidden: list[HiddenRunInfo] = Field(default_factory=list)
    """Runs that the owners hid, most recently hidden first."""
    boards: Count = 1
    """Number of boards (task set x protocol) of this version. By default the hub returns the pinned board, or
    the board for the environment's default arguments and whole evaluation split if no board is pinned."""
    others: list[BoardInfo] = Field(default_factory=list)
    """First few of the version's other boards."""
    elsewhere: list[ModelElsewhere] = Field(default_factory=list)
    """Models that are only on other boards of the environment, each listed once; at most 50."""
    versions: list[VersionBoard] = Field(default_factory=list)
    """Boards of other versions, newest version first."""


class BoardSettings(Record, defer_build=False):
    """The settings of a board that an environment's owners choose."""

    title: str = Field(default="", max_length=100)
    description: str = Field(default="", max_length=2000)
    columns: list[Line] | None = Field(default=None, max_length=40)
    """Columns in the order of display; None means the default columns."""
    pinned: bool = False
    """Whether the board is shown before the version's other boards."""
    refuses_rescored: bool = False
    """Whether to exclude runs of the level `rescored`, whose tool answers only their submitters state."""
    unfolded: bool = False
    """Whether to show runs with the same answers as separate rows. Use it for tasks whose whole answer is a
    letter or a number, because honest models then often give the same answers."""

    @model_validator(mode="after")
    def _columns_are_known(self) -> Self:
        wanted = self.columns
        if wanted is None:
            return self
        for column in wanted:
            if column not in BOARD_COLUMNS and not _METRIC.fullmatch(column):
                raise ValueError(
                    f"`{column[:40]}` is not a column; choose from {', '.join(BOARD_COLUMNS)}, metric:NAME"
                )
        if len(set(wanted)) != len(wanted):
            raise ValueError("a column is named twice")
        if missing := [column for column in REQUIRED_COLUMNS if column not in wanted]:
            raise ValueError(f"a board always shows {', '.join(missing)}")
        return self


class HidingReason(Record, defer_build=False):
    """The reason for hiding a run from its board, which everyone can read."""

    reason: str = Field(min_length=3, max_length=500, pattern=r"\S")


def filled_columns(board: Leaderboard, columns: Iterable[str] | None = None) -> list[str]:
    """Return `columns`, or else those of the board's owners or the default, without empty columns.

    A chosen `metric:NAME` always stays.
    """
    chosen = columns or board.columns or USUAL_COLUMNS
    return [
        name
        for name in chosen
        if name not in BOARD_COLUMNS
        or any(
            LeaderboardRow.model_fields[field].is_required()
            or any(getattr(row, field) not in (None, [], {}) for row in board.rows)
            for field in BOARD_COLUMNS[name].fields
        )
    ]


def most_attempts(rows: Iterable[LeaderboardRow]) -> int | None:
    """Return the largest k for which a row has pass@k, or None if no row has pass rates."""
    return max((rate.k for row in rows for rate in row.pass_rates), default=None)


CSV_COLUMNS = {
    **{csv: name for column in BOARD_COLUMNS.values() for name, csv in column.fields.items() if csv},
    "rollouts": "rollouts",
    "failed_rollouts": "failed",
    "cut_short_rollouts_stated": "stated_endings",
    "seconds_per_rollout": "seconds_per_rollout",
    "environment_version": "version",
    "run_id": "run_id",
    "url": "url",
    "checkpoint": "checkpoint",
    "stated_by_the_submitter": "stated",
}
"""Columns of every exported board, with the field of a row that fills each column. They are followed by
columns for the strata, pass rates and metrics of the rows: `stratum:N_mean`, `_rollouts` and `_failed`, then
`pass@K` and `pass^K`, then `metric:NAME_mean`. Pass rates and metrics also have `_low_95` and `_high_95`."""
_CHANCES = {
    f"pass{sign}{{k}}{end}": f"pass_{name}_k{part}"
    for sign, name in (("@", "at"), ("^", "hat"))
    for end, part in (("", ""), ("_low_95", "_low"), ("_high_95", "_high"))
}
"""Columns for `k` attempts, with the field of a `PassRate` that fills each column."""


def csv_table(rows: Iterable[LeaderboardRow]) -> Iterator[list[str | int | float | None]]:
    """Yield a header and a line for each row. No text in them is a formula, so spreadsheets can open them."""
    all_rows = list(rows)
    attempts = sorted({rate.k for row in all_rows for rate in row.pass_rates})
    metrics = list(dict.fromkeys(name for row in all_rows for name in row.metrics))
    passes = [column.format(k=k) for k in attempts for column in _CHANCES]
    parts = ("mean", "low_95", "high_95")
    strata = sorted({row.stratum.stratum for row in all_rows if row.stratum is not None})
    stratum = [f"stratum:{number}_{part}" for number in strata for part in ("mean", "rollouts", "failed")]
    metric = [f"metric:{name}_{part}" for name in metrics for part in parts]
    yield [*CSV_COLUMNS, *stratum, *passes, *metric]
    for row in all_rows:
        rates = {rate.k: rate for rate in row.pass_rates}
        chances = [getattr(rates.get(k), field, None) for k in attempts for field in _CHANCES.values()]
        means = [value for name in metrics for value in (row.metrics.get(name), *row.interval(name))]
        by_stratum = [
            row.stratum if row.stratum and row.stratum.stratum == number else None for number in strata
        ]
        scores = [
            value
            for score in by_stratum
            for value in ((score.reward_mean, score.rollouts, score.failed) if score else (None, None, None))
        ]
        cells = [_csv_cell(getattr(row, field)) for field in CSV_COLUMNS.values()]
        yield [*cells, *scores, *chances, *means]


def _csv_cell(value: Any) -> str | int | float | None:
    if isinstance(value, datetime):
        return value.isoformat()
    cell: str | int | float | None = harmless(value) if isinstance(value, str) else value
    return cell


def harmless(text: str) -> str:
    """Return the text with a quote in front if a spreadsheet would interpret it as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
