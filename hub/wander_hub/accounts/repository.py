"""Queries on users, owners and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload, selectinload

from wander_hub.accounts.models import Membership, Owner, Token, User


def user_named(session: Session, name: str) -> User | None:
    """Return the user of that name."""
    return session.scalar(select(User).where(User.name == name))


def users(session: Session) -> Sequence[User]:
    """Return every user with memberships, by name."""
    with_owners = selectinload(User.memberships).joinedload(Membership.owner)
    return session.scalars(select(User).options(with_owners).order_by(User.name)).all()


def has_users(session: Session) -> bool:
    """Tell whether anybody was ever added."""
    return bool(session.scalar(select(func.count()).select_from(User)))


def owner_named(session: Session, name: str) -> Owner | None:
    """Return the owner of that name."""
    return session.scalar(select(Owner).where(Owner.name == name))


def lock_owner(session: Session, owner: Owner) -> None:
    """Make other publications under this owner wait (PostgreSQL; a write locks all of SQLite anyhow)."""
    session.execute(select(Owner.id).where(Owner.id == owner.id).with_for_update())


def owner_names(session: Session) -> Sequence[str]:
    """Return the name of every owner."""
    return session.scalars(select(Owner.name).order_by(Owner.name)).all()


def token_hashed(session: Session, sha256: str) -> Token | None:
    """Return the token with that hash, its user and the user's owners with it."""
    whole = joinedload(Token.user).selectinload(User.memberships).joinedload(Membership.owner)
    return session.scalar(select(Token).where(Token.sha256 == sha256).options(whole))


def tokens_of(session: Session, user: str | None) -> Sequence[Token]:
    """Return every token of one user or of all, oldest first."""
    query = select(Token).options(joinedload(Token.user)).order_by(Token.id)
    if user is not None:
        query = query.join(Token.user).where(User.name == user)
    return session.scalars(query).all()
