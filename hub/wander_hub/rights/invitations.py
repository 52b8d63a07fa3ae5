"""Invitations to a role, addressed to a name.

Whether a user of that name exists is never checked, so an invitation does not reveal it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, Select, delete, exists, func, literal, or_, select
from sqlalchemy.orm import Session, joinedload
from wander.wire import Role
from wander.wire.people import InvitationInfo

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Membership, User
from wander_hub.database import fill, now
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity, outranks
from wander_hub.rights import rights
from wander_hub.rights.models import Grant, Invitation

_LASTS = timedelta(days=14)
_MOST = 100
"""Maximum number of pending invitations of one owner or one environment."""

Target = Mapping[str, int]
"""Either `owner_id` or `environment_id`."""


def invite(session: Session, caller: Identity, target: Target, name: str, role: Role) -> None:
    """Invite a name to a role for 14 days, or update an existing invitation."""
    if not names.is_owner_name(name):
        raise HubProblem(422, "bad_name", f"`{name[:80]}` is not a valid user name")
    session.execute(delete(Invitation).where(Invitation.expires_at <= now()))
    invitation = session.scalar(select(Invitation).where(*_at(target), Invitation.name == name))
    if invitation is None:
        count = session.scalar(select(func.count()).select_from(Invitation).where(*_at(target)))
        if count is not None and count >= _MOST:
            hint = "withdraw some of them: `wander env owner remove OWNER NAME`"
            raise HubProblem(409, "too_many_invitations", f"{count} invitations are pending", hint=hint)
        invitation = Invitation(**target, name=name, created_at=now())
        session.add(invitation)
    invitation.role, invitation.invited_by_id, invitation.expires_at = role, caller.user_id, now() + _LASTS


def withdraw_invitation(session: Session, target: Target, name: str) -> bool:
    """Withdraw an invitation; return whether it existed."""
    gone = session.execute(delete(Invitation).where(*_at(target), Invitation.name == name))
    return cast("CursorResult[Any]", gone).rowcount > 0


def list_waiting(session: Session, target: Target) -> Sequence[Invitation]:
    """Return the pending invitations, by name."""
    query = select(Invitation).where(*_at(target), Invitation.expires_at > now())
    return session.scalars(query.order_by(Invitation.name)).all()


def drop_all(session: Session, target: Target) -> None:
    """Delete all invitations to an owner or an environment."""
    session.execute(delete(Invitation).where(*_at(target)))


def drop_made_by(session: Session, user_id: int, target: Target) -> None:
    """Delete the invitations by a user who has lost the owner role on the target."""
    below = select(Environment.id).where(Environment.owner_id == target.get("owner_id"))
    of_them = or_(*_at(target), Invitation.environment_id.in_(below))
    session.execute(delete(Invitation).where(Invitation.invited_by_id == user_id, of_them))


def drop_of_user(session: Session, user: User) -> None:
    """Delete the invitations that a user made.

    Invitations to the user remain, although only they could accept them. Otherwise the inviter would learn
    that the user exists.
    """
    session.execute(delete(Invitation).where(Invitation.invited_by_id == user.id))


def invitations_of_caller(session: Session, caller: Identity) -> list[InvitationInfo]:
    """Return the caller's pending invitations."""
    rights.require_whole_token(caller)
    return [_info(invitation) for invitation in session.scalars(_of(caller).order_by(Invitation.id))]


def accept_invitation(session: Session, caller: Identity, number: int) -> InvitationInfo:
    """Give the caller the role of an invitation; if they have a higher role, they keep it."""
    invitation = _lock(session, caller, number)
    key = {"user_id": caller.user_id, **_target_of(invitation)}
    table = Membership if invitation.environment_id is None else Grant
    known = session.get(Membership, key) if table is Membership else session.get(Grant, key)
    if known is None:
        session.add(table(**key, role=invitation.role))
    elif outranks(invitation.role, known.role):
        known.role = invitation.role
    return _end(session, invitation)


def decline_invitation(session: Session, caller: Identity, number: int) -> InvitationInfo:
    """Decline an invitation of the caller."""
    return _end(session, _lock(session, caller, number))


def _lock(session: Session, caller: Identity, number: int) -> Invitation:
    """Lock and return an invitation of the caller, checked again once the roles cannot change anymore."""
    rights.require_whole_token(caller)
    # Disabling or removing a user also locks the user first and then deletes their roles.
    user = session.get_one(User, caller.user_id, with_for_update={"key_share": True}, populate_existing=True)
    query = _of(caller).where(Invitation.id == number, literal(user.disabled_at is None))
    if (invitation := session.scalar(query)) is not None:
        environment = invitation.environment
        owner = environment.owner if environment is not None else invitation.owner
        assert owner is not None  # every invitation has an owner or an environment
        accounts.lock_owner(session, owner)
        if environment is not None:
            environments.lock_environment(session, environment)
        invitation = session.scalar(query.execution_options(populate_existing=True))
    if invitation is None:
        hint = "your account page lists your invitations"
        raise HubProblem(404, "invitation_not_found", f"you have no invitation {number}", hint=hint)
    return invitation


def _end(session: Session, invitation: Invitation) -> InvitationInfo:
    info = _info(invitation)
    owner = info.target.partition("/")[0]
    audit.about(session, owner=owner, target=info.target, role=info.role, invited_by=info.invited_by)
    session.delete(invitation)
    return info


def _of(caller: Identity) -> Select[Invitation]:
    whole = joinedload(Invitation.environment).joinedload(Environment.owner)
    options = (joinedload(Invitation.owner), whole, joinedload(Invitation.invited_by))
    mine = (Invitation.name == caller.user, Invitation.expires_at > now(), _inviter_may())
    return select(Invitation).where(*mine).options(*options)


def _inviter_may() -> ColumnElement[bool]:
    """Return the condition that the inviter still has the right to invite."""
    environment = select(Environment.owner_id).where(Environment.id == Invitation.environment_id)
    owner_id = func.coalesce(Invitation.owner_id, environment.scalar_subquery())
    roles = [
        exists().where(table.user_id == Invitation.invited_by_id, table.role == "owner", at)
        for table, at in (
            (Membership, Membership.owner_id == owner_id),
            (Grant, Grant.environment_id == Invitation.environment_id),
        )
    ]
    inviter = (User.id == Invitation.invited_by_id, User.disabled_at.is_(None))
    return exists().where(*inviter, or_(User.admin, *roles))


def _at(target: Target) -> list[ColumnElement[bool]]:
    return [getattr(Invitation, column) == value for column, value in target.items()]


def _target_of(invitation: Invitation) -> dict[str, int | None]:
    if invitation.environment_id is None:
        return {"owner_id": invitation.owner_id}
    return {"environment_id": invitation.environment_id}


def _info(invitation: Invitation) -> InvitationInfo:
    owner, environment = invitation.owner, invitation.environment
    target = owner.name if owner is not None else ""
    if environment is not None:
        target = environment.label
    return fill(InvitationInfo, invitation, target=target, invited_by=invitation.invited_by.name)
