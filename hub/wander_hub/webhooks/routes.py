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
    owner: Annotated[str | None, Query(max_length=80, description="none for those of the hub")] = None,
) -> WebhookList:
    """List the webhooks of an owner, for its owners, or those of the hub, for administrators."""
    return WebhookList(data=service.list_all(session, caller, owner))


@router.post("", status_code=201, responses=_REFUSALS)
@audited("webhook.create")
def create_webhook(context: ForManager, body: NewWebhook) -> WebhookSecret:
    """Make a webhook; the secret that signs its deliveries is shown in this answer and never again."""
    what = (context.settings, context.caller, body)
    return context.commit(lambda session: service.create(session, *what))


@router.get("/{webhook}", responses=_REFUSALS)
def get_webhook(session: ReadSession, caller: Caller, webhook: Number) -> WebhookInfo:
    """Tell of one webhook."""
    return service.info_of(service.find(session, caller, webhook))


@router.put("/{webhook}", responses=_REFUSALS)
@audited("webhook.change")
def change_webhook(context: ForManager, webhook: Number, body: WebhookSettings) -> WebhookInfo:
    """Choose where a webhook leads and what it is told; one that was disabled is told again."""
    what = (context.settings, context.caller, webhook, body)
    return context.commit(lambda session: service.change(session, *what))


@router.delete("/{webhook}", responses=_REFUSALS)
@audited("webhook.remove")
def remove_webhook(context: ForManager, webhook: Number) -> WebhookInfo:
    """Remove a webhook with its deliveries."""
    return context.commit(lambda session: service.remove(session, context.caller, webhook))


@router.post("/{webhook}/secret", responses=_REFUSALS)
@audited("webhook.secret")
def renew_secret(context: ForManager, webhook: Number) -> WebhookSecret:
    """Make another secret, shown once; for a day, deliveries are signed with the one of before too."""
    return context.commit(lambda session: service.renew_secret(session, context.caller, webhook))


@router.post("/{webhook}/test", status_code=202, responses=_REFUSALS)
@audited("webhook.test")
def try_webhook(context: ForManager, webhook: Number) -> DeliveryInfo:
    """Have `webhook.test` delivered, which says nothing; the list of deliveries tells how that ends."""
    return context.commit(lambda session: service.try_out(session, context.caller, webhook))


@router.get("/{webhook}/deliveries", responses=_REFUSALS)
def list_deliveries(
    session: ReadSession,
    caller: Caller,
    webhook: Number,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DeliveryPage:
    """List what was and is to be delivered to a webhook in the last 30 days, the newest first."""
    return service.list_deliveries(session, caller, webhook, before, limit)


@router.get("/{webhook}/deliveries/{delivery}", responses=_REFUSALS)
def get_delivery(session: ReadSession, caller: Caller, webhook: Number, delivery: Number) -> DeliveryDetail:
    """Tell of one delivery, with what is sent."""
    return service.show_delivery(session, caller, webhook, delivery)


@router.post("/{webhook}/deliveries/{delivery}/redeliver", status_code=202, responses=_REFUSALS)
@audited("webhook.redeliver")
def redeliver(context: ForManager, webhook: Number, delivery: Number) -> DeliveryInfo:
    """Have a delivery made again now, with the same message id."""
    what = (context.caller, webhook, delivery)
    return context.commit(lambda session: service.redeliver(session, *what))
