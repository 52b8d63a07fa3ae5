"""Tables of what the hub found out by itself: verifications of runs, checks of versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import VerificationLevel
from wander.wire.verification import LevelSought

from wander_hub.accounts.models import User
from wander_hub.database import Base
from wander_hub.environments.models import Version
from wander_hub.jobs import Job
from wander_hub.runs.models import Run


class Verification(Base):
    """One request to play a run again, and what came out."""

    __tablename__ = "verifications"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    sample: Mapped[int | None]
    """How many rollouts to draw; None means all."""
    level: Mapped[LevelSought] = mapped_column(String(12), default="highest")
    """The level that was asked for."""
    gave: Mapped[VerificationLevel | None] = mapped_column(String(16))
    """The level that the run had after it; None until the job is done."""
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """`wander.wire.verification.ReplayReport` without its divergences; None until the job is done."""
    made_with: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """`wander.wire.verification.VerifiedWith`."""
    requested_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """The user who asked; None where the hub asked by itself, after a post."""
    created_at: Mapped[datetime]
    job: Mapped[Job] = relationship(lazy="raise")
    run: Mapped[Run] = relationship(lazy="raise")
    requested_by: Mapped[User | None] = relationship(lazy="raise")


class VerificationDivergence(Base):
    """One rollout that came out otherwise."""

    __tablename__ = "verification_divergences"

    verification_id: Mapped[int] = mapped_column(ForeignKey("verifications.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """From 0, in the order of the report."""
    example_id: Mapped[str] = mapped_column(Text)
    index: Mapped[int]
    part: Mapped[str] = mapped_column(String(40))
    message: Mapped[int | None]
    difference: Mapped[str] = mapped_column(Text)


class VersionCheck(Base):
    """The checks of a version that the hub ran itself."""

    __tablename__ = "version_checks"

    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`summary`, a `wander.wire.CheckSummary`, `seconds` and `earned`; None until the job is done."""
    made_with: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.CheckedWith`."""
    created_at: Mapped[datetime]
    job: Mapped[Job] = relationship(lazy="raise")
    version: Mapped[Version] = relationship(lazy="raise")
