"""Webhook events of runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session
from wander.wire.events import EventName, RunEvent

from wander_hub.database import fill
from wander_hub.environments.models import Environment, Version
from wander_hub.webhooks import outbox


def emit_run_event(
    session: Session,
    environment: Environment,
    run: Any,
    event: EventName,
    kind: type[RunEvent] = RunEvent,
    **more: Any,
) -> None:
    """Add a webhook event about a `Run`. `run` is not typed, because the module of `Run` imports this one."""

    def describe() -> RunEvent:
        return fill(
            kind,
            run,
            environment=outbox.label_of(session, environment),
            version=session.get_one(Version, run.version_id).version,
            model=outbox.short(run.model) or "",
            level_reason=outbox.short(run.level_reason) or "",
            url=outbox.link(session, f"/runs/{run.run_id}"),
            **more,
        )

    outbox.tell(session, environment, event, describe, private=run.private)
