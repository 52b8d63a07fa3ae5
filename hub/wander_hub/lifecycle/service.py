"""Changes of published environments and versions.

Every function checks the caller's permission, changes rows and renders the index pages in the given session,
so that one transaction shows either all of a change or nothing.
"""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.wire.changes import NewStatus, TransferTarget
from wander.wire.environments import Visibility

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner
from wander_hub.database import now
from wander_hub.environments import documents, repository, service
from wander_hub.environments.models import Environment, FormerName, Version
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.index import service as index
from wander_hub.leaderboards import environment_listing
from wander_hub.publishers import service as publishers
from wander_hub.quotas import service as quotas
from wander_hub.rights import invitations, rights
from wander_hub.rights import repository as roles
from wander_hub.settings import Settings
from wander_hub.webhooks import outbox
from wander_hub.webhooks.events import describe_version as describe


def yank(
    session: Session,
    caller: Identity,
    owner: str,
    name: str,
    version: str,
    reason: str | None = None,
    *,
    undo: bool = False,
) -> tuple[Environment, Version]:
    """Make installers skip a version unless its exact number is requested (PEP 592); `undo` reverts this."""
    environment = rights.environment_for(session, caller, "maintain", owner, name)
    yanked = _present_version(session, environment, version)
    if undo:
        yanked.yanked, yanked.yanked_reason = False, None
    elif not yanked.yanked or plain_reason(reason):  # yanking again without a reason keeps the first reason
        yanked.yanked, yanked.yanked_reason = True, plain_reason(reason)
    _refresh(session, environment)
    audit.about(session, reason=yanked.yanked_reason)
    outbox.tell(session, environment, "version.yanked", lambda: describe(session, environment, yanked))
    return environment, yanked


def delete_version(
    session: Session, caller: Identity, owner: str, name: str, version: str, reason: str | None
) -> tuple[Environment, Version, list[str]]:
    """Mark a version as deleted; also return the digests of its files, to discard after the commit."""
    environment = rights.environment_for(session, caller, "manage", owner, name)
    deleted = _present_version(session, environment, version)
    deleted.deleted_at, deleted.deleted_reason = now(), plain_reason(reason)
    _refresh(session, environment)
    audit.about(session, reason=deleted.deleted_reason)
    return environment, deleted, _digests(session, deleted)


def delete_environment(
    session: Session, caller: Identity, owner: str, name: str, reason: str | None
) -> list[str]:
    """Mark an environment and all its versions as deleted; return the digests of its files."""
    environment = rights.environment_for(session, caller, "manage", owner, name)
    digests: list[str] = []
    for listed in repository.versions_of(session, environment):
        if listed.deleted_at is None:
            version = service.find_version(session, environment, listed.version)
            version.deleted_at, version.deleted_reason = now(), plain_reason(reason)
            digests += _digests(session, version)
    environment.deleted_at = now()
    audit.about(session, reason=plain_reason(reason))
    environment.listed = False
    _drop_roles(session, environment)
    publishers.drop_of_environment(session, environment.owner_id, environment.name)
    _refresh(session, environment)
    return digests


def set_status(session: Session, caller: Identity, owner: str, name: str, wanted: NewStatus) -> Environment:
    """Deprecate, archive or quarantine an environment, or undo that."""
    environment = rights.environment_for(session, caller, "maintain", owner, name)
    audit.about(session, status=wanted.status, reason=plain_reason(wanted.reason))
    if wanted.status == "quarantined":
        rights.require_administrator(caller)
        if not plain_reason(wanted.reason):
            raise HubProblem(422, "reason_needed", "a quarantine needs a reason, which is public")
        environment.quarantine_reason = plain_reason(wanted.reason)
    elif wanted.status == "active" and environment.quarantine_reason is not None:
        rights.require_administrator(caller)
        environment.quarantine_reason = None
    else:
        archives = "archived" in (wanted.status, environment.status)
        if archives and not rights.may(caller, "manage", environment):
            raise rights.refusal(caller, "manage", environment)
        environment.status = wanted.status
        environment.status_reason = plain_reason(wanted.reason) if wanted.status != "active" else None
        environment.successor = _successor(session, wanted) if wanted.status == "deprecated" else None
    _refresh(session, environment)
    return environment


def set_visibility(
    session: Session, caller: Identity, owner: str, name: str, wanted: Visibility
) -> Environment:
    """Make an environment public, internal or private."""
    environment = rights.environment_for(session, caller, "manage", owner, name)
    environment.visibility = wanted
    audit.about(session, visibility=wanted)
    _refresh(session, environment)
    return environment


