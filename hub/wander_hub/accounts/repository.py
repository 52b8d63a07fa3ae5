"""Queries on users and owners."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from wander_hub.accounts.models import Membership, Owner, User


def user_named(session: Session, name: str) -> User | None:
    """Return the user of that name."""
    return session.scalar(select(User).where(User.name == name))


def users(session: Session) -> Sequence[User]:
    """Return every user with memberships, by name."""
    with_owners = selectinload(User.memberships).joinedload(Membership.owner)
    return session.scalars(select(User).options(with_owners).order_by(User.name)).all()


def owner_named(session: Session, name: str) -> Owner | None:
    """Return the owner of that name."""
    return session.scalar(select(Owner).where(Owner.name == name))


def lock_owner(session: Session, owner: Owner) -> None:
    """Make other changes under this owner wait (PostgreSQL; a write locks all of SQLite anyhow)."""
    if session.get_bind().dialect.name != "sqlite":
        session.execute(select(Owner.id).where(Owner.id == owner.id).with_for_update(key_share=True))


def owner_names(session: Session) -> Sequence[str]:
    """Return the name of every owner."""
    return session.scalars(select(Owner.name).order_by(Owner.name)).all()
