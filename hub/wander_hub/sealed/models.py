"""Tables of sealed task sets and their plays."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, ForeignKey, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from wander_hub.accounts.models import User
from wander_hub.database import Base
from wander_hub.environments.models import Version
from wander_hub.jobs import Job
from wander_hub.runs.models import Run


class SealedSet(Base):
    """A task set that its owner committed to."""

    __tablename__ = "sealed_sets"

    id: Mapped[int] = mapped_column(primary_key=True)
    commitment: Mapped[str] = mapped_column(String(64), unique=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), index=True)
    state: Mapped[Literal["checking", "refused", "sealed", "opening", "opened"]] = mapped_column(String(12))
    error: Mapped[str | None] = mapped_column(Text)
    examples: Mapped[int]
    wrapped_key: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Data key, encrypted with the hub's key; None after the opening."""
    content: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    """The set's file: encrypted with the data key, and plain after the opening; None if it was refused."""
    created_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
    opens_at: Mapped[datetime] = mapped_column(index=True)
    opened_at: Mapped[datetime | None]
    version: Mapped[Version] = relationship(lazy="raise")
    created_by: Mapped[User] = relationship(lazy="raise")
    plays: Mapped[list[SealedPlay]] = relationship(lazy="raise", back_populates="sealed_set")


class SealedPlay(Base):
    """A play of a sealed set."""

    __tablename__ = "sealed_plays"

    id: Mapped[int] = mapped_column(primary_key=True)
    set_id: Mapped[int] = mapped_column(ForeignKey("sealed_sets.id"), index=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    submitted_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    model: Mapped[str] = mapped_column(Text)
    host: Mapped[str | None] = mapped_column(Text)
    """Host of the endpoint; None if the hub runs the model itself."""
    created_at: Mapped[datetime]
    exposed_at: Mapped[datetime | None]
    """Time when the hub began to send the questions; None if it did not."""
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Aggregates that everyone may see; None without a result."""
    content: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    """The run's manifest and rollouts, encrypted with the set's data key; None after the opening."""
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.run_id"))
    error: Mapped[str | None] = mapped_column(Text)
    """Reason why the play did not become a run."""
    sealed_set: Mapped[SealedSet] = relationship(lazy="raise", back_populates="plays")
    job: Mapped[Job] = relationship(lazy="raise")
    submitted_by: Mapped[User] = relationship(lazy="raise")
    run: Mapped[Run | None] = relationship(lazy="raise")
