"""Webhooks: create, change, list and remove them, and request deliveries again.

Only an owner's owners can see its webhooks, and only administrators those of the hub. For others, they do not
exist.
"""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, joinedload, undefer
from wander.wire.events import (
    DeliveryDetail,
    DeliveryInfo,
    DeliveryPage,
    NewWebhook,
    NothingHappened,
    WebhookInfo,
    WebhookSecret,
    WebhookSettings,
)

from wander_hub import audit
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner
from wander_hub.database import fill, now
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.rights import rights
from wander_hub.settings import Settings
from wander_hub.webhooks import outbox
from wander_hub.webhooks.addresses import fault_of
from wander_hub.webhooks.models import Webhook, WebhookDelivery
from wander_hub.webhooks.signing import new_secret

MOST = 20
"""Maximum number of webhooks of one owner, or of the hub."""
_BOTH_SECRETS = timedelta(days=1)
_NAMES = (joinedload(Webhook.owner), joinedload(Webhook.environment), joinedload(Webhook.keeper))


def list_all(session: Session, caller: Identity, owner: str | None) -> list[WebhookInfo]:
    """Return the webhooks of an owner, or of the hub without an owner."""
    namespace = _owner_for(session, caller, owner)
    query = select(Webhook).where(Webhook.owner_id.is_not_distinct_from(namespace.id if namespace else None))
    return [info_of(hook) for hook in session.scalars(query.options(*_NAMES).order_by(Webhook.id))]


def of_environment(session: Session, caller: Identity, environment: Environment) -> list[WebhookInfo] | None:
    """Return the webhooks of one environment; None if the caller may not manage them."""
    if not caller.may_as_owner("manage", environment.owner_id):
        return None
    query = select(Webhook).where(Webhook.environment_id == environment.id)
    return [info_of(hook) for hook in session.scalars(query.options(*_NAMES).order_by(Webhook.id))]


def create(session: Session, settings: Settings, caller: Identity, wanted: NewWebhook) -> WebhookSecret:
    """Create a webhook. Its secret is only in this result."""
    owner, environment_id = _owner_for(session, caller, wanted.owner), None
    if wanted.environment is not None:
        if wanted.owner is None:
            raise HubProblem(422, "invalid_request", "`environment` requires `owner`")
        environment_id = environments.find(session, wanted.owner, wanted.environment).id
    _require_usable(settings, wanted.url)
    if owner is not None:
        accounts.lock_owner(session, owner)  # so that simultaneous requests are counted correctly
    owner_id = owner.id if owner is not None else None
    same = Webhook.owner_id.is_not_distinct_from(owner_id)
    _require_other(session, owner_id, environment_id, wanted.url)
    if session.scalars(select(func.count()).select_from(Webhook).where(same)).one() >= MOST:
        hint = "remove a webhook that is not needed anymore"
        raise HubProblem(409, "too_many_webhooks", f"there are already {MOST} webhooks", hint=hint)
    hook = Webhook(
        owner_id=owner_id,
        environment_id=environment_id,
        url=wanted.url,
        events=sorted(set(wanted.events)),
        secret=new_secret(),
        keeper_id=caller.user_id or None,
        created_at=now(),
    )
    session.add(hook)
    session.flush()
    _record(session, hook, events=hook.events)
    return WebhookSecret(webhook=info_of(_reloaded(session, hook)), secret=hook.secret)


def find(session: Session, caller: Identity, number: int) -> Webhook:
    """Return a webhook that the caller may manage; raise a 404 problem otherwise."""
    hook = session.scalar(select(Webhook).where(Webhook.id == number).options(*_NAMES))
    if hook is not None:
        owner_id = hook.owner_id
        if caller.administers if owner_id is None else caller.may_as_owner("manage", owner_id):
            return hook
    raise HubProblem(404, "webhook_not_found", f"you have no webhook {number}")


def change(
    session: Session, settings: Settings, caller: Identity, number: int, wanted: WebhookSettings
) -> WebhookInfo:
    """Change the address and events of a webhook and enable it; it then depends on the caller's
    permissions."""
    hook = find(session, caller, number)
    _require_usable(settings, wanted.url)
    if wanted.url != hook.url:
        _require_other(session, hook.owner_id, hook.environment_id, wanted.url)
    hook.url, hook.events = wanted.url, sorted(set(wanted.events))
    hook.disabled_at = hook.disabled_reason = hook.failing_since = None
    hook.slow, hook.keeper_id = False, caller.user_id or None
    session.flush()
    _record(session, hook, events=hook.events)
    return info_of(_reloaded(session, hook))


def renew_secret(session: Session, caller: Identity, number: int) -> WebhookSecret:
    """Create a new secret; for a day, deliveries are also signed with the previous secret."""
    hook = find(session, caller, number)
    hook.former_secret, hook.former_secret_until = hook.secret, now() + _BOTH_SECRETS
    hook.secret = new_secret()
    _record(session, hook)
    return WebhookSecret(webhook=info_of(hook), secret=hook.secret)


