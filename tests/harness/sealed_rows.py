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


def keep_sealed_set(database: Database, environment: str, *, opened: bool = False) -> str:
    """Add a set of alice's environment, and return its commitment."""
    content = make_set([{"question": "hidden"}])
    with database.write(HUB) as session:
        versions = select(Version).join(Version.environment).where(Environment.name == environment)
        alice = accounts.user_named(session, "alice")
        assert alice is not None
        session.add(
            SealedSet(
                commitment=commitment_of(content),
                version_id=session.scalars(versions).one().id,
                state="opened" if opened else "sealed",
                examples=1,
                wrapped_key=None if opened else b"wrapped",
                content=content if opened else b"encrypted",
                created_by_id=alice.id,
                created_at=now(),
                opens_at=now() + timedelta(days=7),
                opened_at=now() if opened else None,
            )
        )
    return commitment_of(content)
