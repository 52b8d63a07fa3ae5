"""The API on webhooks and their deliveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from wander.wire.events import (
    DeliveryDetail,
    DeliveryInfo,
    DeliveryPage,
    NewWebhook,
    WebhookInfo,
    WebhookList,
    WebhookSecret,
    WebhookSettings,
)

from wander_hub.http.boundary import Before, Caller, ForManager, Number, ReadSession, audited
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.webhooks import service

router = HubRouter(prefix="/api/v1/webhooks", tags=["webhooks"])

_REFUSALS = refusals(400, 401, 403, 404, 409, 422)


@router.get("", responses=_REFUSALS)
def list_webhooks(
    session: ReadSession,
    caller: Caller,
    owner: Annotated[str | None, Query(max_length=80, description="default: the hub's webhooks")] = None,
) -> WebhookList:
    """List the webhooks of an owner, for its owners, or of the hub, for administrators."""
    return WebhookList(data=service.list_all(session, caller, owner))


@router.post("", status_code=201, responses=_REFUSALS)
@audited("webhook.create")
def create_webhook(context: ForManager, body: NewWebhook) -> WebhookSecret:
    """Create a webhook. Its signing secret is only in this response and cannot be shown again."""
    arguments = (context.settings, context.caller, body)
    return context.commit(lambda session: service.create(session, *arguments))


@router.get("/{webhook}", responses=_REFUSALS)
def get_webhook(session: ReadSession, caller: Caller, webhook: Number) -> WebhookInfo:
    """Return a webhook."""
    return service.info_of(service.find(session, caller, webhook))


@router.put("/{webhook}", responses=_REFUSALS)
@audited("webhook.change")
def change_webhook(context: ForManager, webhook: Number, body: WebhookSettings) -> WebhookInfo:
    """Change the address and events of a webhook. This also enables a disabled webhook."""
    arguments = (context.settings, context.caller, webhook, body)
    return context.commit(lambda session: service.change(session, *arguments))


@router.delete("/{webhook}", responses=_REFUSALS)
@audited("webhook.remove")
def remove_webhook(context: ForManager, webhook: Number) -> WebhookInfo:
    """Remove a webhook and its deliveries."""
    return context.commit(lambda session: service.remove(session, context.caller, webhook))


@router.post("/{webhook}/secret", responses=_REFUSALS)
@audited("webhook.secret")
def renew_secret(context: ForManager, webhook: Number) -> WebhookSecret:
    """Create a new secret, shown once. For a day, deliveries are also signed with the previous secret."""
    return context.commit(lambda session: service.renew_secret(session, context.caller, webhook))


@router.post("/{webhook}/test", status_code=202, responses=_REFUSALS)
@audited("webhook.test")
def try_webhook(context: ForManager, webhook: Number) -> DeliveryInfo:
    """Send the empty event `webhook.test`. The list of deliveries shows the outcome."""
    return context.commit(lambda session: service.try_out(session, context.caller, webhook))


@router.get("/{webhook}/deliveries", responses=_REFUSALS)
def list_deliveries(
    session: ReadSession,
    caller: Caller,
    webhook: Number,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DeliveryPage:
    """List the past and pending deliveries of a webhook in the last 30 days, newest first."""
    return service.list_deliveries(session, caller, webhook, before, limit)


@router.get("/{webhook}/deliveries/{delivery}", responses=_REFUSALS)
def get_delivery(session: ReadSession, caller: Caller, webhook: Number, delivery: Number) -> DeliveryDetail:
    """Return a delivery with its message."""
    return service.show_delivery(session, caller, webhook, delivery)


@router.post("/{webhook}/deliveries/{delivery}/redeliver", status_code=202, responses=_REFUSALS)
@audited("webhook.redeliver")
def redeliver(context: ForManager, webhook: Number, delivery: Number) -> DeliveryInfo:
    """Send a delivery again immediately, with the same message id."""
    arguments = (context.caller, webhook, delivery)
    return context.commit(lambda session: service.redeliver(session, *arguments))