def move(
    session: Session, settings: Settings, caller: Identity, owner: str, name: str, place: TransferTarget
) -> Environment:
    """Move an environment to another owner, another name or both; the old address redirects permanently.

    Trusted publishers of the old name are removed. If the owner changes, roles and tokens are removed as
    well, because the old owner chose them.
    """
    namespaces = (rights.find_owner(session, caller, label) for label in (owner, place.owner))
    both = {namespace.id: namespace for namespace in namespaces}
    for _, namespace in sorted(both.items()):  # lock in a fixed order to avoid deadlocks between transfers
        accounts.lock_owner(session, namespace)
    environment = rights.environment_for(session, caller, "manage", owner, name)
    old_owner, old_name = environment.owner, environment.name
    target = rights.owner_for(session, caller, "publish", place.owner)
    new_name = _new_name(place.name) if place.name is not None else old_name
    if (target.id, new_name) == (old_owner.id, old_name):
        audit.nothing_done(session)
        return environment
    audit.about(session, to=f"{target.name}/{new_name}")
    carried = {new_name, *index.projects_of(session, environment)}
    if target.id == old_owner.id:
        carried = {new_name}
    for carried_name in sorted(carried):
        _claim(session, target, carried_name, environment)
    session.add(
        FormerName(owner_id=old_owner.id, name=old_name, environment_id=environment.id, moved_at=now())
    )
    environment.owner, environment.owner_id, environment.name = target, target.id, new_name
    publishers.drop_of_environment(session, old_owner.id, old_name)
    if target.id != old_owner.id:
        _drop_roles(session, environment)
        for former in sorted(carried - {new_name}):
            session.add(
                FormerName(owner_id=target.id, name=former, environment_id=environment.id, moved_at=now())
            )
    _refresh(session, environment)
    if target.id != old_owner.id:
        index.write_root(session, old_owner)
        quotas.require_room(session, settings, target, quotas.OF_VERSIONS)
    return environment


def _present_version(session: Session, environment: Environment, version: str) -> Version:
    present = service.find_version(session, environment, version)
    if present.deleted_at is not None:
        label = f"{environment.label}@{present.version}"
        raise HubProblem(410, "version_deleted", f"`{label}` was deleted")
    return present


def _digests(session: Session, version: Version) -> list[str]:
    """Return the digests of all objects of a version."""
    attached = documents.documents_of(session, version)
    return [file.sha256 for file in version.files] + [document.sha256 for document in attached]


def _refresh(session: Session, environment: Environment) -> None:
    """Update listings and index pages."""
    session.flush()
    environment_listing.refresh(session, environment)
    index.write_pages(session, environment)


def _drop_roles(session: Session, environment: Environment) -> None:
    for grant in roles.grants_of_environment(session, environment.id):
        session.delete(grant)
    invitations.drop_all(session, {"environment_id": environment.id})
    for token in roles.tokens_bound_to(session, environment.id):
        token.revoked_at = token.revoked_at or now()


def _claim(session: Session, owner: Owner, name: str, environment: Environment) -> None:
    """Raise if a name is taken; a former name of the same environment is free."""
    held = repository.find_taken(session, owner.id, name)
    if isinstance(held, FormerName) and held.environment_id == environment.id:
        session.delete(held)
        session.flush()
    elif held is not None and held is not environment:
        detail = f"the name `{owner.name}/{name}` is already taken, or was used before"
        raise HubProblem(409, "name_taken", detail, hint="choose another name")


def _new_name(name: str) -> str:
    normal = names.normalize_environment(name)
    if not names.is_environment_name(normal):
        raise HubProblem(422, "bad_name", f"`{name[:80]}` is not a valid name of an environment")
    return normal


def _successor(session: Session, wanted: NewStatus) -> str | None:
    if wanted.successor is None:
        return None
    owner, slash, name = wanted.successor.partition("/")
    if not slash:
        raise HubProblem(422, "invalid_request", "`successor` must have the form `owner/name`")
    successor = service.resolve(session, owner, name)
    return successor.label


def plain_reason(reason: str | None) -> str | None:
    """Return a reason on one line, without control characters, because pages and terminals show it."""
    words = " ".join((reason or "").split())
    return "".join(letter for letter in words if letter.isprintable()) or None
