"""Users and owners."""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.wire import Role

from wander_hub import names
from wander_hub.accounts import repository
from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.database import now
from wander_hub.http.problems import HubProblem


def add_user(session: Session, name: str, *, admin: bool = False) -> User:
    """Add a user and the owner of the same name. Raises a problem if the name is invalid or taken."""
    owner = add_owner(session, name)
    user = User(name=owner.name, admin=admin, created_at=now())
    session.add(user)
    session.flush()
    session.add(Membership(owner_id=owner.id, user_id=user.id, role="owner"))
    return user


def add_owner(session: Session, name: str) -> Owner:
    """Add an owner without members. Raises a problem if the name is invalid, or taken, even by a removed
    user."""
    known = names.normalize_owner(name)
    if repository.user_named(session, known) or repository.owner_named(session, known):
        raise HubProblem(409, "name_taken", f"the name `{name}` is already taken", hint="choose another name")
    return new_owner(session, name)


def add_member(session: Session, owner_name: str, user: User, role: Role | None = None) -> Owner:
    """Give a user a role on an owner, which is created if necessary.

    The default role is `owner` for a new owner and `maintainer` for an existing one.
    """
    known = repository.owner_named(session, names.normalize_owner(owner_name))
    owner = known or new_owner(session, owner_name)
    membership = session.get(Membership, (owner.id, user.id))
    if membership is None:
        given = role or ("maintainer" if known else "owner")
        session.add(Membership(owner_id=owner.id, user_id=user.id, role=given))
    elif role is not None:
        membership.role = role
    return owner


def new_owner(session: Session, name: str) -> Owner:
    """Add an owner without members. Raises a problem if the name is invalid."""
    normalized = names.normalize_owner(name)
    if fault := names.owner_fault(normalized):
        raise HubProblem(422, "bad_name", f"the name `{name}` {fault}")
    owner = Owner(name=normalized, created_at=now())
    session.add(owner)
    session.flush()
    return owner
