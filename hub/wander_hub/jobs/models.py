"""The table of jobs, which also holds what pages and the API show of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column
from wander.wire.verification import JobState

from wander_hub.accounts import models as accounts  # noqa: F401 - jobs refer to users
from wander_hub.database import Base

OPEN: tuple[JobState, ...] = ("queued", "running")
"""States of jobs that have not ended."""


class Job(Base):
    """A unit of background work."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_waiting", "state", "priority", "turn", "id"),
        Index("ix_jobs_turns", "created_by_id", "turn"),
        Index("ix_jobs_turn", "turn"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(40))
    key: Mapped[str] = mapped_column(String(200), unique=True)
    """Unique key: submitting a second job with the same key returns the first one."""
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[JobState] = mapped_column(String(12), default="queued")
    priority: Mapped[int] = mapped_column(default=0)
    """Priority; higher values run first."""
    run_after: Mapped[datetime]
    attempt: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int]
    lease_owner: Mapped[str | None] = mapped_column(String(100))
    lease_until: Mapped[datetime | None]
    progress: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    error: Mapped[str | None] = mapped_column(Text)
    created_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """User who started the job; None for the hub's own jobs."""
    turn: Mapped[float] = mapped_column(default=0.0)
    """Position among the jobs of the same priority; the lowest value runs next."""
    cost: Mapped[float] = mapped_column(default=1.0)
    """Delay of its user's next job caused by this job; 1 is a typical job of up to a minute."""
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
