"""Queries on tokens, and on roles on single environments."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, joinedload
from wander.wire import Role

from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.database import now
from wander_hub.environments.models import Environment
from wander_hub.environments.repository import visible
from wander_hub.rights.models import Grant, Token

_TARGET = (joinedload(Token.owner), joinedload(Token.environment).joinedload(Environment.owner))
"""Loader options for the owner or environment that limits a token."""


def token_hashed(session: Session, sha256: str) -> Token | None:
    """Return the token with this hash, with its user, their memberships, and its target."""
    user = joinedload(Token.user).joinedload(User.memberships).joinedload(Membership.owner)
    query = select(Token).where(Token.sha256 == sha256).options(user, *_TARGET)
    return session.scalars(query).unique().first()


def owners_of_environments(session: Session, ids: Sequence[int]) -> dict[int, Owner]:
    """Return the owner of each environment."""
    query = select(Environment.id, Owner).join(Environment.owner).where(Environment.id.in_(ids))
    return {environment: owner for environment, owner in session.execute(query)} if ids else {}


def tokens_of(session: Session, user: str | None) -> Sequence[Token]:
    """Return all tokens of one user or of all users, oldest first."""
    query = select(Token).options(joinedload(Token.user), *_TARGET).order_by(Token.id)
    if user is not None:
        query = query.join(Token.user).where(User.name == user)
    return session.scalars(query).all()


def count_live(session: Session, user_id: int) -> int:
    """Return the number of a user's valid tokens."""
    ends = or_(Token.expires_at.is_(None), Token.expires_at > now())
    live = select(func.count()).where(Token.user_id == user_id, Token.revoked_at.is_(None), ends)
    return session.scalar(live) or 0


def tokens_with_prefix(session: Session, prefix: str) -> Sequence[Token]:
    """Return the tokens with this prefix, which listings show."""
    query = select(Token).options(joinedload(Token.user), joinedload(Token.owner))
    return session.scalars(query.where(Token.prefix == prefix)).all()


def tokens_bound_to(session: Session, environment_id: int) -> Sequence[Token]:
    """Return the tokens that are limited to one environment."""
    return session.scalars(select(Token).where(Token.environment_id == environment_id)).all()


def tokens_made_with(session: Session, ids: Sequence[int]) -> Sequence[Token]:
    """Return the tokens that were created with one of these tokens."""
    return session.scalars(select(Token).where(Token.parent_id.in_(ids))).all()


def grants_of_user(session: Session, user_id: int) -> list[tuple[str, Role]]:
    """Return the environments where a user has their own role, by name, each with the role."""
    query = visible(session).join(Grant, Grant.environment_id == Environment.id)
    query = query.where(Grant.user_id == user_id).order_by(Owner.name, Environment.name)
    rows = session.execute(query.with_only_columns(Owner.name, Environment.name, Grant.role))
    return [(f"{owner}/{name}", role) for owner, name, role in rows]


def grants_of_environment(session: Session, environment_id: int) -> Sequence[Grant]:
    """Return the roles on one environment, by user name."""
    query = select(Grant).join(Grant.user).options(joinedload(Grant.user))
    return session.scalars(query.where(Grant.environment_id == environment_id).order_by(User.name)).all()
