"""Publishes a private run, and withdraws any run."""

from __future__ import annotations

from sqlalchemy.orm import Session

from wander_hub.database import Database, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.runs import objects, repository, service
from wander_hub.runs.models import Run
from wander_hub.storage import Storage


def publish(session: Session, run_id: str, caller: Identity) -> Run:
    """Show a private run to all; only who posted it may, and never back."""
    run = _own(session, run_id, caller, "publish")
    repository.lock_run(session, run)
    service.with_rollouts(run).private = False
    session.flush()
    refresh_results(session, run.environment)
    return run


def withdraw(database: Database, storage: Storage, run_id: str, reason: str, caller: Identity) -> None:
    """Remove the rollouts and files of a run, leave a tombstone with the reason; who posted it may."""

    def record(session: Session) -> list[str]:
        run = _own(session, run_id, caller, "withdraw")
        repository.lock_run(session, run)
        if run.withdrawn_at is not None:
            return []  # the first reason stands
        run.withdrawn_at, run.withdrawn_reason, run.withdrawn_by_id = now(), reason, caller.user_id
        loose = repository.remove_contents(session, run)
        refresh_results(session, run.environment)
        return loose

    objects.discard(database, storage, database.committed(record, caller))


def _own(session: Session, run_id: str, caller: Identity, verb: str) -> Run:
    run = service.find(session, run_id)
    environment = run.environment
    covered = caller.covers("results", environment.owner_id, environment.id)
    if not covered or (run.posted_by_id != caller.user_id and not caller.administers):
        hint = f"ask `{run.posted_by.name}`"
        raise HubProblem(403, "not_permitted", f"only who posted a run may {verb} it", hint=hint)
    return run
