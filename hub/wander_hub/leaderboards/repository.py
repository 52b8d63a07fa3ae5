"""Queries on comparable runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from wander_hub.leaderboards.schemas import Board
from wander_hub.runs.models import Run
from wander_hub.runs.repository import counts, visible


def boards_of(session: Session, version_id: int) -> Sequence[Board]:
    """Return the boards of a version, the busiest first; only complete evaluations make a board."""
    runs, last = func.count(), func.max(Run.posted_at)
    query = (
        select(Run.version_id, Run.task_set_sha256, Run.protocol_sha256, runs, last)
        .where(Run.version_id == version_id, Run.kind == "evaluation", Run.level != "claimed", counts())
        .group_by(Run.version_id, Run.task_set_sha256, Run.protocol_sha256)
        .order_by(runs.desc(), last.desc(), Run.protocol_sha256)
    )
    return [Board(*row) for row in session.execute(query)]


def ranked_runs(session: Session, board: Board) -> Sequence[Run]:
    """Return the complete runs of a board, the best mean reward first."""
    return session.scalars(
        _complete(session, board).order_by(Run.reward_mean.desc(), Run.posted_at, Run.run_id)
    ).all()


def newest_run(session: Session, board: Board) -> Run:
    """Return the run of a board that was posted last."""
    return session.scalars(_complete(session, board).order_by(Run.posted_at.desc()).limit(1)).one()


def _complete(session: Session, board: Board) -> Select[Run]:
    return visible(session).where(
        Run.version_id == board.version_id,
        Run.kind == "evaluation",
        Run.level != "claimed",
        counts(),
        Run.task_set_sha256 == board.task_set_sha256,
        Run.protocol_sha256 == board.protocol_sha256,
    )


def versions_with_boards(session: Session, environment_id: int) -> set[int]:
    """Return the ids of the versions that have a complete evaluation."""
    query = select(Run.version_id).where(
        Run.environment_id == environment_id, Run.kind == "evaluation", Run.level != "claimed"
    )
    return set(session.scalars(query.distinct()))


def count_incomplete(session: Session, version_id: int, task_set: str | None) -> int:
    """Return how many evaluations of a version, or of one of its task sets, do not rank."""
    query = (
        select(func.count())
        .select_from(Run)
        .where(Run.version_id == version_id, Run.kind == "evaluation", Run.level == "claimed", counts())
    )
    if task_set is not None:
        query = query.where(Run.task_set_sha256 == task_set)
    return session.scalar(query) or 0