def remove(session: Session, caller: Identity, number: int) -> WebhookInfo:
    """Remove a webhook and its deliveries."""
    hook = find(session, caller, number)
    _record(session, hook)
    info = info_of(hook)
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.webhook_id == hook.id))
    session.delete(hook)
    return info


def try_out(session: Session, caller: Identity, number: int) -> DeliveryInfo:
    """Add a delivery of an empty test event."""
    hook = find(session, caller, number)
    _require_enabled(hook)
    (added,) = outbox.add(session, [hook], "webhook.test", NothingHappened())
    session.flush()
    _record(session, hook, delivery=added.id)
    return fill(DeliveryInfo, added)


def list_deliveries(
    session: Session, caller: Identity, number: int, before: int | None, limit: int
) -> DeliveryPage:
    """Return a page of a webhook's deliveries, newest first."""
    hook = find(session, caller, number)
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == hook.id)
    if before is not None:
        query = query.where(WebhookDelivery.id < before)
    deliveries = session.scalars(query.order_by(WebhookDelivery.id.desc()).limit(limit + 1)).all()
    data = [fill(DeliveryInfo, delivery) for delivery in deliveries[:limit]]
    return DeliveryPage(data=data, next=data[-1].id if len(deliveries) > limit else None)


def show_delivery(session: Session, caller: Identity, number: int, delivery: int) -> DeliveryDetail:
    """Return a delivery with its message."""
    hook = find(session, caller, number)
    row = session.get(WebhookDelivery, delivery, options=[undefer(WebhookDelivery.body)])
    return fill(DeliveryDetail, _require_delivery(hook, row, delivery))


def redeliver(session: Session, caller: Identity, number: int, delivery: int) -> DeliveryInfo:
    """Request a delivery again immediately, regardless of its state; its message id stays the same."""
    hook = find(session, caller, number)
    row = session.get(WebhookDelivery, delivery, with_for_update=True)
    row = _require_delivery(hook, row, delivery)
    _require_enabled(hook)
    if row.state == "new":
        audit.nothing_done(session)
        return fill(DeliveryInfo, row)
    # Skip the attempt number of a job that may still be waiting, so that the job does nothing.
    row.attempts, row.failures = row.attempts + 1, 0
    row.state, row.next_at = "new", None
    _record(session, hook, delivery=row.id)
    return fill(DeliveryInfo, row)


def info_of(hook: Webhook) -> WebhookInfo:
    """Return the information about a webhook that listings show."""
    return fill(
        WebhookInfo,
        hook,
        owner=hook.owner.name if hook.owner else None,
        environment=hook.environment.name if hook.environment else None,
        keeper=hook.keeper.name if hook.keeper else None,
    )


def _owner_for(session: Session, caller: Identity, owner: str | None) -> Owner | None:
    if owner is None:
        rights.require_administrator(caller)
        return None
    return rights.owner_for(session, caller, "manage", owner)


def _require_usable(settings: Settings, url: str) -> None:
    fault = fault_of(url, http=settings.webhook_http, networks=settings.webhook_networks)
    if fault is not None:
        raise HubProblem(422, "bad_webhook_address", f"the address of the webhook cannot be used: {fault}")


def _require_other(session: Session, owner_id: int | None, environment_id: int | None, url: str) -> None:
    """Reject a second webhook with the same address, which would receive every event twice."""
    query = select(Webhook.id).where(
        Webhook.owner_id.is_not_distinct_from(owner_id),
        Webhook.environment_id.is_not_distinct_from(environment_id),
        Webhook.url == url,
    )
    if (known := session.scalar(query.limit(1))) is not None:
        hint = f"change its events on its page or with `PUT /api/v1/webhooks/{known}`"
        raise HubProblem(409, "webhook_exists", f"webhook {known} already has this address", hint=hint)


def _require_delivery(hook: Webhook, delivery: WebhookDelivery | None, number: int) -> WebhookDelivery:
    if delivery is None or delivery.webhook_id != hook.id:
        raise HubProblem(404, "delivery_not_found", f"webhook {hook.id} has no delivery {number}")
    return delivery


def _require_enabled(hook: Webhook) -> None:
    if hook.disabled_at is not None:
        detail = f"webhook {hook.id} is disabled: {hook.disabled_reason}"
        hint = f"enable it first: `PUT /api/v1/webhooks/{hook.id}` with its `url` and `events`"
        raise HubProblem(409, "webhook_disabled", detail, hint=hint)


def _reloaded(session: Session, hook: Webhook) -> Webhook:
    session.expire(hook, ["owner", "environment", "keeper"])
    query = select(Webhook).where(Webhook.id == hook.id).options(*_NAMES)
    return session.scalars(query.execution_options(populate_existing=True)).one()


def _record(session: Session, hook: Webhook, **more: object) -> None:
    """Name the webhook in the audit log, without the path of its address, which may be secret."""
    parts = urlsplit(hook.url)
    owner = session.get_one(Owner, hook.owner_id).name if hook.owner_id is not None else None
    address = f"{parts.scheme}://{parts.hostname}"
    audit.about(session, owner=owner, target=f"webhook {hook.id}", host=address, **more)
