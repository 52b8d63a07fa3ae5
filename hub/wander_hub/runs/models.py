"""Tables of runs, their thin rollout rows and their artifacts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import VerificationLevel

from wander_hub.accounts.models import User
from wander_hub.database import Base
from wander_hub.environments.models import Environment, Version


class Run(Base):
    """A posted run; every number in it was computed here from the rollouts."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_listing", "environment_id", "posted_at"),
        Index("ix_runs_board", "version_id", "kind", "task_set_sha256", "protocol_sha256"),
    )

    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"))
    kind: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(Text)
    model_kind: Mapped[str] = mapped_column(Text)
    task_set_sha256: Mapped[str] = mapped_column(String(64))
    protocol_sha256: Mapped[str] = mapped_column(String(64))
    """Digest of what must be equal for two runs on one task set to be comparable."""
    rollouts_per_example: Mapped[int]
    examples: Mapped[int]
    level: Mapped[VerificationLevel] = mapped_column(String(16))
    level_reason: Mapped[str] = mapped_column(Text)
    reward_mean: Mapped[float | None]
    manifest: Mapped[str] = mapped_column(Text)
    """`run.json` as posted."""
    summary: Mapped[dict[str, Any]] = mapped_column(JSON)
    sha256: Mapped[str] = mapped_column(String(64))
    rollouts_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """Object with the compressed rollouts; None when there are none."""
    posted_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    posted_at: Mapped[datetime] = mapped_column(index=True)
    environment: Mapped[Environment] = relationship(lazy="raise")
    version: Mapped[Version] = relationship(lazy="raise")
    posted_by: Mapped[User] = relationship(lazy="raise")
    artifacts: Mapped[list[RunArtifact]] = relationship(lazy="raise", order_by="RunArtifact.name")


class RunRollout(Base):
    """What a list of rollouts shows, and where the whole rollout lies."""

    __tablename__ = "run_rollouts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """From 0, in the manifest's order of examples."""
    example_id: Mapped[str] = mapped_column(Text)
    index: Mapped[int]
    reward: Mapped[float | None]
    stop_reason: Mapped[str | None] = mapped_column(Text)
    failure: Mapped[str | None] = mapped_column(String(16))
    truncated: Mapped[bool]
    turns: Mapped[int]
    completion_tokens: Mapped[int]
    seconds: Mapped[float]
    preview: Mapped[str] = mapped_column(String(200))
    block_start: Mapped[int] = mapped_column(BigInteger)
    block_length: Mapped[int] = mapped_column(BigInteger)
    offset: Mapped[int] = mapped_column(BigInteger)
    length: Mapped[int] = mapped_column(BigInteger)


class RunArtifact(Base):
    """A file that came with a run."""

    __tablename__ = "run_artifacts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    media_type: Mapped[str] = mapped_column(String(80))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
