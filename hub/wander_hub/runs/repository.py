"""Queries on runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, and_, func, insert, or_, select
from sqlalchemy.orm import Session, contains_eager, joinedload, selectinload

from wander_hub.environments.models import Environment
from wander_hub.environments.repository import readable
from wander_hub.environments.schemas import Position
from wander_hub.runs.models import Run, RunArtifact, RunRollout
from wander_hub.runs.schemas import RolloutLine


def visible(session: Session) -> Select[Run]:
    """Return the statement every read builds on: the runs the caller may see, with what a row shows."""
    environment = contains_eager(Run.environment).contains_eager(Environment.owner)
    query = select(Run).join(Run.environment).join(Environment.owner).where(readable(session))
    return query.options(
        environment, joinedload(Run.version), joinedload(Run.posted_by), selectinload(Run.artifacts)
    )


def run_named(session: Session, run_id: str) -> Run | None:
    """Return one run."""
    return session.scalar(visible(session).where(Run.run_id == run_id))


def runs_beginning(session: Session, beginning: str) -> Sequence[Run]:
    """Return up to two runs whose ids begin so."""
    return session.scalars(
        visible(session).where(Run.run_id.startswith(beginning, autoescape=True)).limit(2)
    ).all()


def page(
    session: Session, *, environment_id: int | None, model: str | None, limit: int, cursor: str | None
) -> Sequence[Run]:
    """Return up to `limit + 1` runs, newest first."""
    query = visible(session)
    if environment_id is not None:
        query = query.where(Run.environment_id == environment_id)
    if model is not None:
        query = query.where(Run.model == model)
    if cursor:
        at = Position.from_cursor(cursor)
        same_moment = and_(Run.posted_at == at.moment, Run.run_id < at.row)
        query = query.where(or_(Run.posted_at < at.moment, same_moment))
    return session.scalars(query.order_by(Run.posted_at.desc(), Run.run_id.desc()).limit(limit + 1)).all()


def count_runs(session: Session, environment_id: int | None = None) -> int:
    """Return the number of runs, of one environment or of all."""
    query = select(func.count()).select_from(Run).join(Run.environment).where(readable(session))
    if environment_id is not None:
        query = query.where(Run.environment_id == environment_id)
    return session.scalar(query) or 0


def newest_of_version(session: Session, version_id: int) -> Run | None:
    """Return the last posted run of a version, which knows what the environment says about itself."""
    query = visible(session).where(Run.version_id == version_id)
    return session.scalar(query.order_by(Run.posted_at.desc(), Run.run_id).limit(1))


def add_rollouts(session: Session, run_id: str, lines: Sequence[RolloutLine]) -> None:
    """Insert the thin rows of a run."""
    if not lines:
        return
    rows = [
        {
            "run_id": run_id,
            "number": number,
            "example_id": line.example_id,
            "index": line.index,
            "reward": line.reward,
            "stop_reason": line.stop_reason,
            "failure": line.failure,
            "truncated": line.truncated,
            "turns": line.turns,
            "completion_tokens": line.completion_tokens,
            "seconds": line.seconds,
            "preview": line.preview,
            "block_start": line.place.block_start,
            "block_length": line.place.block_length,
            "offset": line.place.offset,
            "length": line.place.length,
        }
        for number, line in enumerate(lines)
    ]
    session.execute(insert(RunRollout), rows)


def rollouts_of(session: Session, run_id: str, offset: int, limit: int) -> Sequence[RunRollout]:
    """Return a page of thin rows; numbers are dense, so the page is one range of the primary key."""
    query = select(RunRollout).where(
        RunRollout.run_id == run_id, RunRollout.number >= offset, RunRollout.number < offset + limit
    )
    return session.scalars(query.order_by(RunRollout.number)).all()


def rollout_numbered(session: Session, run_id: str, number: int) -> RunRollout | None:
    """Return one thin row."""
    return session.get(RunRollout, (run_id, number))


def siblings(session: Session, run_id: str, example_id: str, near: int, spread: int) -> Sequence[RunRollout]:
    """Return the rollouts of one example; they lie within `spread` numbers of each other."""
    query = select(RunRollout).where(
        RunRollout.run_id == run_id,
        RunRollout.number.between(near - spread, near + spread),
        RunRollout.example_id == example_id,
    )
    return session.scalars(query.order_by(RunRollout.index)).all()


def blocks_of(session: Session, run_id: str) -> Sequence[tuple[int, int]]:
    """Return start and length of every stored block, in order."""
    query = (
        select(RunRollout.block_start, RunRollout.block_length)
        .where(RunRollout.run_id == run_id)
        .distinct()
        .order_by(RunRollout.block_start)
    )
    return [(start, length) for start, length in session.execute(query)]


def artifact_named(session: Session, run_id: str, name: str) -> RunArtifact | None:
    """Return one artifact."""
    return session.get(RunArtifact, (run_id, name))


def rollouts_matching(
    session: Session, run_id: str, *, sort: str, only: str, offset: int, limit: int
) -> tuple[Sequence[RunRollout], int]:
    """Return a page of thin rows in the order and of the kind asked for, and how many there are in all."""
    conditions = [RunRollout.run_id == run_id]
    if only != "all":
        failed = RunRollout.failure.is_not(None)
        conditions.append(failed if only == "failed" else ~failed)
    total = session.scalar(select(func.count()).select_from(RunRollout).where(*conditions)) or 0
    orders = {
        "reward": RunRollout.reward.asc().nulls_last(),
        "-reward": RunRollout.reward.desc().nulls_last(),
    }
    order = [orders[sort], RunRollout.number] if sort in orders else [RunRollout.number]
    query = select(RunRollout).where(*conditions).order_by(*order).offset(offset).limit(limit)
    return session.scalars(query).all(), total
