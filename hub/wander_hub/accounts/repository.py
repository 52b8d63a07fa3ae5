"""Queries on users and owners."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from wander_hub.accounts.models import Membership, Owner, User

NEIGHBORS = 50
"""Number of names before and after a missing name among which similar ones are searched."""


def user_named(session: Session, name: str) -> User | None:
    """Return the user of that name, or None."""
    return session.scalar(select(User).where(User.name == name))


def user_with_owners(session: Session, user_id: int) -> User:
    """Return a user with their memberships."""
    with_owners = selectinload(User.memberships).joinedload(Membership.owner)
    return session.scalars(select(User).options(with_owners).where(User.id == user_id)).one()


def users(session: Session) -> Sequence[User]:
    """Return all users with their memberships, by name."""
    with_owners = selectinload(User.memberships).joinedload(Membership.owner)
    return session.scalars(select(User).options(with_owners).order_by(User.name)).all()


def owner_named(session: Session, name: str) -> Owner | None:
    """Return the owner of that name, or None."""
    return session.scalar(select(Owner).where(Owner.name == name))


def lock_owner(session: Session, owner: Owner) -> None:
    """Lock an owner, so that other changes below it wait. On SQLite, any write already locks the database."""
    if session.get_bind().dialect.name != "sqlite":
        session.execute(select(Owner.id).where(Owner.id == owner.id).with_for_update(key_share=True))


def has_owner(session: Session, owner: Owner) -> bool:
    """Return whether an enabled user has the role of an owner; administrators do not count."""
    query = select(Membership.user_id).join(Membership.user)
    query = query.where(Membership.owner_id == owner.id, Membership.role == "owner")
    return session.scalar(query.where(User.disabled_at.is_(None)).limit(1)) is not None


def owners_around(session: Session, name: str) -> Sequence[str]:
    """Return the names of owners that are next to this name in alphabetical order."""
    after = select(Owner.name).where(Owner.name >= name).order_by(Owner.name).limit(NEIGHBORS)
    before = select(Owner.name).where(Owner.name < name).order_by(Owner.name.desc()).limit(NEIGHBORS)
    return [*session.scalars(after), *session.scalars(before)]
