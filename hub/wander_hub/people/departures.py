"""Disables, enables and removes users: what lets them in ends at once, what they published stays."""

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
    """Let a user in no more; their roles wait for the day on which they are enabled."""
    user = lock_user(session, name)
    _require_another_administrator(session, user)
    user.disabled_at = user.disabled_at or now()
    return _end_access(session, user)


def enable_user(session: Session, name: str) -> ChangedUser:
    """Let a user in again, with a password or new tokens: the old ones have ended."""
    user = lock_user(session, name)
    if user.removed_at is not None:
        raise HubProblem(409, "user_removed", f"`{user.name}` was removed, which is for good")
    if user.disabled_at is None:
        return ChangedUser(user=info_of(session, user), ended_tokens=0, ownerless=[])
    changed = _end_access(session, user)  # a request that was under way may have made something
    user.disabled_at = None
    return changed.model_copy(update={"user": info_of(session, user), "ownerless": []})


def remove_user(session: Session, name: str) -> ChangedUser:
    """Take all roles from a user for good; nobody is given the name again."""
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
    """Return users by name, those that were removed with them; of a `word`, whose names have it."""
    confirmed = SecondFactor.confirmed_at.is_not(None)
    query = select(User, confirmed).outerjoin(SecondFactor, SecondFactor.user_id == User.id)
    query = query.where(User.name.contains(word.lower(), autoescape=True)) if word else query
    query = query.where(User.name > after).order_by(User.name).limit(limit)
    return [fill(UserInfo, one, second_factor=has_one) for one, has_one in session.execute(query)]


def info_of(session: Session, user: User) -> UserInfo:
    """Return a user as administrators see them."""
    return fill(UserInfo, user, second_factor=second_factor.second_factor_of(session, user.id).on)


def lock_user(session: Session, name: str) -> User:
    """Return a user; of two changes at once that could take the last administrator away, one waits."""
    name = names.normalize_owner(name)
    query = select(User).where((User.name == name) | User.admin).order_by(User.id)
    found = session.scalars(query.with_for_update(key_share=True).execution_options(populate_existing=True))
    user = next((one for one in found if one.name == name), None)
    if user is None:
        raise no_user(name)
    return user


def no_user(name: str) -> HubProblem:
    """Return the refusal of a name that no user has."""
    hint = "`wander-hub user list` names the users"
    return HubProblem(404, "user_not_found", f"there is no user `{name[:80]}`", hint=hint)


def _require_another_administrator(session: Session, user: User) -> None:
    others = select(User.id).where(User.admin, User.disabled_at.is_(None), User.id != user.id)
    if user.admin and session.scalar(others.limit(1)) is None:
        hint = "`wander-hub user add NAME --admin` makes another one"
        raise HubProblem(409, "last_administrator", f"`{user.name}` is the last administrator", hint=hint)


def _end_access(session: Session, user: User) -> ChangedUser:
    """End tokens, sessions and codes; say which owners no owner is left for but an administrator."""
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
