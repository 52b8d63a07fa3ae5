"""Queries on trusted publishers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from wander_hub.accounts.models import User
from wander_hub.publishers.models import Publisher, UsedAssertion
from wander_hub.rights.models import Token

_WHOLE = (joinedload(Publisher.owner), joinedload(Publisher.created_by))


def of_owner(session: Session, owner_id: int) -> Sequence[Publisher]:
    """Return every publisher of an owner, oldest first."""
    query = select(Publisher).where(Publisher.owner_id == owner_id).order_by(Publisher.id)
    return session.scalars(query.options(*_WHOLE)).all()


def with_subject(session: Session, issuer: str, subject: str) -> Sequence[Publisher]:
    """Return the publishers that a token of this issuer about this subject may be for.

    What a disabled user trusts, nobody trusts.
    """
    query = select(Publisher).join(Publisher.created_by).where(User.disabled_at.is_(None))
    query = query.where(Publisher.issuer == issuer, Publisher.subject == subject)
    return session.scalars(query.order_by(Publisher.id).options(*_WHOLE)).all()


def for_environment(session: Session, owner_id: int, name: str) -> Sequence[Publisher]:
    """Return the publishers of one environment alone."""
    query = select(Publisher).where(Publisher.owner_id == owner_id, Publisher.name == name)
    return session.scalars(query).all()


def forget_before(session: Session, moment: datetime) -> None:
    """Drop what has expired: assertions, and the tokens that publishers were given."""
    session.execute(delete(UsedAssertion).where(UsedAssertion.expires_at < moment))
    session.execute(delete(Token).where(Token.claims.is_not(None), Token.expires_at < moment))
