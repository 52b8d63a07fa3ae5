"""Permission checks. Every service that changes something calls them in the transaction of the change."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends
from sqlalchemy.orm import Session

from wander_hub import names
from wander_hub.accounts import repository
from wander_hub.accounts.models import Owner
from wander_hub.environments import repository as environments
from wander_hub.environments import service
from wander_hub.environments.models import Environment
from wander_hub.http.boundary import Caller, Context, ForManager
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity, Permission

_WORDS: dict[Permission, str] = {
    "read": "read",
    "results": "post results to",
    "publish": "publish to",
    "maintain": "yank or deprecate",
    "manage": "manage",
}


def may(identity: Identity, permission: Permission, environment: Environment) -> bool:
    """Return whether the caller has a permission on an environment."""
    if identity.only_new == (environment.owner_id, environment.name):
        identity = replace(identity, only_environment=environment.id)  # it may be new in this transaction
    seen = {"private": environment.private, "internal": environment.internal}
    return identity.may(permission, environment.owner_id, environment.id, **seen)


def environment_for(
    session: Session, identity: Identity, permission: Permission, owner: str, name: str
) -> Environment:
    """Return an environment, locked, if the caller has a permission on it; raise 404, 410 or 403
    otherwise."""
    environment = service.find(session, owner, name)
    owner_id = environment.owner_id
    repository.lock_owner(session, environment.owner)
    environments.lock_environment(session, environment)
    if environment.owner_id != owner_id or environment.deleted_at is not None:
        hint = "send the same request again"
        raise HubProblem(409, "concurrent_change", "another request changed the same object", hint=hint)
    if not may(identity, permission, environment):
        raise refusal(identity, permission, environment)
    return environment


def owner_for(session: Session, identity: Identity, permission: Permission, name: str) -> Owner:
    """Return an owner on which the caller has a permission for all environments; raise 404 or 403
    otherwise."""
    owner = find_owner(session, identity, name)
    if not identity.may_as_owner(permission, owner.id):
        if permission == "read":  # only members may know that it exists
            raise _no_owner(identity, owner.name)
        raise _owner_refusal(identity, permission, owner.name)
    return owner


def require_new(session: Session, identity: Identity, owner: Owner, name: str) -> None:
    """Raise a 403 problem if the caller may not publish a new environment of this name."""
    if not identity.may_begin(owner.id, name):
        raise _owner_refusal(identity, "publish", owner.name)


def find_uploading_owner(session: Session, identity: Identity, name: str) -> Owner:
    """Return an owner under which the caller may publish something; the exact permission is checked later."""
    owner = find_owner(session, identity, name)
    if owner.name not in identity.owners and not identity.may_as_owner("publish", owner.id):
        raise _owner_refusal(identity, "publish", owner.name)
    return owner


def find_owner(session: Session, identity: Identity, name: str) -> Owner:
    """Return the owner of that name; raise a 404 problem if it does not exist."""
    name = names.normalize_owner(name)
    owner = repository.owner_named(session, name)
    if owner is None:
        raise _no_owner(identity, name)
    return owner


def _no_owner(identity: Identity, name: str) -> HubProblem:
    detail, hint = f"there is no owner `{name[:80]}`", _publishing_hint(identity)
    return HubProblem(404, "owner_not_found", detail, hint=hint)


def require_administrator(identity: Identity) -> None:
    """Raise a 403 problem if the caller is not an administrator."""
    if not identity.administers:
        raise HubProblem(403, "not_permitted", "only administrators may do this")


async def _require_administrator(caller: Caller) -> Identity:
    require_administrator(caller)
    return caller


async def _for_administrator(context: ForManager) -> Context:
    require_administrator(context.caller)
    return context


Administrator = Annotated[Identity, Depends(_require_administrator)]
ForAdministrator = Annotated[Context, Depends(_for_administrator)]


def require_whole_token(identity: Identity) -> None:
    """Reject a token with limited rights, so that it cannot create a more powerful token."""
    if not identity.whole:
        hint = "log in with a token of scope `manage` that is not limited to an owner or environment"
        raise HubProblem(403, "token_scope", "this token may not manage the whole account", hint=hint)


def refusal(identity: Identity, permission: Permission, environment: Environment) -> HubProblem:
    """Return the 403 problem of a caller who may see an environment but lacks a permission on it."""
    label = environment.label
    if not identity.covers(permission, environment.owner_id, environment.id):
        hint = "`wander auth whoami` shows what the token may do"
        detail = f"this token may not {_WORDS[permission]} `{label}`"
        return HubProblem(403, "token_scope", detail, hint=hint)
    hint = f"ask an owner for a role: `wander env owner add {label} {identity.user}`"
    detail = f"`{identity.user}` may not {_WORDS[permission]} `{label}`"
    return HubProblem(403, "not_permitted", detail, hint=hint)


def _owner_refusal(identity: Identity, permission: Permission, owner: str) -> HubProblem:
    verb = "publish under" if permission in ("publish", "maintain") else _WORDS[permission]
    detail = f"`{identity.user}` may not {verb} `{owner}`"
    return HubProblem(403, "not_permitted", detail, hint=_publishing_hint(identity))


def _publishing_hint(identity: Identity) -> str | None:
    owners = ", ".join(f"`{name}`" for name in identity.owners)
    return f"you can publish under {owners}" if owners else None
