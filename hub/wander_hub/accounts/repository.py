"""Queries on users, owners, roles and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, joinedload, selectinload

from wander_hub.accounts.models import Grant, Membership, Owner, Token, User
from wander_hub.environments.models import Environment

_TARGET = (joinedload(Token.owner), joinedload(Token.environment).joinedload(Environment.owner))
"""Loads what a token is good for."""


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
    """Make other changes under this owner wait (PostgreSQL; a write locks all of SQLite anyhow)."""
    if session.get_bind().dialect.name != "sqlite":
        session.execute(select(Owner.id).where(Owner.id == owner.id).with_for_update())


def owner_names(session: Session) -> Sequence[str]:
    """Return the name of every owner."""
    return session.scalars(select(Owner.name).order_by(Owner.name)).all()


def token_hashed(session: Session, sha256: str) -> Token | None:
    """Return the token with that hash, and what its user may do with it."""
    user = joinedload(Token.user)
    whole = (
        user.joinedload(User.memberships).joinedload(Membership.owner),
        user.selectinload(User.grants),
        *_TARGET,
    )
    return session.scalars(select(Token).where(Token.sha256 == sha256).options(*whole)).unique().first()


def owners_of_environments(session: Session, ids: Sequence[int]) -> dict[int, Owner]:
    """Return the owner of each environment."""
    query = select(Environment.id, Owner).join(Environment.owner).where(Environment.id.in_(ids))
    return {environment: owner for environment, owner in session.execute(query)} if ids else {}


def environment_id(session: Session, owner_id: int, name: str) -> int | None:
    """Return the id of an environment by its present name, seen or unseen."""
    query = select(Environment.id).where(Environment.owner_id == owner_id, Environment.name == name)
    return session.scalar(query)


def tokens_of(session: Session, user: str | None) -> Sequence[Token]:
    """Return every token of one user or of all, oldest first."""
    query = select(Token).options(joinedload(Token.user), *_TARGET).order_by(Token.id)
    if user is not None:
        query = query.join(Token.user).where(User.name == user)
    return session.scalars(query).all()


def tokens_bound_to(session: Session, environment_id: int) -> Sequence[Token]:
    """Return the tokens that are good for one environment alone."""
    return session.scalars(select(Token).where(Token.environment_id == environment_id)).all()


def memberships_of_owner(session: Session, owner_id: int) -> Sequence[Membership]:
    """Return who has a role on an owner, by name."""
    query = select(Membership).join(Membership.user).options(joinedload(Membership.user))
    return session.scalars(query.where(Membership.owner_id == owner_id).order_by(User.name)).all()


def grants_of_environment(session: Session, environment_id: int) -> Sequence[Grant]:
    """Return who has a role on one environment, by name."""
    query = select(Grant).join(Grant.user).options(joinedload(Grant.user))
    return session.scalars(query.where(Grant.environment_id == environment_id).order_by(User.name)).all()


def is_closed_to(session: Session, owner: str, roles: Sequence[int], grants: Sequence[int]) -> bool:
    """Tell whether an owner has private environments and none of them is for somebody with these roles."""
    private = select(Environment.id).join(Environment.owner).where(Owner.name == owner, Environment.private)
    if session.scalar(private.limit(1)) is None:
        return False
    mine = private.where(or_(Environment.owner_id.in_(roles), Environment.id.in_(grants)))
    return session.scalar(mine.limit(1)) is None
