"""Aggregates of a stored run, computed from its rows within the bounds that its environment declares."""

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
    """Return a run's statements about its environment, with bounds added from the environment's own
    declaration.

    Bounds that the run states are kept, because a replay contradicts wrong ones. A run without bounds may
    have had them removed.
    """
    if stated.reward_bounds is not None or any(function.bounds for function in stated.reward_functions):
        return stated
    bounds = {function.name: function.bounds for function in declared.reward_functions}
    functions = [
        function.model_copy(update={"bounds": bounds.get(function.name)})
        for function in stated.reward_functions
    ]
    return stated.model_copy(update={"reward_bounds": declared.reward_bounds, "reward_functions": functions})


def summarize(
    session: Session, storage: Storage, run: Run, info: EnvironmentInfo, expected: int
) -> RunSummary:
    """Return the aggregates of a run, computed from its rows."""
    summary = RunningSummary(info)
    for chunk in chunks_of(session, run.run_id):
        for row in rows_of(storage, chunk):
            summary.add(row.bare_rollout())
    return summary.summary(expected=expected)
