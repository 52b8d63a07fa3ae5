"""Curation of boards by the owners of an environment: presentation, and hidden runs."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session
from wander.wire import BoardInfo, BoardSettings

from wander_hub import audit
from wander_hub.database import now
from wander_hub.environments import repository as environments_repository
from wander_hub.environments import service as environments
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.leaderboards import placement, repository, service
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.leaderboards.events import emit_choice_event
from wander_hub.leaderboards.models import Board, BoardEntry, HiddenRun
from wander_hub.rights import rights
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run


def arrange(
    session: Session,
    caller: Identity,
    owner: str,
    name: str,
    version: str,
    board: str,
    wanted: BoardSettings,
) -> BoardInfo:
    """Set title, description, columns and pin of a board. Pinning a board unpins the other boards of its
    version."""
    environment = rights.environment_for(session, caller, "manage", owner, name)
    of_version = environments.find_version(session, environment, version)
    edited = service.find_board(session, environment, of_version, "", board)
    if wanted.pinned:
        session.execute(update(Board).where(Board.version_id == of_version.id).values(pinned=False))
    edited.title, edited.description = wanted.title, wanted.description
    edited.columns, edited.pinned = wanted.columns, wanted.pinned
    if edited.refuses_rescored != wanted.refuses_rescored:
        edited.refuses_rescored = wanted.refuses_rescored
        ruled = update(Run).where(
            Run.version_id == edited.version_id,
            Run.task_set_sha256 == edited.task_set_sha256,
            Run.protocol_sha256 == edited.protocol_sha256,
            Run.level == "rescored",
        )
        session.execute(ruled.values(board_level=""))  # forces a new placement
    session.flush()
    if edited.unfolded != wanted.unfolded:
        edited.unfolded = wanted.unfolded
        environments_repository.lock_environment(session, environment)
        placement.fold_again(session, edited)
    refresh_results(session, environment)
    return service.info_of(edited)


def hide(session: Session, caller: Identity, run_id: str, reason: str) -> tuple[Run, HiddenRun]:
    """Hide a run from its board. Who did this, when and why is public, and it can be undone."""
    run = find_managed_run(session, caller, run_id)
    audit.about(session, reason=reason)
    known = repository.find_hiding(session, run.run_id)
    if known is not None:
        known.reason, known.hidden_at, known.hidden_by_id = reason, now(), caller.user_id
        session.flush()
        session.expire(known, ["hidden_by"])
    else:
        entry = session.get(BoardEntry, run.run_id)
        if entry is None:
            detail = f"the run `{run.run_id}` is not on a board, so it cannot be hidden"
            raise HubProblem(422, "not_ranked", detail)
        run.hidden = True
        session.add(
            HiddenRun(
                run_id=run.run_id,
                board_id=entry.board_id,
                reason=reason,
                hidden_at=now(),
                hidden_by_id=caller.user_id,
            )
        )
    session.flush()
    refresh_results(session, run.environment)
    session.flush()
    kept = repository.find_hiding(session, run.run_id)
    assert kept is not None
    emit_choice_event(session, run, kept, "hidden")
    return runs.find(session, run.run_id), kept


def show(session: Session, caller: Identity, run_id: str) -> None:
    """Show a hidden run on its board again."""
    run = find_managed_run(session, caller, run_id)
    known = repository.find_hiding(session, run.run_id)
    if known is None:
        raise not_hidden(run.run_id)
    session.delete(known)
    run.hidden = False
    session.flush()
    refresh_results(session, run.environment)
    emit_choice_event(session, run, known, "shown")


def not_hidden(run_id: str) -> HubProblem:
    """Return the 404 problem of a run that is not hidden."""
    return HubProblem(404, "not_hidden", f"the run `{run_id}` is not hidden")


def find_managed_run(session: Session, caller: Identity, run_id: str) -> Run:
    """Return a locked run of an environment that the caller manages; raise a 404 or 403 problem otherwise."""
    run = runs.find(session, run_id)
    if not rights.may(caller, "manage", run.environment):
        raise rights.refusal(caller, "manage", run.environment)
    run_repository.lock_run(session, run)
    return run
