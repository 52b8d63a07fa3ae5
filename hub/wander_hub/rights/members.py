"""Roles on owners and environments, and the tokens that people make for themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, cast

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.wire import Role, TokenInfo
from wander.wire.changes import CreatedToken, Member, NewToken

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.rights import invitations, repository, rights
from wander_hub.rights import tokens as token_service
from wander_hub.rights.models import Grant

_MOST_TOKENS = 100
"""That are good at once and that one user made."""


def members_of_owner(session: Session, caller: Identity, name: str) -> list[Member]:
    """Return who has a role on an owner; for members alone."""
    return _members(session, rights.owner_for(session, caller, "read", name))


def change_owner_role(
    session: Session, caller: Identity, name: str, user: str, role: Role | None
) -> list[Member]:
    """Give somebody a role on all environments of an owner, or invite them; None takes it away.

    Everybody may leave, and is told no more of those who stay.
    """
    user = names.normalize_owner(user)
    leaving = role is None and user == caller.user
    owner = rights.owner_for(session, caller, "read" if leaving else "manage", name)
    accounts.lock_owner(session, owner)
    had_owner = accounts.has_owner(session, owner)
    _change_role(session, caller, Membership, {"owner_id": owner.id}, owner.name, user, role)
    if had_owner and not accounts.has_owner(session, owner):
        hint = f"make somebody else an owner first: `wander env owner add {owner.name} USER --role owner`"
        raise HubProblem(409, "last_owner", f"`{owner.name}` would be left without an owner", hint=hint)
    return [] if leaving else _members(session, owner)


def members_of_environment(session: Session, caller: Identity, owner: str, name: str) -> list[Member]:
    """Return who has a role on an environment, its owner's members with them; for members alone."""
    environment = environments.find(session, owner, name)
    # `private`, since the public, to whom an open environment is readable, has no role on it.
    if not caller.may("read", environment.owner_id, environment.id, private=True):
        raise rights.refusal(caller, "read", environment)
    return _members_of(session, environment)


def change_environment_role(
    session: Session, caller: Identity, owner: str, name: str, user: str, role: Role | None
) -> list[Member]:
    """Give somebody a role on one environment, or invite them; None takes it away.

    Everybody may leave, and is told no more of those who stay.
    """
    user = names.normalize_owner(user)
    leaving = role is None and user == caller.user
    environment = rights.environment_for(session, caller, "read" if leaving else "manage", owner, name)
    if not caller.covers("manage", environment.owner_id, environment.id):
        raise rights.refusal(caller, "manage", environment)
    label = environment.label
    _change_role(session, caller, Grant, {"environment_id": environment.id}, label, user, role)
    return [] if leaving else _members_of(session, environment)


def _change_role(
    session: Session,
    caller: Identity,
    table: type[Membership | Grant],
    target: dict[str, int],
    label: str,
    name: str,
    role: Role | None,
) -> None:
    audit.about(session, user=name, role=role)
    column, number = next(iter(target.items()))
    query = select(table).join(table.user).where(User.name == name, getattr(table, column) == number)
    known = cast("Membership | Grant | None", session.scalar(query))
    if known is not None and known.role == "owner" and role != "owner":
        invitations.drop_made_by(session, known.user_id, target)
    if role is None:
        invited = invitations.withdraw_invitation(session, target, name)
        if known is not None:
            session.delete(known)
        elif not invited:
            hint = f"`wander env owner list {label}` shows who has one"
            raise HubProblem(404, "no_role", f"`{name[:80]}` has no role on `{label}` itself", hint=hint)
    elif known is not None:
        known.role = role
        invitations.withdraw_invitation(session, target, name)
    elif caller.administers:
        found = accounts.user_named(session, name)
        if found is None or found.removed_at is not None:
            hint = f"whoever runs the hub adds users: `wander-hub user add {name[:80]}`"
            raise HubProblem(404, "user_not_found", f"there is no user `{name[:80]}`", hint=hint)
        invitations.withdraw_invitation(session, target, name)
        session.add(table(**target, user_id=found.id, role=role))
    else:
        audit.about(session, invited=True)
        invitations.invite(session, caller, target, name, role)
    session.flush()


def new_token(session: Session, caller: Identity, wanted: NewToken) -> CreatedToken:
    """Make a token for the caller that does no more than the one it is made with, and no longer."""
    rights.require_whole_token(caller)
    if more := [one for one in wanted.scopes if one not in ("read", *caller.token.scopes)]:
        hint = "a token makes others of its own scopes alone; log in with one of wider scope"
        detail = f"this token is not of scope {', '.join(f'`{one}`' for one in more)} itself"
        raise HubProblem(403, "token_scope", detail, hint=hint)
    owner, environment = _target(session, caller, wanted)
    # Of two requests at once one waits, so that both count.
    session.get_one(User, caller.user_id, with_for_update={"key_share": True}, populate_existing=True)
    if (count := repository.count_live(session, caller.user_id)) >= _MOST_TOKENS:
        hint = "revoke those that are of no use any more: `wander auth token revoke PREFIX`"
        raise HubProblem(409, "too_many_tokens", f"you have {count} tokens that are good already", hint=hint)
    secret, token = token_service.make_token(
        session,
        caller.user_id,
        wanted.name,
        scopes=wanted.scopes,
        owner=owner,
        environment=environment,
        lifetime=timedelta(days=wanted.days) if wanted.days is not None else None,
        latest=caller.token.expires_at,
        parent_id=caller.token_id,
    )
    told = {"name": wanted.name, "scopes": wanted.scopes, "good_for": wanted.target, "days": wanted.days}
    audit.about(session, target=token.prefix, **told)
    return CreatedToken(**token_service.token_info(token).model_dump(), token=secret)


def list_tokens(session: Session, caller: Identity) -> list[TokenInfo]:
    """Return the caller's tokens, oldest first."""
    rights.require_whole_token(caller)
    return [token_service.token_info(one) for one in repository.tokens_of(session, caller.user)]


def revoke_own_token(session: Session, caller: Identity, prefix: str) -> TokenInfo:
    """End one of the caller's tokens; an administrator may end anybody's."""
    rights.require_whole_token(caller)
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
    query = select(User.name, Membership.role).join(Membership.user).where(Membership.owner_id == owner.id)
    found = session.execute(query.order_by(User.name))
    members = [Member(user=user, role=role, through="owner") for user, role in found]
    return members + _invited(session, {"owner_id": owner.id}, "owner")


def _members_of(session: Session, environment: Environment) -> list[Member]:
    grants = repository.grants_of_environment(session, environment.id)
    single = [Member(user=one.user.name, role=one.role, through="environment") for one in grants]
    invited = _invited(session, {"environment_id": environment.id}, "environment")
    return _members(session, environment.owner) + single + invited


def _invited(
    session: Session, target: dict[str, int], through: Literal["owner", "environment"]
) -> list[Member]:
    return [
        Member(user=one.name, role=one.role, through=through, pending_until=one.expires_at)
        for one in invitations.list_waiting(session, target)
    ]
