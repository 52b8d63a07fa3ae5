"""The table of verifications."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from wander_hub.accounts.models import User
from wander_hub.database import Base
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
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """`wander.evals.replay.ReplayReport`; None until the job is done."""
    made_with: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """`wander.wire.VerifiedWith`."""
    requested_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """None where the hub asked itself, after a post."""
    created_at: Mapped[datetime]
    job: Mapped[Job] = relationship(lazy="raise")
    run: Mapped[Run] = relationship(lazy="raise")
    requested_by: Mapped[User | None] = relationship(lazy="raise")
