"""The API for changing pushed models: yank, delete, change visibility."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Query
from sqlalchemy.orm import Session
from wander.wire.changes import NewVisibility, Reason
from wander.wire.environments import visibility_of
from wander.wire.models import ModelRevision, ModelRevisions

from wander_hub import audit
from wander_hub.database import now
from wander_hub.http.boundary import Context, ForMaintainer, ForManager, audited
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.lifecycle.service import plain_reason
from wander_hub.models import repository, service
from wander_hub.models.models import Revision
from wander_hub.transfers import objects

router = HubRouter(prefix="/api/v1/models/{owner}/{name}", tags=["models"])

_REFUSALS = refusals(400, 401, 403, 404, 409, 410, 422)
Why = Annotated[str | None, Query(max_length=500, description="public reason")]


@router.put("/revisions/{revision}/yank", responses=_REFUSALS)
@audited("model.yank")
def yank_revision(
    context: ForMaintainer, owner: str, name: str, revision: str, body: Reason
) -> ModelRevision:
    """Make `latest` and leaderboards skip a revision. It can still be downloaded by its digest."""

    def yank(row: Revision) -> None:
        row.yanked, row.yanked_reason = True, plain_reason(body.reason) or row.yanked_reason

    return _change(context, owner, name, revision, yank)


@router.delete("/revisions/{revision}/yank", responses=_REFUSALS)
@audited("model.unyank")
def unyank_revision(context: ForMaintainer, owner: str, name: str, revision: str) -> ModelRevision:
    """Offer a yanked revision again."""

    def offer(row: Revision) -> None:
        row.yanked, row.yanked_reason = False, None

    return _change(context, owner, name, revision, offer)


def _change(
    context: Context, owner: str, name: str, revision: str, change: Callable[[Revision], None]
) -> ModelRevision:
    def record(session: Session) -> ModelRevision:
        model = service.model_for(session, context.caller, "maintain", owner, name)
        row = service.find_revision(session, model, revision)
        change(row)
        return service.describe_revision(row, context.base_url)

    return context.commit(record)


@router.put("/visibility", responses=_REFUSALS)
@audited("model.visibility")
def set_visibility(context: ForManager, owner: str, name: str, body: NewVisibility) -> ModelRevisions:
    """Make a model public, internal or private."""

    def record(session: Session) -> ModelRevisions:
        model = service.model_for(session, context.caller, "manage", owner, name)
        model.visibility = visibility_of(body.private, internal=body.internal)
        audit.about(session, visibility=model.visibility)
        session.flush()
        return service.describe(session, model, context.base_url)

    return context.commit(record)


@router.delete("/revisions/{revision}", status_code=204, responses=_REFUSALS)
@audited("model.delete")
def delete_revision(context: ForManager, owner: str, name: str, revision: str, reason: Why = None) -> None:
    """Delete the files of a revision permanently. The same files cannot be pushed again."""

    def record(session: Session) -> list[str]:
        model = service.model_for(session, context.caller, "manage", owner, name)
        return _drop([service.find_revision(session, model, revision)], reason)

    objects.discard(context.database, context.storage, context.commit(record))


@router.delete("", status_code=204, responses=_REFUSALS)
@audited("model.delete")
def delete_model(context: ForManager, owner: str, name: str, reason: Why = None) -> None:
    """Delete a model and all its files permanently. Its name cannot be used again."""

    def record(session: Session) -> list[str]:
        model = service.model_for(session, context.caller, "manage", owner, name)
        model.deleted_at = now()
        return _drop(repository.revisions_of(session, model), reason)

    objects.discard(context.database, context.storage, context.commit(record))


def _drop(revisions: Sequence[Revision], reason: str | None) -> list[str]:
    """Mark revisions as deleted; return the digests of their files."""
    live = [revision for revision in revisions if revision.deleted_at is None]
    for revision in live:
        revision.deleted_at, revision.yanked_reason = now(), plain_reason(reason)
    return [file.sha256 for revision in live for file in revision.files]
