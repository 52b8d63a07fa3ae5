"""Tables of the hub's own findings: verifications of runs and checks of versions."""

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
    """One request to verify a run, and its result."""

    __tablename__ = "verifications"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    sample: Mapped[int | None]
    """Number of rollouts to sample; None means all."""
    level: Mapped[LevelSought] = mapped_column(String(12), default="highest")
    """Requested level."""
    gave: Mapped[VerificationLevel | None] = mapped_column(String(16))
    """Level of the run after this verification; None until the job is done."""
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """`wander.wire.verification.ReplayReport` without its divergences; None until the job is done."""
    made_with: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """`wander.wire.verification.VerifiedWith`."""
    requested_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """User who requested it; None if the hub requested it after a post."""
    created_at: Mapped[datetime]
    job: Mapped[Job] = relationship(lazy="raise")
    run: Mapped[Run] = relationship(lazy="raise")
    requested_by: Mapped[User | None] = relationship(lazy="raise")


class VerificationDivergence(Base):
    """One rollout with a different result."""

    __tablename__ = "verification_divergences"

    verification_id: Mapped[int] = mapped_column(ForeignKey("verifications.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """Position in the report, from 0."""
    example_id: Mapped[str] = mapped_column(Text)
    index: Mapped[int]
    part: Mapped[str] = mapped_column(String(40))
    message: Mapped[int | None]
    difference: Mapped[str] = mapped_column(Text)


class VersionCheck(Base):
    """The hub's own checks of a version, or its proof of learning."""

    __tablename__ = "version_checks"

    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    """Kind of the job: `check` or `learn`."""
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """For checks an object with `summary` (a `wander.wire.CheckSummary`), `seconds` and `earned`, and for the
    proof a `wander.wire.verification.LearningReport`; None until the job is done."""
    made_with: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.CheckedWith`."""
    created_at: Mapped[datetime]
    job: Mapped[Job] = relationship(lazy="raise")
    version: Mapped[Version] = relationship(lazy="raise")
