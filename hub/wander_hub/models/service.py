"""Models as the outside sees them, and who may change them: rights on a model are those on its owner."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session
from wander.errors import did_you_mean
from wander.wire.environments import Visibility
from wander.wire.models import ModelFileInfo, ModelRevision, ModelRevisions

from wander_hub import names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner
from wander_hub.database import fill
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity, Permission
from wander_hub.models import repository
from wander_hub.models.models import Model, Revision, RevisionFile
from wander_hub.rights import rights

LATEST = "latest"
_MOST_NAMES = 1000
"""Of an owner, that are looked through for one that is nearly the one asked for."""
_SHORTEST = 6
"""Characters of a revision that may stand for the whole."""


def find(session: Session, owner: str, name: str) -> Model:
    """Return a model; raise a 404, or a 410 for a deleted one."""
    owner, name = names.normalize_owner(owner), names.normalize_environment(name)
    found = repository.model_named(session, owner, name)
    label = f"{owner[:80]}/{name[:80]}"
    if found is None:
        detail = f"there is no model `{label}` on this hub"
        raise HubProblem(404, "model_not_found", detail, hint=_near(session, owner, name))
    if found.deleted_at is not None:
        hint = "its name is never given again"
        raise HubProblem(410, "model_deleted", f"the model `{label}` was deleted", hint=hint)
    return found


def _near(session: Session, owner: str, name: str) -> str | None:
    held = accounts.owner_named(session, owner)
    known = (
        [one.name for one in repository.models_of(session, held.id, _MOST_NAMES)] if held is not None else []
    )
    close = " or ".join(f"`{owner}/{one}`" for one in names.near(name, known))
    return f"did you mean {close}?" if close else None


def find_revision(session: Session, model: Model, word: str) -> Revision:
    """Return a revision that may be had: `latest`, or the one whose digest begins so."""
    revisions = repository.revisions_of(session, model)
    label = f"{model.owner.name}/{model.name}"
    if word == LATEST:
        if (newest := latest_of(revisions)) is None:
            raise HubProblem(410, "revision_deleted", f"all revisions of `{label}` were deleted")
        return newest
    found = [one for one in revisions if len(word) >= _SHORTEST and one.revision.startswith(word.lower())]
    if len(found) != 1:
        detail = f"`{label}` has {'several revisions' if found else 'no revision'} `{word[:64]}`"
        raise HubProblem(404, "revision_not_found", detail, hint=f"`wander model list {label}` lists them")
    if found[0].deleted_at is not None:
        raise HubProblem(410, "revision_deleted", f"`{label}@{found[0].revision[:12]}` was deleted")
    return found[0]


def find_file(session: Session, model: Model, word: str, filename: str) -> RevisionFile:
    """Return a file of a revision."""
    revision = find_revision(session, model, word)
    for one in revision.files:
        if one.filename == filename:
            return one
    hint = did_you_mean(filename[:100], [one.filename for one in revision.files])
    raise HubProblem(404, "file_not_found", f"the revision has no file `{filename[:100]}`", hint=hint)


def latest_of(revisions: Sequence[Revision]) -> Revision | None:
    """Return the newest revision, the newest first, that is neither deleted nor, if possible, yanked."""
    live = [one for one in revisions if one.deleted_at is None]
    return next((one for one in live if not one.yanked), live[0] if live else None)


def describe(session: Session, model: Model, base_url: str) -> ModelRevisions:
    """Return a model as the API shows it."""
    revisions = repository.revisions_of(session, model)
    latest = latest_of(revisions)
    return fill(
        ModelRevisions,
        model,
        owner=model.owner.name,
        latest=latest.revision if latest is not None else None,
        revisions=[describe_revision(one, base_url) for one in revisions],
    )


def describe_revision(revision: Revision, base_url: str) -> ModelRevision:
    """Return a revision as the API shows it."""
    model = revision.model
    label = f"{model.owner.name}/{model.name}"
    place = f"{base_url}/api/v1/models/{label}/revisions/{revision.revision}/files"
    files = revision.files if revision.deleted_at is None else []
    return fill(
        ModelRevision,
        revision,
        owner=model.owner.name,
        name=model.name,
        size=sum(one.size for one in revision.files),
        files=[fill(ModelFileInfo, one, url=f"{place}/{one.filename}") for one in files],
        private=model.private,
        internal=model.internal,
        deleted=revision.deleted_at is not None,
        pushed_by=revision.pushed_by.name,
        url=page_of(revision, base_url),
    )


def page_of(revision: Revision, base_url: str) -> str:
    """Return the address of a revision's page."""
    model = revision.model
    return f"{base_url}/models/{model.owner.name}/{model.name}/{revision.revision[:12]}"


def require_pusher(
    session: Session, caller: Identity, owner: Owner, name: str, visibility: Visibility | None = None
) -> Model | None:
    """Return the model of a name, None for a new one; refuse who may not push there, and bad names."""
    rights.owner_for(session, caller, "publish", owner.name)
    if not names.is_environment_name(name):
        hint = "a name has letters, digits and dashes: `ttt-master`"
        raise HubProblem(422, "bad_name", f"`{name[:80]}` cannot be the name of a model", hint=hint)
    held = repository.find_taken(session, owner.id, name)
    if held is None:
        return None
    label = f"{owner.name}/{held.name}"
    if held.deleted_at is not None:
        detail = f"the model `{label}` was deleted; its name is not given again"
        raise HubProblem(409, "name_deleted", detail, hint="choose another name")
    if visibility not in (None, held.visibility):
        hint = f"`wander model visibility {label} {visibility}` changes that"
        raise HubProblem(409, "visibility_differs", f"`{label}` is {held.visibility} already", hint=hint)
    return held


def model_for(session: Session, caller: Identity, permission: Permission, owner: str, name: str) -> Model:
    """Return a model that the caller may change so, while others wait; raise 404, 410 or 403 otherwise."""
    model = find(session, owner, name)
    rights.owner_for(session, caller, permission, model.owner.name)
    accounts.lock_owner(session, model.owner)
    session.refresh(model, ["private", "internal", "deleted_at"])
    return model
