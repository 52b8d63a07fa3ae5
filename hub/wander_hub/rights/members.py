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
"""Maximum number of valid tokens that one user may create."""


def members_of_owner(session: Session, caller: Identity, name: str) -> list[Member]:
    """Return the members of an owner. Only members may see them."""
    return _members(session, rights.owner_for(session, caller, "read", name))


def change_owner_role(
    session: Session, caller: Identity, name: str, user: str, role: Role | None
) -> list[Member]:
    """Set a user's role on an owner, or invite them; None removes the role.

    Any member may leave. The result is then empty, because the caller may no longer see the remaining
    members.
    """
    user = names.normalize_owner(user)
    leaving = role is None and user == caller.user
    owner = rights.owner_for(session, caller, "read" if leaving else "manage", name)
    accounts.lock_owner(session, owner)
    had_owner = accounts.has_owner(session, owner)
    _change_role(session, caller, Membership, {"owner_id": owner.id}, owner.name, user, role)
    if had_owner and not accounts.has_owner(session, owner):
        hint = f"give someone else the role first: `wander env owner add {owner.name} USER --role owner`"
        raise HubProblem(409, "last_owner", f"`{owner.name}` would have no owner left", hint=hint)
    return [] if leaving else _members(session, owner)


def members_of_environment(session: Session, caller: Identity, owner: str, name: str) -> list[Member]:
    """Return the members of an environment, including those of its owner. Only members may see them."""
    environment = environments.find(session, owner, name)
    # `private=True`, because reading a public environment does not require a role.
    if not caller.may("read", environment.owner_id, environment.id, private=True):
        raise rights.refusal(caller, "read", environment)
    return _members_of(session, environment)


def change_environment_role(
    session: Session, caller: Identity, owner: str, name: str, user: str, role: Role | None
) -> list[Member]:
    """Set a user's role on one environment, or invite them; None removes the role.

    Any member may leave. The result is then empty, because the caller may no longer see the remaining
    members.
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
            hint = f"`wander env owner list {label}` lists the members"
            raise HubProblem(404, "no_role", f"`{name[:80]}` has no role on `{label}` itself", hint=hint)
    elif known is not None:
        known.role = role
        invitations.withdraw_invitation(session, target, name)
    elif caller.administers:
        new_member = accounts.user_named(session, name)
        if new_member is None or new_member.removed_at is not None:
            hint = f"the hub's operator can add users: `wander-hub user add {name[:80]}`"
            raise HubProblem(404, "user_not_found", f"there is no user `{name[:80]}`", hint=hint)
        invitations.withdraw_invitation(session, target, name)
        session.add(table(**target, user_id=new_member.id, role=role))
    else:
        audit.about(session, invited=True)
        invitations.invite(session, caller, target, name, role)
    session.flush()


def new_token(session: Session, caller: Identity, wanted: NewToken) -> CreatedToken:
    """Create a token for the caller whose scopes and lifetime do not exceed those of the token in use."""
    rights.require_whole_token(caller)
    if more := [scope for scope in wanted.scopes if scope not in ("read", *caller.token.scopes)]:
        hint = "a token can only create tokens with its own scopes; log in with a token of wider scope"
        detail = f"this token does not have the scope {', '.join(f'`{scope}`' for scope in more)} itself"
        raise HubProblem(403, "token_scope", detail, hint=hint)
    owner, environment = _target(session, caller, wanted)
    # Lock the user, so that simultaneous requests are counted correctly.
    session.get_one(User, caller.user_id, with_for_update={"key_share": True}, populate_existing=True)
    if (count := repository.count_live(session, caller.user_id)) >= _MOST_TOKENS:
        hint = "revoke tokens that you no longer need: `wander auth token revoke PREFIX`"
        raise HubProblem(409, "too_many_tokens", f"you already have {count} valid tokens", hint=hint)
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
    details = {"name": wanted.name, "scopes": wanted.scopes, "good_for": wanted.target, "days": wanted.days}
    audit.about(session, target=token.prefix, **details)
    return CreatedToken(**token_service.token_info(token).model_dump(), token=secret)


def list_tokens(session: Session, caller: Identity) -> list[TokenInfo]:
    """Return the caller's tokens, oldest first."""
    rights.require_whole_token(caller)
    return [token_service.token_info(token) for token in repository.tokens_of(session, caller.user)]


def revoke_own_token(session: Session, caller: Identity, prefix: str) -> TokenInfo:
    """Revoke one of the caller's tokens. Administrators may revoke anyone's tokens."""
    rights.require_whole_token(caller)
    user = None if caller.administers else caller.user
    return token_service.token_info(token_service.revoke_token(session, prefix, user=user))


def _target(session: Session, caller: Identity, wanted: NewToken) -> tuple[Owner | None, Environment | None]:
    if wanted.target is None:
        return None, None
    owner, slash, name = wanted.target.partition("/")
    if not slash:
        target_owner = rights.find_owner(session, caller, owner)
        for scope in wanted.scopes:
            rights.owner_for(session, caller, scope, target_owner.name)
        return target_owner, None
    environment = environments.find(session, owner, name)
    for scope in wanted.scopes:
        if not rights.may(caller, scope, environment):
            raise rights.refusal(caller, scope, environment)
    return None, environment


def _members(session: Session, owner: Owner) -> list[Member]:
    query = select(User.name, Membership.role).join(Membership.user).where(Membership.owner_id == owner.id)
    rows = session.execute(query.order_by(User.name))
    members = [Member(user=user, role=role, through="owner") for user, role in rows]
    return members + _invited(session, {"owner_id": owner.id}, "owner")


def _members_of(session: Session, environment: Environment) -> list[Member]:
    grants = repository.grants_of_environment(session, environment.id)
    single = [Member(user=grant.user.name, role=grant.role, through="environment") for grant in grants]
    invited = _invited(session, {"environment_id": environment.id}, "environment")
    return _members(session, environment.owner) + single + invited


def _invited(
    session: Session, target: dict[str, int], through: Literal["owner", "environment"]
) -> list[Member]:
    return [
        Member(user=invited.name, role=invited.role, through=through, pending_until=invited.expires_at)
        for invited in invitations.list_waiting(session, target)
    ]
