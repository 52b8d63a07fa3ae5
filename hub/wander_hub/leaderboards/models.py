"""Tables of boards, of the runs that stand on them, and of those that owners hid."""

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
from wander_hub.leaderboards.bounds import Place

PROVEN = ("rescored", "replayed")
"""Levels of a run that the hub itself replayed or rescored, so it knows what the environment says."""


class Board(Base):
    """Runs of one version that may be compared: one task set, one protocol; and how its owners show it."""

    __tablename__ = "boards"
    __table_args__ = (UniqueConstraint("version_id", "task_set_sha256", "protocol_sha256"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"))
    task_set_sha256: Mapped[str] = mapped_column(String(64))
    protocol_sha256: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(8))
    """What a user chooses it by among the boards of its version."""
    split: Mapped[str] = mapped_column(String(8))
    examples: Mapped[int]
    rollouts_per_example: Mapped[int]
    arguments: Mapped[dict[str, Any]] = mapped_column(JSON)
    max_tokens: Mapped[int | None]
    players: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    """Who plays besides the models, by player: name, and the beginning of a digest of weights."""
    runs: Mapped[int] = mapped_column(default=0)
    """That stand on it."""
    models: Mapped[int] = mapped_column(default=0)
    """Its rows: runs that count. A model that two accounts posted has two, unless they are folded."""
    last_posted_at: Mapped[datetime]
    lows: Mapped[bytes] = mapped_column(LargeBinary, default=b"", deferred=True)
    """Lower ends of the intervals of the runs that count, of each tier ascending doubles (`bounds.py`)."""
    highs: Mapped[bytes] = mapped_column(LargeBinary, default=b"", deferred=True)
    tiers: Mapped[list[int]] = mapped_column(JSON, default=list, deferred=True)
    """How many runs that count each tier has."""
    standard: Mapped[bool] = mapped_column(default=False)
    """Whether it has the environment's own defaults and whole evaluation split, as a run that was proved, or
    one of who published the version, says."""
    title: Mapped[str] = mapped_column(Text, default="")
    description: Mapped[str] = mapped_column(Text, default="")
    columns: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """None for the usual ones."""
    pinned: Mapped[bool] = mapped_column(default=False)
    """The one that its version shows first; at most one of a version."""
    refuses_rescored: Mapped[bool] = mapped_column(default=False)
    """Whether runs of the level `rescored` do not stand on it."""
    unfolded: Mapped[bool] = mapped_column(default=False)
    """Whether runs with the same answers stand on it one by one."""
    version: Mapped[Version] = relationship(lazy="raise")

    @property
    def stated_players(self) -> list[str]:
        """The players whom other models played, as submitters state; the package's scripts are replayed."""
        return [player for player, name in self.players.items() if not name.startswith("scripted:")]


class BoardEntry(Base):
    """A run that stands on a board, in a row narrow enough to sort and filter a hundred thousand of them.

    Of all runs of one model by one account only the first that could be verified has the turn, so posting
    again moves no row. A withdrawn one keeps its turn, so no later one takes its place until an owner of the
    environment hides it. Of the runs that have the turn, those with the same answers are folded under the
    earliest, which counts for all of them.
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
    """Place in `TIERS` of what the hub proved of it: it stands below all runs of a lower number."""
    shortfall: Mapped[float]
    """The mean reward, negated: ascending order has the best first, and of equals the one posted first."""
    low: Mapped[float | None]
    """Of the 95 % interval; None for a run that is too small for one."""
    high: Mapped[float | None]
    tokens: Mapped[float | None]
    """Of a rollout."""
    usd: Mapped[float | None]
    """Cost of a rollout, at the prices that its submitter stated."""
    posted_at: Mapped[datetime]
    """For all to see: a run that was private was posted here when it was published."""
    withdrawn: Mapped[bool]
    """Shown nowhere; it only keeps its turn."""
    on_top: Mapped[bool] = mapped_column(default=False)
    """As in `Run`: it comes before earlier ones with its answers."""
    counts: Mapped[bool]
    """Whether it is a row: it has the turn of its model and account, is not withdrawn, and not folded."""
    folded_into: Mapped[str | None] = mapped_column(String(64), index=True)
    """The first run with the turn that shares at least half of its completions with this one, which has the
    turn too; None unless it is folded."""

    @property
    def place(self) -> Place:
        """Where it ranks."""
        return place_of(self.tier, self.low, self.high)

    @property
    def seniority(self) -> tuple[bool, bool, datetime, str]:
        """Return what orders runs with the same answers: the least stands for all of them."""
        return not self.on_top, TIERS[self.tier] == "unverifiable", self.posted_at, self.run_id


def place_of(tier: int, low: float | None, high: float | None) -> Place:
    """Return where a run ranks; what could not be verified shares its ranks, whatever it scored."""
    return Place(tier, None, None) if TIERS[tier] == "unverifiable" else Place(tier, low, high)


class HiddenRun(Base):
    """Why an owner of an environment keeps a run off its board."""

    __tablename__ = "hidden_runs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    board_id: Mapped[int] = mapped_column(ForeignKey("boards.id"), index=True)
    reason: Mapped[str] = mapped_column(Text)
    hidden_at: Mapped[datetime]
    hidden_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    hidden_by: Mapped[User] = relationship(lazy="raise")
