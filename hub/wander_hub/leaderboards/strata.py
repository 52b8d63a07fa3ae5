"""Rewards of a board's rows on one stratum of its examples. They do not change ranks."""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.wire import Leaderboard
from wander.wire.boards import StratumScore

from wander_hub.http.problems import HubProblem
from wander_hub.runs import explorer
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.storage import Storage, spare_missing

_MOST_BROKEN_DOWN = 100_000
"""Maximum number of rollouts that a board reads for a stratum, which takes half a second of CPU time."""


def with_stratum(session: Session, storage: Storage, board: Leaderboard, stratum: int | None) -> Leaderboard:
    """Return a board with the rewards of its rows on one stratum, if given.

    Raises a 404 problem if the examples do not have the stratum.
    """
    if stratum is None or not board.rows:
        return board
    if stratum not in board.strata:
        known = ", ".join(map(str, board.strata))
        hint = f"its strata are {known}" if known else "its examples have only one stratum"
        raise HubProblem(404, "stratum_not_found", f"the board has no stratum {stratum}", hint=hint)
    return score_stratum(session, storage, board, stratum)


def score_stratum(session: Session, storage: Storage, board: Leaderboard, stratum: int) -> Leaderboard:
    """Return a board with the rewards of its rows on a stratum, up to the limit of rollouts to read.

    Cached runs do not count towards the limit.
    """
    query = run_repository.readable_runs(session).where(Run.run_id.in_([row.run_id for row in board.rows]))
    runs_by_id = {run.run_id: run for run in session.scalars(query)}
    rows, left = [], _MOST_BROKEN_DOWN
    for row in board.rows:
        run, score = runs_by_id.get(row.run_id), None
        if run is not None and not explorer.is_broken_down(run):
            left -= runs.count_of(run)
        if run is not None and (left >= 0 or explorer.is_broken_down(run)):
            with spare_missing(set()):
                group = explorer.break_down(session, storage, run).strata.get(stratum)
                if group is not None:
                    score = StratumScore(
                        stratum=stratum, reward_mean=group.mean, rollouts=group.count, failed=group.failed
                    )
        rows.append(row.model_copy(update={"stratum": score}))
    return board.model_copy(update={"rows": rows})
