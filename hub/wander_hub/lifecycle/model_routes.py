"""The API that changes models after they were pushed: yanking, deletion, visibility."""

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
Why = Annotated[str | None, Query(max_length=500, description="shown to everybody")]


@router.put("/revisions/{revision}/yank", responses=_REFUSALS)
@audited("model.yank")
def yank_revision(
    context: ForMaintainer, owner: str, name: str, revision: str, body: Reason
) -> ModelRevision:
    """Have `latest` and leaderboards pass a revision over; whoever names it still gets it."""

    def yank(found: Revision) -> None:
        found.yanked, found.yanked_reason = True, plain_reason(body.reason) or found.yanked_reason

    return _change(context, owner, name, revision, yank)


@router.delete("/revisions/{revision}/yank", responses=_REFUSALS)
@audited("model.unyank")
def unyank_revision(context: ForMaintainer, owner: str, name: str, revision: str) -> ModelRevision:
    """Offer a yanked revision again."""

    def offer(found: Revision) -> None:
        found.yanked, found.yanked_reason = False, None

    return _change(context, owner, name, revision, offer)


def _change(
    context: Context, owner: str, name: str, revision: str, change: Callable[[Revision], None]
) -> ModelRevision:
    def record(session: Session) -> ModelRevision:
        model = service.model_for(session, context.caller, "maintain", owner, name)
        found = service.find_revision(session, model, revision)
        change(found)
        return service.describe_revision(found, context.base_url)

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
    """Delete the files of a revision for good; these very files are not taken again."""

    def record(session: Session) -> list[str]:
        model = service.model_for(session, context.caller, "manage", owner, name)
        return _drop([service.find_revision(session, model, revision)], reason)

    objects.discard(context.database, context.storage, context.commit(record))


@router.delete("", status_code=204, responses=_REFUSALS)
@audited("model.delete")
def delete_model(context: ForManager, owner: str, name: str, reason: Why = None) -> None:
    """Delete a model with all files for good; its name is never given again."""

    def record(session: Session) -> list[str]:
        model = service.model_for(session, context.caller, "manage", owner, name)
        model.deleted_at = now()
        return _drop(repository.revisions_of(session, model), reason)

    objects.discard(context.database, context.storage, context.commit(record))


def _drop(revisions: Sequence[Revision], reason: str | None) -> list[str]:
    """Leave tombstones of revisions; return the digests of their files."""
    live = [one for one in revisions if one.deleted_at is None]
    for one in live:
        one.deleted_at, one.yanked_reason = now(), plain_reason(reason)
    return [file.sha256 for one in live for file in one.files]
