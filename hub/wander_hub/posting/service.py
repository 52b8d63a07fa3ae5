"""Permissions for posting runs, and changes by the submitter: publish, rename and withdraw."""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.wire import RunManifest

from wander_hub import audit
from wander_hub.database import now
from wander_hub.environments.models import Environment, Version
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.rights import rights
from wander_hub.runs import manifest as manifests
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.events import emit_run_event
from wander_hub.runs.models import Run
from wander_hub.transfers import objects


def require_permission(
    session: Session, manifest: RunManifest, caller: Identity
) -> tuple[Environment, Version]:
    """Return the environment and version of a run; raise a problem if the caller may not post results
    there."""
    environment, version = manifests.find_pinned_version(session, manifest)
    if not rights.may(caller, "results", environment):
        raise rights.refusal(caller, "results", environment)
    return environment, version


def is_poster(session: Session, run_id: str, user_id: int) -> bool:
    """Return whether a user posted the run with this id."""
    known = session.get(Run, run_id)
    return known is not None and known.posted_by_id == user_id


def is_known(session: Session, run_id: str, sha256: str) -> bool:
    """Return whether this run was already posted; raise if it was withdrawn or its id belongs to another
    run."""
    known = session.get(Run, run_id)  # regardless of who may read it, because ids are unique
    if known is None:
        return False
    if known.withdrawn_at is not None:
        hint = "evaluate again to get a new run"
        raise HubProblem(409, "run_withdrawn", f"the run `{run_id}` was permanently withdrawn", hint=hint)
    if known.sha256 != sha256:
        hint = "a posted run cannot be changed; evaluate again to get a new run"
        raise HubProblem(
            409, "run_exists", f"the run `{run_id}` was already posted, with other content", hint=hint
        )
    return True


def publish_run(session: Session, run_id: str, caller: Identity) -> Run:
    """Make a private run public, permanently. Only its submitter may do this."""
    run = _find_own_run(session, run_id, caller, "publish")
    run_repository.lock_run(session, run)
    if runs.with_rollouts(run).private:
        run.private, run.public_at = False, now()
        emit_run_event(session, run.environment, run, "run.posted")
    session.flush()
    refresh_results(session, run.environment)
    return run


def rename_run(session: Session, run_id: str, name: str, caller: Identity) -> Run:
    """Set the name of a run; an empty name removes it. Only its submitter may do this."""
    run = _find_own_run(session, run_id, caller, "rename")
    run_repository.lock_run(session, run)
    before, run.name = run.name, name.strip() or None
    if run.name == before:
        audit.nothing_done(session)
    audit.about(session, before=before, name=run.name)
    session.flush()
    return run


def withdraw_run(context: Context, run_id: str, reason: str) -> None:
    """Remove the rollouts and files of a run and leave a tombstone with the reason. Only its submitter may do
    this."""

    def record(session: Session) -> list[str]:
        run = _find_own_run(session, run_id, context.caller, "withdraw")
        run_repository.lock_run(session, run)
        if run.withdrawn_at is not None:
            audit.nothing_done(session)
            return []  # the first reason remains
        audit.about(session, reason=reason)
        run.withdrawn_at, run.withdrawn_reason, run.withdrawn_by_id = now(), reason, context.caller.user_id
        loose = run_repository.remove_contents(session, run)
        refresh_results(session, run.environment)
        return loose

    objects.discard(context.database, context.storage, context.commit(record))


def is_own(run: Run, caller: Identity) -> bool:
    """Return whether the caller may publish, rename and withdraw a run."""
    covered = caller.covers("results", run.environment.owner_id, run.environment_id)
    return covered and (run.posted_by_id == caller.user_id or caller.administers)


def _find_own_run(session: Session, run_id: str, caller: Identity, verb: str) -> Run:
    run = runs.find(session, run_id)
    if not is_own(run, caller):
        hint = f"ask `{run.posted_by.name}`"
        raise HubProblem(403, "not_permitted", f"only the submitter of a run may {verb} it", hint=hint)
    return run
