"""Stars: users mark environments that they want to find again. The number of stars is public."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from wander.wire import EnvironmentPage

from wander_hub import audit
from wander_hub.database import now
from wander_hub.environments import repository, service
from wander_hub.environments.models import Environment, Star
from wander_hub.identity import Identity


def star(session: Session, caller: Identity, owner: str, name: str, *, wanted: bool) -> Environment:
    """Add or remove a user's star; repeating it changes nothing."""
    environment = service.find(session, owner, name)
    repository.lock_environment(session, environment)
    mine = session.get(Star, (caller.user_id, environment.id))
    audit.about(session, whose=None)  # owners must not see who starred their environments
    if wanted == (mine is not None):
        audit.nothing_done(session)
    if wanted and mine is None:
        session.add(Star(user_id=caller.user_id, environment_id=environment.id, created_at=now()))
    elif not wanted and mine is not None:
        session.delete(mine)
    environment.star_count = count(session, environment)
    return environment


def count(session: Session, environment: Environment) -> int:
    """Return the number of users who starred an environment."""
    query = select(func.count()).select_from(Star).where(Star.environment_id == environment.id)
    return session.scalar(query) or 0


def is_starred(session: Session, user_id: int, environment: Environment) -> bool:
    """Return whether a user starred an environment."""
    return session.get(Star, (user_id, environment.id)) is not None


def list_page(session: Session, user_id: int, skipped: int, limit: int) -> EnvironmentPage:
    """Return a page of the environments that a user starred and may see, most recently starred first."""
    query = repository.visible(session).join(Star, Star.environment_id == Environment.id)
    query = query.where(Star.user_id == user_id, Environment.deleted_at.is_(None))
    in_order = query.order_by(Star.created_at.desc(), Environment.id)
    rows = session.scalars(in_order.offset(skipped).limit(limit + 1)).all()
    following = str(skipped + limit) if len(rows) > limit else None
    return EnvironmentPage(data=[service.summary_of(row) for row in rows[:limit]], next=following)
