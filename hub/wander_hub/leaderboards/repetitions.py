"""Repetitions of runs by other users: a badge next to the level that never affects levels or ranks."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session, aliased
from wander.wire import VerificationLevel
from wander.wire.boards import LEVELS_UP

from wander_hub.accounts.models import User
from wander_hub.runs.models import Run, RunExamination
from wander_hub.runs.repository import counts


def repeated_by(session: Session, run_ids: Collection[str]) -> dict[str, list[str]]:
    """Return the users who repeated each run with a public run that agrees and was proved at least as far."""
    if not run_ids:
        return {}
    users: dict[str, dict[str, None]] = {}
    for run_id, name, level, own in session.execute(_repetitions(), {"run_ids": list(run_ids)}):
        if run_id is not None and is_at_least(level, own):
            users.setdefault(run_id, {})[name] = None
    return {run_id: list(names) for run_id, names in users.items()}


def is_at_least(level: VerificationLevel, other: VerificationLevel) -> bool:
    """Return whether a run's level, which must not be `claimed`, is at least as high as another level."""
    if level not in LEVELS_UP:
        return False
    return other not in LEVELS_UP or LEVELS_UP.index(level) >= LEVELS_UP.index(other)


@cache
def _repetitions() -> Select[Any]:
    """Return the statement for runs that agree with those of `run_ids`; cached, because building it is
    slow."""
    original = aliased(Run)
    return (
        select(RunExamination.rerun_of, User.name)
        .add_columns(Run.level, original.level)
        .join(Run, Run.run_id == RunExamination.run_id)
        .join(User, User.id == Run.posted_by_id)
        .join(original, original.run_id == RunExamination.rerun_of)
        .where(RunExamination.rerun_of.in_(bindparam("run_ids", expanding=True)))
        .where(RunExamination.agrees, counts())
        .where(Run.version_id == original.version_id, Run.posted_by_id != original.posted_by_id)
        .order_by(Run.posted_at)
    )
