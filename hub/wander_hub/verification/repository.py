"""Queries on verifications."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, func, insert, select
from sqlalchemy.orm import Session, contains_eager, joinedload
from wander.wire.verification import Divergence, LevelSought

from wander_hub.environments.models import Environment
from wander_hub.jobs import Job
from wander_hub.runs.models import Run
from wander_hub.runs.repository import readable_run
from wander_hub.verification.models import Verification, VerificationDivergence

OPEN = ("queued", "running")
"""States of jobs that have not ended."""


def visible(session: Session) -> Select[Verification]:
    """Return the statement every read builds on: the verifications of runs that the caller may see."""
    query = select(Verification).join(Verification.run).join(Run.environment).join(Environment.owner)
    run = contains_eager(Verification.run).contains_eager(Run.environment)
    return query.where(readable_run(session)).options(
        run.contains_eager(Environment.owner),
        joinedload(Verification.job),
        joinedload(Verification.requested_by),
    )


def of_run(session: Session, run_id: str) -> Sequence[Verification]:
    """Return a run's verifications, the newest first."""
    query = visible(session).where(Verification.run_id == run_id)
    return session.scalars(query.order_by(Verification.id.desc())).all()


def count_of_run(session: Session, run_id: str) -> int:
    """Return how many verifications a run has had."""
    query = select(func.count()).select_from(Verification).where(Verification.run_id == run_id)
    return session.scalar(query) or 0


def open_of_run(session: Session, run_id: str, sample: int | None, level: LevelSought) -> Verification | None:
    """Return the verification of that size and level that waits or runs."""
    query = (
        visible(session)
        .join(Verification.job)
        .where(
            Verification.run_id == run_id,
            Verification.sample.is_(None) if sample is None else Verification.sample == sample,
            Verification.level == level,
            Job.state.in_(OPEN),
        )
    )
    return session.scalar(query.order_by(Verification.id.desc()).limit(1))


def add_divergences(session: Session, verification_id: int, found: Sequence[Divergence]) -> None:
    """Insert the rollouts that came out otherwise."""
    rows = [
        {"verification_id": verification_id, "number": number, **one.model_dump()}
        for number, one in enumerate(found)
    ]
    if rows:
        session.execute(insert(VerificationDivergence), rows)


def divergences_of(
    session: Session, verification_id: int, offset: int, limit: int
) -> Sequence[VerificationDivergence]:
    """Return a page of them; numbers are dense, so the page is one range of the primary key."""
    query = select(VerificationDivergence).where(
        VerificationDivergence.verification_id == verification_id,
        VerificationDivergence.number >= offset,
        VerificationDivergence.number < offset + limit,
    )
    return session.scalars(query.order_by(VerificationDivergence.number)).all()


def count_divergences(session: Session, verification_id: int) -> int:
    """Return how many are kept."""
    query = (
        select(func.count())
        .select_from(VerificationDivergence)
        .where(VerificationDivergence.verification_id == verification_id)
    )
    return session.scalar(query) or 0


def find(session: Session, number: int) -> Verification | None:
    """Return one verification."""
    return session.scalar(visible(session).where(Verification.id == number))


def count_waiting(session: Session, user_id: int) -> int:
    """Return how many verifications of a user wait or run."""
    query = (
        select(func.count())
        .select_from(Verification)
        .join(Verification.job)
        .where(Verification.requested_by_id == user_id, Job.state.in_(OPEN))
    )
    return session.scalar(query) or 0
