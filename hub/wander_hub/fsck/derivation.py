"""Recompute derived numbers that an older release computed differently.

Each run stores the `DERIVATION` with which its numbers were computed. A release that changes how it derives
summaries, the order of rollouts, intervals or places raises that number, and so finds the runs to recompute.
The recomputation can be stopped at any time: the runs of an environment are marked after its boards are
rebuilt, so an interrupted environment is recomputed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from sqlalchemy import func, select, update

from wander_hub.database import Database
from wander_hub.fsck.check import check_boards, check_environment, check_run
from wander_hub.identity import HUB
from wander_hub.runs.models import DERIVATION, Run
from wander_hub.runs.repository import chunks_of
from wander_hub.storage import Storage

_AT_ONCE = 500
_STALE = Run.derivation < DERIVATION  # an older release keeps the numbers of a newer one

logger = logging.getLogger("wander_hub")


def recompute_stale_runs(database: Database, storage: Storage) -> Iterator[tuple[int, int]]:
    """Recompute the numbers of all stale runs, their boards and the totals of their environments.

    After each run, yields the number of runs read so far and the total. Runs whose rollouts are damaged
    remain stale.
    """
    stale = select(Run.environment_id, func.count()).where(_STALE).group_by(Run.environment_id)
    with database.read(HUB) as session:
        rows = session.execute(stale.order_by(Run.environment_id)).all()
    counts = {row[0]: row[1] for row in rows}
    done, total = 0, sum(counts.values())
    for environment_id in counts:
        query = select(Run.run_id).where(_STALE, Run.environment_id == environment_id)
        with database.read(HUB) as session:
            run_ids = session.scalars(query.order_by(Run.posted_at, Run.run_id)).all()
        right = []
        for run_id in run_ids:
            if _recompute(database, storage, run_id):
                right.append(run_id)
            done += 1
            yield done, total
        check_boards(database, environment_id, repair=True)
        check_environment(database, environment_id, repair=True)
        for start in range(0, len(right), _AT_ONCE):
            batch = Run.run_id.in_(right[start : start + _AT_ONCE])
            with database.write(HUB) as session:
                session.execute(update(Run).where(batch).values(derivation=DERIVATION))


def _recompute(database: Database, storage: Storage, run_id: str) -> bool:
    """Recompute the numbers of a run; return whether its rollouts could be read."""
    with database.read(HUB) as session:
        digests = {chunk.object_sha256 for chunk in chunks_of(session, run_id)}
    intact = all(storage.exists(digest) and storage.digest(digest) == digest for digest in digests)
    mismatch = check_run(database, storage, run_id, set(), repair=True) if intact else None
    if not intact or (mismatch is not None and not mismatch.repaired):
        logger.warning("cannot recompute the run %s: run `wander-hub fsck`", run_id)
        return False
    return True
