"""Queries on verifications."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from wander_hub.environments.models import Environment
from wander_hub.environments.repository import readable
from wander_hub.jobs import Job
from wander_hub.runs.models import Run
from wander_hub.verification.models import Verification


def visible(session: Session) -> Select[Verification]:
    """Return the statement every read builds on: the verifications of runs that the caller may see."""
    query = select(Verification).join(Verification.run).join(Run.environment).join(Environment.owner)
    run = contains_eager(Verification.run).contains_eager(Run.environment)
    return query.where(readable(session)).options(
        run.contains_eager(Environment.owner),
        joinedload(Verification.job),
        joinedload(Verification.requested_by),
    )


def of_run(session: Session, run_id: str) -> Sequence[Verification]:
    """Return a run's verifications, the newest first."""
    query = visible(session).where(Verification.run_id == run_id)
    return session.scalars(query.order_by(Verification.id.desc())).all()


def numbered(session: Session, number: int) -> Verification | None:
    """Return one verification."""
    return session.scalar(visible(session).where(Verification.id == number))


def waiting_of(session: Session, user_id: int) -> int:
    """Return how many verifications of a user wait or run."""
    query = (
        select(func.count())
        .select_from(Verification)
        .join(Verification.job)
        .where(Verification.requested_by_id == user_id, Job.state.in_(("queued", "running")))
    )
    return session.scalar(query) or 0
