"""Models as the API shows them, and permissions for changing them, which are those on the owner."""

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
"""Maximum number of an owner's models to search for a similar name."""
_SHORTEST = 6
"""Minimum length of a revision's prefix."""


def find(session: Session, owner: str, name: str) -> Model:
    """Return a model; raise a 404 problem if it does not exist and a 410 problem if it was deleted."""
    owner, name = names.normalize_owner(owner), names.normalize_environment(name)
    model = repository.model_named(session, owner, name)
    label = f"{owner[:80]}/{name[:80]}"
    if model is None:
        detail = f"there is no model `{label}` on this hub"
        raise HubProblem(404, "model_not_found", detail, hint=_near(session, owner, name))
    if model.deleted_at is not None:
        hint = "its name cannot be used again"
        raise HubProblem(410, "model_deleted", f"the model `{label}` was deleted", hint=hint)
    return model


def _near(session: Session, owner: str, name: str) -> str | None:
    namespace = accounts.owner_named(session, owner)
    models = repository.models_of(session, namespace.id, _MOST_NAMES) if namespace is not None else []
    similar = names.near(name, [model.name for model in models])
    close = " or ".join(f"`{owner}/{known}`" for known in similar)
    return f"did you mean {close}?" if close else None


def find_revision(session: Session, model: Model, word: str) -> Revision:
    """Return a revision that is not deleted: `latest`, or the one whose digest starts with `word`."""
    revisions = repository.revisions_of(session, model)
    label = f"{model.owner.name}/{model.name}"
    if word == LATEST:
        if (newest := latest_of(revisions)) is None:
            raise HubProblem(410, "revision_deleted", f"all revisions of `{label}` were deleted")
        return newest
    prefix = word.lower()
    matches = [row for row in revisions if len(word) >= _SHORTEST and row.revision.startswith(prefix)]
    if len(matches) != 1:
        detail = f"`{label}` has {'several revisions' if matches else 'no revision'} `{word[:64]}`"
        raise HubProblem(404, "revision_not_found", detail, hint=f"`wander model list {label}` lists them")
    if matches[0].deleted_at is not None:
        raise HubProblem(410, "revision_deleted", f"`{label}@{matches[0].revision[:12]}` was deleted")
    return matches[0]


def find_file(session: Session, model: Model, word: str, filename: str) -> RevisionFile:
    """Return a file of a revision; raise a 404 problem if it does not exist."""
    revision = find_revision(session, model, word)
    for file in revision.files:
        if file.filename == filename:
            return file
    hint = did_you_mean(filename[:100], [file.filename for file in revision.files])
    raise HubProblem(404, "file_not_found", f"the revision has no file `{filename[:100]}`", hint=hint)


def latest_of(revisions: Sequence[Revision]) -> Revision | None:
    """Return the newest revision that is not deleted and, if possible, not yanked; `revisions` has the newest
    first."""
    live = [revision for revision in revisions if revision.deleted_at is None]
    return next((revision for revision in live if not revision.yanked), live[0] if live else None)


def describe(session: Session, model: Model, base_url: str) -> ModelRevisions:
    """Return a model as the API shows it."""
    revisions = repository.revisions_of(session, model)
    latest = latest_of(revisions)
    return fill(
        ModelRevisions,
        model,
        owner=model.owner.name,
        latest=latest.revision if latest is not None else None,
        revisions=[describe_revision(revision, base_url) for revision in revisions],
    )


def describe_revision(revision: Revision, base_url: str) -> ModelRevision:
    """Return a revision as the API shows it."""
    model = revision.model
    label = f"{model.owner.name}/{model.name}"
    files_url = f"{base_url}/api/v1/models/{label}/revisions/{revision.revision}/files"
    files = revision.files if revision.deleted_at is None else []
    return fill(
        ModelRevision,
        revision,
        owner=model.owner.name,
        name=model.name,
        size=sum(file.size for file in revision.files),
        files=[fill(ModelFileInfo, file, url=f"{files_url}/{file.filename}") for file in files],
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
    """Return the model of a name, or None for a new one; raise if the caller may not push it or the name is
    invalid."""
    rights.owner_for(session, caller, "publish", owner.name)
    if not names.is_environment_name(name):
        hint = "use letters, digits and dashes, such as `ttt-master`"
        raise HubProblem(422, "bad_name", f"`{name[:80]}` cannot be the name of a model", hint=hint)
    held = repository.find_taken(session, owner.id, name)
    if held is None:
        return None
    label = f"{owner.name}/{held.name}"
    if held.deleted_at is not None:
        detail = f"the model `{label}` was deleted, and its name cannot be used again"
        raise HubProblem(409, "name_deleted", detail, hint="choose another name")
    if visibility not in (None, held.visibility):
        hint = f"run `wander model visibility {label} {visibility}` to change that"
        raise HubProblem(409, "visibility_differs", f"`{label}` is already {held.visibility}", hint=hint)
    return held


def model_for(session: Session, caller: Identity, permission: Permission, owner: str, name: str) -> Model:
    """Return a model, locked, if the caller has a permission on it; raise a 404, 410 or 403 problem
    otherwise."""
    model = find(session, owner, name)
    rights.owner_for(session, caller, permission, model.owner.name)
    accounts.lock_owner(session, model.owner)
    session.refresh(model, ["private", "internal", "deleted_at"])
    return model
