"""A sealed task set in the database of a hub, without the job that checks it."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select
from wander.wire.transfers import commitment_of, make_set
from wander_hub.accounts import repository as accounts
from wander_hub.database import Database, now
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import HUB
from wander_hub.sealed.models import SealedSet


def keep_sealed_set(
    database: Database, environment: str, *, opened: bool = False, creator: str = "alice"
) -> str:
    """Add a set to an environment, and return its commitment."""
    content = make_set([{"question": "hidden"}])
    with database.write(HUB) as session:
        versions = select(Version).join(Version.environment).where(Environment.name == environment)
        user = accounts.user_named(session, creator)
        assert user is not None
        session.add(
            SealedSet(
                commitment=commitment_of(content),
                version_id=session.scalars(versions).one().id,
                state="opened" if opened else "sealed",
                examples=1,
                wrapped_key=None if opened else b"wrapped",
                content=content if opened else b"encrypted",
                created_by_id=user.id,
                created_at=now(),
                opens_at=now() + timedelta(days=7),
                opened_at=now() if opened else None,
            )
        )
    return commitment_of(content)
