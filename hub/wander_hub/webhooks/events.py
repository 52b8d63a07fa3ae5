"""Webhook events of versions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from sqlalchemy.orm import Session
from wander.wire.events import VersionEvent

from wander_hub.environments.models import Environment, Version
from wander_hub.webhooks.outbox import label_of, link, short

_MOST_FILES = 40


def describe_version(
    session: Session, environment: Environment, version: Version, files: Mapping[str, str] | None = None
) -> VersionEvent:
    """Return an event about a version, with its new files."""
    label = label_of(session, environment)
    return VersionEvent(
        environment=label,
        version=version.version,
        private=environment.private,
        files=dict(islice((files or {}).items(), _MOST_FILES)),
        yanked=version.yanked,
        reason=short(version.yanked_reason),
        url=link(session, f"/{label}/versions/{version.version}"),
    )
