"""Roles on owners and environments, and the tokens that people make for themselves."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session
from wander.wire import Role, TokenInfo
from wander.wire.changes import CreatedToken, Member, NewToken

from wander_hub import names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.rights import repository, rights
from wander_hub.rights import tokens as token_service
from wander_hub.rights.models import Grant


def of_owner(session: Session, caller: Identity, name: str) -> list[Member]:
    """Return who has a role on an owner; for members alone."""
    return _members(session, rights.owner_for(session, caller, "read", name))


def set_role_on_owner(session: Session, caller: Identity, name: str, user: str, role: Role) -> list[Member]:
    """Give somebody a role on all environments of an owner."""
    owner = rights.owner_for(session, caller, "manage", name)
    accounts.lock_owner(session, owner)
    found = _user(session, user)
    membership = session.get(Membership, (owner.id, found.id))
    if membership is None:
        session.add(Membership(owner_id=owner.id, user_id=found.id, role=role))
    else:
        membership.role = role
    session.flush()
    _require_an_owner(session, owner)
    return _members(session, owner)


def remove_from_owner(session: Session, caller: Identity, name: str, user: str) -> list[Member]:
    """Remove somebody's role on an owner."""
    owner = rights.owner_for(session, caller, "manage", name)
    accounts.lock_owner(session, owner)
    membership = session.get(Membership, (owner.id, _user(session, user).id))
    if membership is None:
        raise _no_role(user, owner.name)
    session.delete(membership)
    session.flush()
    _require_an_owner(session, owner)
    return _members(session, owner)


def set_default_visibility(session: Session, caller: Identity, name: str, *, private: bool) -> Owner:
    """Choose what a new environment of an owner is."""
    owner = rights.owner_for(session, caller, "manage", name)
    owner.private_by_default = private
    return owner


def of_environment(session: Session, caller: Identity, owner: str, name: str) -> list[Member]:
    """Return who has a role on an environment, its owner's members with them; for members alone."""
    environment = environments.find(session, owner, name)
    if not identity_has_role(caller, environment):
        raise rights.refusal(caller, "read", environment)
    return _members_of(session, environment)


def identity_has_role(caller: Identity, environment: Environment) -> bool:
    """Tell whether the caller belongs to an environment, which the public does not."""
    return caller.may("read", environment.owner_id, environment.id, private=True)


def set_role_on_environment(
    session: Session, caller: Identity, owner: str, name: str, user: str, role: Role
) -> list[Member]:
    """Give somebody a role on one environment."""
    environment = rights.environment_for(session, caller, "manage", owner, name)
    found = _user(session, user)
    grant = session.get(Grant, (environment.id, found.id))
    if grant is None:
        session.add(Grant(environment_id=environment.id, user_id=found.id, role=role))
    else:
        grant.role = role
    session.flush()
    return _members_of(session, environment)


def remove_from_environment(
    session: Session, caller: Identity, owner: str, name: str, user: str
) -> list[Member]:
    """Remove somebody's role on one environment."""
    environment = rights.environment_for(session, caller, "manage", owner, name)
    grant = session.get(Grant, (environment.id, _user(session, user).id))
    if grant is None:
        raise _no_role(user, f"{environment.owner.name}/{environment.name}")
    session.delete(grant)
    session.flush()
    return _members_of(session, environment)


def new_token(session: Session, caller: Identity, wanted: NewToken) -> CreatedToken:
    """Make a token for the caller that does no more than it may."""
    rights.whole_token(caller)
    owner, environment = _target(session, caller, wanted)
    return token_service.create_token(
        session,
        caller.user_id,
        wanted.name,
        scopes=tuple(wanted.scopes),
        owner=owner,
        environment=environment,
        days=wanted.days,
    )


def tokens(session: Session, caller: Identity) -> list[TokenInfo]:
    """Return the caller's tokens, oldest first."""
    rights.whole_token(caller)
    return [token_service.token_info(one) for one in repository.tokens_of(session, caller.user)]


def revoke(session: Session, caller: Identity, prefix: str) -> TokenInfo:
    """End one of the caller's tokens; an administrator may end anybody's."""
    rights.whole_token(caller)
    user = None if caller.administers else caller.user
    return token_service.token_info(token_service.revoke_token(session, prefix, user=user))


def _target(session: Session, caller: Identity, wanted: NewToken) -> tuple[Owner | None, Environment | None]:
    if wanted.target is None:
        return None, None
    owner, slash, name = wanted.target.partition("/")
    if not slash:
        found = rights.find_owner(session, caller, owner)
        for scope in wanted.scopes:
            rights.owner_for(session, caller, scope, found.name)
        return found, None
    environment = environments.find(session, owner, name)
    for scope in wanted.scopes:
        if not rights.may(caller, scope, environment):
            raise rights.refusal(caller, scope, environment)
    return None, environment


def _members(session: Session, owner: Owner) -> list[Member]:
    found = accounts.memberships_of_owner(session, owner.id)
    return [Member(user=one.user.name, role=one.role, through="owner") for one in found]


def _members_of(session: Session, environment: Environment) -> list[Member]:
    grants = repository.grants_of_environment(session, environment.id)
    single = [Member(user=one.user.name, role=one.role, through="environment") for one in grants]
    return _members(session, environment.owner) + single


def _user(session: Session, name: str) -> User:
    found = accounts.user_named(session, names.normalise_owner(name))
    if found is None:
        known = names.normalise_owner(name)[:80]
        hint = f"whoever runs the hub adds users: `wander-hub user add {known}`"
        raise HubProblem(404, "user_not_found", f"there is no user `{name[:80]}`", hint=hint)
    return found


def _no_role(user: str, target: str) -> HubProblem:
    hint = f"`wander owner list {target}` shows who has one"
    return HubProblem(404, "no_role", f"`{user[:80]}` has no role on `{target}` itself", hint=hint)


def _require_an_owner(session: Session, owner: Owner) -> None:
    roles: Sequence[str] = [one.role for one in accounts.memberships_of_owner(session, owner.id)]
    if "owner" not in roles:
        hint = "make somebody else an owner first"
        raise HubProblem(409, "last_owner", f"`{owner.name}` would be left without an owner", hint=hint)
