"""The outbox: events are added to it in their own transaction, so none is lost and none is false."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from wander.types import Record
from wander.wire.events import EventName, WebhookPayload

from wander_hub.accounts.models import Owner
from wander_hub.database import Database, now
from wander_hub.environments.models import Environment
from wander_hub.settings import Settings
from wander_hub.webhooks.models import Webhook, WebhookDelivery
from wander_hub.webhooks.signing import new_message_id

_HUB_URL = "hub_url"
"""Key of the session's `info` that holds the base address of links."""
_LONGEST = 500


def begin_links(database: Database, settings: Settings) -> None:
    """Make links in messages start with the hub's public address, if it is configured."""
    database.session_info[_HUB_URL] = (settings.public_url or "").rstrip("/")


def subscribed(
    session: Session, environment: Environment, event: EventName, *, private: bool = False
) -> Sequence[Webhook]:
    """Return the webhooks that receive an event; for `private` events, only those of the owner."""
    whose = Webhook.owner_id == environment.owner_id
    if not (private or environment.private):
        whose = or_(whose, Webhook.owner_id.is_(None))
    which = or_(Webhook.environment_id.is_(None), Webhook.environment_id == environment.id)
    hooks = session.scalars(select(Webhook).where(whose, which, Webhook.disabled_at.is_(None)))
    return [hook for hook in hooks if not hook.events or event in hook.events]


def tell(
    session: Session,
    environment: Environment,
    event: EventName,
    describe: Callable[[], Record],
    *,
    private: bool = False,
) -> None:
    """Deliver an event to all subscribed webhooks if this transaction commits."""
    hooks = subscribed(session, environment, event, private=private)
    if hooks:
        add(session, hooks, event, describe())


def add(session: Session, hooks: Sequence[Webhook], event: EventName, data: Record) -> list[WebhookDelivery]:
    """Add a delivery for each webhook."""
    moment = now()
    payload = WebhookPayload.model_validate({"type": event, "timestamp": moment, "data": data})
    body = payload.model_dump_json(by_alias=True)
    same = {"event": event, "body": body, "created_at": moment}
    added = [WebhookDelivery(webhook_id=hook.id, message_id=new_message_id(), **same) for hook in hooks]
    session.add_all(added)
    return added


def link(session: Session, path: str) -> str:
    """Return the address of a page; only its path if the hub's public address is not configured."""
    return f"{session.info.get(_HUB_URL) or ''}{path}"


def label_of(session: Session, environment: Environment) -> str:
    """Return `owner/name`."""
    return f"{session.get_one(Owner, environment.owner_id).name}/{environment.name}"


def short(text: str | None) -> str | None:
    """Return the start of a user's text, because the body of a message is limited to about 20 kB."""
    return text if text is None or len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
