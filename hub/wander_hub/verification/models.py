"""Tables of what the hub found out by itself: verifications, copies and reruns, checks of versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import VerificationLevel
from wander.wire.verification import LevelSought, TokenCheck

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


class RunExamination(Base):
    """What reading a run told: what its completions are, whose copy it is, whether it agrees with another."""

    __tablename__ = "run_examinations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    completions_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """Digest of all completions, letters and digits only; None where they are too few to tell runs apart."""
    duplicate_of: Mapped[str | None] = mapped_column(String(64))
    """The run that had these completions before, of another model or another user."""
    rerun_of: Mapped[str | None] = mapped_column(String(64), index=True)
    """The run that it repeats, by its manifest."""
    agreement: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.Agreement` with that run; None where the two cannot be compared."""
    independent: Mapped[bool] = mapped_column(default=False)
    """Whether somebody else posted it than the run that it repeats, and it is no copy of it."""
    note: Mapped[str] = mapped_column(Text, default="")
    """In words: what it is a copy of, why it is no evidence."""
    fault: Mapped[str | None] = mapped_column(String(80))
    """What kept the hub from examining it; it ranks nowhere then."""
    tokens: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.TokenCheck`; None where the hub has no tokenizer of the model."""
    examined_at: Mapped[datetime]
    run: Mapped[Run] = relationship(lazy="raise")

    @property
    def token_check(self) -> TokenCheck | None:
        """What its completion tokens are against its texts."""
        return TokenCheck.model_validate(self.tokens) if self.tokens else None

    @property
    def understated(self) -> bool:
        """Whether it states fewer completion tokens than its texts have."""
        check = self.token_check
        return check is not None and check.understated


class SketchKey(Base):
    """What keys the sketches of an environment's runs."""

    __tablename__ = "sketch_keys"

    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64))
    """32 random bytes, hexadecimal."""


class RunSketch(Base):
    """One of the hashes by which runs that say the same find each other (`likeness.py`)."""

    __tablename__ = "run_sketches"

    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True, index=True)


class ClearedCopy(Base):
    """Who let a run rank though it has an earlier one's completions, and why."""

    __tablename__ = "cleared_copies"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    cleared_at: Mapped[datetime]
    cleared_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    cleared_by: Mapped[User] = relationship(lazy="raise")


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
