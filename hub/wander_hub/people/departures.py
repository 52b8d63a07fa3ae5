"""Disable, enable and remove users. Their access ends immediately, and what they published remains."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, delete, select, update
from sqlalchemy.orm import Session
from wander.wire.people import ChangedUser, UserInfo

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.database import fill, now
from wander_hub.http.problems import HubProblem
from wander_hub.people import second_factor, sessions
from wander_hub.people.models import OneTimeCode, SecondFactor
from wander_hub.rights import invitations
from wander_hub.rights.models import Grant, Token


def disable_user(session: Session, name: str) -> ChangedUser:
    """Disable a user and revoke all their tokens, sessions and codes. Their roles are kept."""
    user = lock_user(session, name)
    _require_another_administrator(session, user)
    user.disabled_at = user.disabled_at or now()
    return _end_access(session, user)


def enable_user(session: Session, name: str) -> ChangedUser:
    """Enable a disabled user. They need a password or new tokens, because the old tokens are revoked."""
    user = lock_user(session, name)
    if user.removed_at is not None:
        raise HubProblem(409, "user_removed", f"`{user.name}` was removed permanently")
    if user.disabled_at is None:
        return ChangedUser(user=info_of(session, user), ended_tokens=0, ownerless=[])
    changed = _end_access(session, user)  # concurrent requests may have created tokens or sessions
    user.disabled_at = None
    return changed.model_copy(update={"user": info_of(session, user), "ownerless": []})


def remove_user(session: Session, name: str) -> ChangedUser:
    """Remove all roles of a user permanently. The name is never available again."""
    user = lock_user(session, name)
    _require_another_administrator(session, user)
    user.removed_at = user.removed_at or now()
    user.disabled_at = user.disabled_at or user.removed_at
    changed = _end_access(session, user)
    user.admin, user.password_hash = False, None
    second_factor.remove_second_factor(session, user.id)
    for table in (Membership, Grant):
        session.execute(delete(table).where(table.user_id == user.id))
    return changed


def list_users(session: Session, *, after: str, limit: int, word: str = "") -> list[UserInfo]:
    """Return users by name, including removed ones; with `word`, only those whose names contain it."""
    confirmed = SecondFactor.confirmed_at.is_not(None)
    query = select(User, confirmed).outerjoin(SecondFactor, SecondFactor.user_id == User.id)
    query = query.where(User.name.contains(word.lower(), autoescape=True)) if word else query
    query = query.where(User.name > after).order_by(User.name).limit(limit)
    return [fill(UserInfo, user, second_factor=has_factor) for user, has_factor in session.execute(query)]


def info_of(session: Session, user: User) -> UserInfo:
    """Return a user's information for administrators."""
    return fill(UserInfo, user, second_factor=second_factor.second_factor_of(session, user.id).on)


def lock_user(session: Session, name: str) -> User:
    """Return a user with a lock that makes other changes to administrators wait, so that one administrator
    remains."""
    name = names.normalize_owner(name)
    query = select(User).where((User.name == name) | User.admin).order_by(User.id)
    rows = session.scalars(query.with_for_update(key_share=True).execution_options(populate_existing=True))
    user = next((row for row in rows if row.name == name), None)
    if user is None:
        raise no_user(name)
    return user


def no_user(name: str) -> HubProblem:
    """Return the 404 problem for a user that does not exist."""
    hint = "`wander-hub user list` lists the users"
    return HubProblem(404, "user_not_found", f"there is no user `{name[:80]}`", hint=hint)


def _require_another_administrator(session: Session, user: User) -> None:
    others = select(User.id).where(User.admin, User.disabled_at.is_(None), User.id != user.id)
    if user.admin and session.scalar(others.limit(1)) is None:
        hint = "`wander-hub user add NAME --admin` creates another administrator"
        raise HubProblem(409, "last_administrator", f"`{user.name}` is the last administrator", hint=hint)


def _end_access(session: Session, user: User) -> ChangedUser:
    """Revoke tokens, sessions and codes; the result lists the owners that only administrators can manage
    now."""
    live = update(Token).where(Token.user_id == user.id, Token.revoked_at.is_(None))
    ended = cast("CursorResult[Any]", session.execute(live.values(revoked_at=now()))).rowcount
    sessions.end_sessions(session, user.id)
    session.execute(delete(OneTimeCode).where(OneTimeCode.user_id == user.id))
    invitations.drop_of_user(session, user)
    owned = select(Owner).join(Membership, Membership.owner_id == Owner.id).order_by(Owner.id)
    owned = owned.where(Membership.user_id == user.id, Membership.role == "owner")
    session.flush()
    ownerless = []
    for owner in session.scalars(owned).all():
        accounts.lock_owner(session, owner)
        if not accounts.has_owner(session, owner):
            ownerless.append(owner.name)
    changed = ChangedUser(user=info_of(session, user), ended_tokens=ended, ownerless=sorted(ownerless))
    audit.about(session, target=user.name, ended_tokens=ended, ownerless=changed.ownerless)
    return changed
