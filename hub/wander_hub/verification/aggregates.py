"""The aggregates of a stored run, from its rows, within the bounds that its environment declares."""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.evals.stats.summary import RunningSummary
from wander.types import EnvironmentInfo
from wander.wire import RunSummary

from wander_hub.runs.chunks import rows_of
from wander_hub.runs.models import Run
from wander_hub.runs.repository import chunks_of
from wander_hub.storage import Storage


def add_bounds(stated: EnvironmentInfo, declared: EnvironmentInfo) -> EnvironmentInfo:
    """Return what a run states of its environment, with the bounds that the environment itself declares.

    A run that states other bounds is contradicted by its replay; one that states none may have had them taken
    out.
    """
    if stated.reward_bounds is not None or any(one.bounds for one in stated.reward_functions):
        return stated
    bounds = {one.name: one.bounds for one in declared.reward_functions}
    functions = [one.model_copy(update={"bounds": bounds.get(one.name)}) for one in stated.reward_functions]
    return stated.model_copy(update={"reward_bounds": declared.reward_bounds, "reward_functions": functions})


def summarise(
    session: Session, storage: Storage, run: Run, info: EnvironmentInfo, expected: int
) -> RunSummary:
    """Return the aggregates of a run's rows."""
    summary = RunningSummary(info)
    for chunk in chunks_of(session, run.run_id):
        for row in rows_of(storage, chunk):
            summary.add(row.bare_rollout())
    return summary.summary(expected=expected)
