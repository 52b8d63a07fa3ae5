"""Tables of boards, their entries, and runs that owners hid."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import VerificationLevel
from wander.wire.boards import TIERS

from wander_hub.accounts.models import User
from wander_hub.database import Base
from wander_hub.environments.models import Version
from wander_hub.leaderboards.bounds import BoardPlace

PROVEN = ("rescored", "replayed")
"""Levels of runs that the hub itself replayed or rescored."""


class Board(Base):
    """A leaderboard: comparable runs of one version, with the same task set and protocol.

    The owners choose how it is presented."""

    __tablename__ = "boards"
    __table_args__ = (UniqueConstraint("version_id", "task_set_sha256", "protocol_sha256"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"))
    task_set_sha256: Mapped[str] = mapped_column(String(64))
    protocol_sha256: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(8))
    """Short name that is unique among the boards of the version."""
    split: Mapped[str] = mapped_column(String(8))
    examples: Mapped[int]
    rollouts_per_example: Mapped[int]
    arguments: Mapped[dict[str, Any]] = mapped_column(JSON)
    max_tokens: Mapped[int | None]
    players: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    """Models of the other players, by player: name, and the start of a digest of weights."""
    strata: Mapped[list[int]] = mapped_column(JSON, default=list)
    """First strata of the examples, according to the latest run that the hub verified, otherwise the first
    run; empty if there is only one."""
    runs: Mapped[int] = mapped_column(default=0)
    """Number of runs on the board."""
    models: Mapped[int] = mapped_column(default=0)
    """Number of rows, which are the counting runs. A model that two accounts posted has two rows, unless they
    are folded."""
    last_posted_at: Mapped[datetime]
    lows: Mapped[bytes] = mapped_column(LargeBinary, default=b"", deferred=True)
    """Sorted lower ends of the counting runs' intervals, as doubles, tier by tier (`bounds.py`)."""
    highs: Mapped[bytes] = mapped_column(LargeBinary, default=b"", deferred=True)
    tiers: Mapped[list[int]] = mapped_column(JSON, default=list, deferred=True)
    """Number of counting runs of each tier."""
    standard: Mapped[bool] = mapped_column(default=False)
    """Whether it has the environment's defaults and its whole evaluation split, according to a proved run or
    to a run of the version's publisher."""
    title: Mapped[str] = mapped_column(Text, default="")
    description: Mapped[str] = mapped_column(Text, default="")
    columns: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Names of the shown columns; None for the default columns."""
    pinned: Mapped[bool] = mapped_column(default=False)
    """Whether the version shows this board first. At most one board of a version is pinned."""
    refuses_rescored: Mapped[bool] = mapped_column(default=False)
    """Whether the board rejects runs of the level `rescored`."""
    unfolded: Mapped[bool] = mapped_column(default=False)
    """Whether runs with the same answers have separate rows."""
    version: Mapped[Version] = relationship(lazy="raise")

    @property
    def stated_players(self) -> list[str]:
        """Players whose models are self-reported. Scripts of the package are not, because they are
        replayed."""
        return [player for player, name in self.players.items() if not name.startswith("scripted:")]


class BoardEntry(Base):
    """A run on a board. The row is narrow, so that a hundred thousand of them can be sorted and filtered.

    Only the first verifiable run of a model and account is eligible for a row ("has the turn"), so posting
    again does not move a row. A withdrawn run keeps its turn, so no later run replaces it until an owner of
    the environment hides it. Eligible runs with the same answers are folded under the earliest of them, which
    counts for all.
    """

    __tablename__ = "board_entries"
    __table_args__ = (
        Index("ix_board_entries_all", "board_id", "tier", "shortfall", "posted_at", "run_id"),
        Index("ix_board_entries_counts", "board_id", "counts", "tier", "shortfall", "posted_at", "run_id"),
        Index("ix_board_entries_posted", "board_id", "posted_at", "run_id"),
        Index("ix_board_entries_model", "board_id", "model", "posted_by_id", "posted_at", "run_id"),
        Index(
            "ix_board_entries_counting",
            "board_id",
            "model",
            sqlite_where=text("counts = 1"),
            postgresql_where=text("counts"),
        ),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    board_id: Mapped[int] = mapped_column(ForeignKey("boards.id"))
    model: Mapped[str] = mapped_column(Text)
    posted_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    level: Mapped[VerificationLevel] = mapped_column(String(16))
    tier: Mapped[int]
    """Index in `TIERS`. The run ranks below all runs with a lower index."""
    shortfall: Mapped[float]
    """Negated mean reward, so that ascending order has the best run first."""
    low: Mapped[float | None]
    """Lower end of the 95% interval; None for a run that is too small for one."""
    high: Mapped[float | None]
    tokens: Mapped[float | None]
    """Tokens per rollout."""
    usd: Mapped[float | None]
    """Cost per rollout in US dollars, with the submitter's prices."""
    posted_at: Mapped[datetime]
    """Time when the run became public."""
    withdrawn: Mapped[bool]
    """Whether the run was withdrawn. It is hidden then and only keeps its turn."""
    counts: Mapped[bool]
    """Whether the run is a row: it has its model and account's turn, and is neither withdrawn nor folded."""
    folded_into: Mapped[str | None] = mapped_column(String(64), index=True)
    """Id of the run that this run is folded under: the first eligible run that shares at least half of this
    run's completions. None if it is not folded."""

    @property
    def place(self) -> BoardPlace:
        """Position that decides its rank."""
        return place_of(self.tier, self.low, self.high)

    @property
    def seniority(self) -> tuple[bool, datetime, str]:
        """Sort key of runs with the same answers. The smallest key represents all of them."""
        return TIERS[self.tier] == "unverifiable", self.posted_at, self.run_id


def place_of(tier: int, low: float | None, high: float | None) -> BoardPlace:
    """Return the place that decides a run's rank; unverifiable runs share one place, whatever their rewards
    are."""
    return BoardPlace(tier, None, None) if TIERS[tier] == "unverifiable" else BoardPlace(tier, low, high)


class HiddenRun(Base):
    """The reason why an owner of an environment hid a run from its board."""

    __tablename__ = "hidden_runs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    board_id: Mapped[int] = mapped_column(ForeignKey("boards.id"), index=True)
    reason: Mapped[str] = mapped_column(Text)
    hidden_at: Mapped[datetime]
    hidden_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    hidden_by: Mapped[User] = relationship(lazy="raise")
