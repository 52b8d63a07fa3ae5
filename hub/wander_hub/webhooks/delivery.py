"""Delivery of webhook messages: a job for each delivery, with increasing pauses between failed attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from secrets import SystemRandom
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, undefer

from wander_hub.accounts import repository as accounts
from wander_hub.database import Database, now
from wander_hub.identity import HUB
from wander_hub.jobs import Job, JobContext, JobWorker, TableQueue, storable, worker_name
from wander_hub.rights.tokens import identity_of_user
from wander_hub.settings import Settings
from wander_hub.webhooks.models import Webhook, WebhookDelivery
from wander_hub.webhooks.outbox import begin_links
from wander_hub.webhooks.outcome import DeliveryOutcome
from wander_hub.webhooks.signing import signed_headers

KIND = "webhook"
"""Kind of the jobs that attempt a delivery."""
PAUSES = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Seconds after each failed attempt, varied by up to a fifth. The delivery fails after the last pause."""
_JITTER = 0.2
_GONE = 410
_FAILING = timedelta(days=5)
"""Time of continuous failure after which a webhook is disabled."""
KEPT = timedelta(days=30)
"""Retention time of deliveries."""
_JOBS_KEPT = timedelta(days=1)
_AT_ONCE = 2
_BATCH = 200
_SLOW_SECONDS = 2.0
_LOCK = {"key_share": True}
"""Lock options for a webhook that do not block transactions that add deliveries."""

Send = Callable[[str, Mapping[str, str], bytes], DeliveryOutcome]


class Dispatcher:
    """Submits a job for each new delivery; a worker calls it repeatedly."""

    def __init__(self, database: Database, queue: TableQueue) -> None:
        self._database, self._queue = database, queue

    def __call__(self) -> None:
        """Submit jobs for a batch of new deliveries."""
        unsent = select(WebhookDelivery.id).where(WebhookDelivery.state == "new").limit(_BATCH)
        with self._database.read(HUB) as session:
            if session.scalar(unsent.limit(1)) is None:
                return
        in_order = unsent.order_by(WebhookDelivery.id).with_for_update(skip_locked=True)

        def submit(session: Session) -> None:
            for number in session.scalars(in_order).all():
                delivery = session.get_one(WebhookDelivery, number)
                _submit(session, self._queue, delivery, session.get_one(Webhook, delivery.webhook_id))

        self._database.commit(submit, HUB)


class Deliverer:
    """Job handler that attempts a delivery."""

    def __init__(self, database: Database, queue: TableQueue, send: Send) -> None:
        self._database, self._queue, self._send = database, queue, send

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Attempt a delivery; return a function that stores the outcome."""
        number, attempt = int(context.lease.payload["delivery"]), int(context.lease.payload["attempt"])
        with self._database.read(HUB) as session:
            delivery = session.get(WebhookDelivery, number, options=[undefer(WebhookDelivery.body)])
            if delivery is None or not _awaits(delivery, attempt):
                return lambda _session: None  # it was requested again, or the webhook was removed
            hook, body = session.get_one(Webhook, delivery.webhook_id), delivery.body.encode()
            refusal = _refusal(session, hook)
            signers = [hook.secret]
            if hook.former_secret and hook.former_secret_until and hook.former_secret_until > now():
                signers.append(hook.former_secret)
            headers = signed_headers(delivery.message_id, int(time.time()), body, signers)
        if refusal is not None:
            return lambda session: _give_up(session, self._queue, number, attempt, refusal)
        outcome = self._send(hook.url, headers, body)
        return lambda session: store_outcome(session, self._queue, number, attempt, outcome)


def store_outcome(
    session: Session, queue: TableQueue, number: int, attempt: int, outcome: DeliveryOutcome
) -> None:
    """Store the outcome of an attempt, and submit the next attempt if one is due."""
    delivery = session.get(WebhookDelivery, number, with_for_update=True)
    if delivery is None or not _awaits(delivery, attempt):
        return
    hook = session.get_one(Webhook, delivery.webhook_id, with_for_update=_LOCK)
    delivery.attempts, delivery.attempted_at, delivery.next_at = attempt, now(), None
    delivery.status, delivery.answer, delivery.error = outcome.status, outcome.answer, outcome.error
    delivery.seconds = round(outcome.seconds, 3)
    hook.slow = outcome.seconds > _SLOW_SECONDS
    if outcome.error is None:
        delivery.state, hook.failing_since = "delivered", None
        return
    delivery.failures += 1
    hook.failing_since = hook.failing_since or now()
    if outcome.status == _GONE:
        disable(hook, "its address returned status 410 (gone)")
    elif now() - hook.failing_since > _FAILING:
        disable(hook, f"every delivery failed for {_FAILING.days} days")
    if hook.disabled_at is not None or delivery.failures > len(PAUSES):
        _fail(session, queue, delivery)
        return
    seconds = PAUSES[delivery.failures - 1] * (1 + SystemRandom().uniform(-_JITTER, _JITTER))
    _submit(session, queue, delivery, hook, pause=timedelta(seconds=seconds))


def keep_failures(queue: TableQueue, session: Session, job_ids: Sequence[int]) -> None:
    """Fail deliveries whose job was canceled; record a failed attempt if the worker crashed repeatedly."""
    for job in session.scalars(select(Job).where(Job.id.in_(job_ids)).order_by(Job.id)).all():
        number, attempt = int(job.payload["delivery"]), int(job.payload["attempt"])
        if job.state != "canceled":
            error = storable(job.error or "the worker crashed")
            store_outcome(session, queue, number, attempt, DeliveryOutcome(error=error))
            continue
        delivery = session.get(WebhookDelivery, number, with_for_update=True)
        if delivery is not None and _awaits(delivery, attempt):
            # Do not count a failure: if the administrator retries the job, it makes the same attempt.
            delivery.state, delivery.next_at, delivery.error = "failed", None, "canceled by an administrator"


def disable(hook: Webhook, reason: str) -> None:
    """Stop deliveries to a webhook, with a reason."""
    hook.disabled_at, hook.disabled_reason = now(), reason


def worker(settings: Settings, database: Database, queue: TableQueue, send: Send | None = None) -> JobWorker:
    """Return a worker, not started, that only delivers messages, so that deliveries never wait for
    replays."""
    begin_links(database, settings)
    handlers = {KIND: Deliverer(database, queue, send or sender(settings))}
    name = worker_name("webhooks")
    return JobWorker(queue, handlers, name, look=Dispatcher(database, queue), concurrency=_AT_ONCE)


def sender(settings: Settings) -> Send:
    """Return the function that sends messages, with the hub's settings."""

    def send(url: str, headers: Mapping[str, str], body: bytes) -> DeliveryOutcome:
        from wander_hub.webhooks.sender import (
            WebhookSender,  # imported late, so that other hubs load no HTTP client
        )

        return WebhookSender(settings).send(url, headers, body)

    return send


def sweep(session: Session) -> None:
    """Delete old deliveries that have ended, the jobs of their attempts, and expired former secrets."""
    moment = now()
    ended = WebhookDelivery.state.in_(("delivered", "failed"))
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.created_at < moment - KEPT, ended))
    over = Job.state.in_(("done", "failed", "canceled")), Job.kind == KIND
    session.execute(delete(Job).where(*over, Job.finished_at < moment - _JOBS_KEPT))
    past = Webhook.former_secret_until < moment
    session.execute(update(Webhook).where(past).values(former_secret=None, former_secret_until=None))


def _submit(
    session: Session,
    queue: TableQueue,
    delivery: WebhookDelivery,
    hook: Webhook,
    pause: timedelta = timedelta(),
) -> None:
    delivery.state, delivery.next_at = "waiting", now() + pause
    key, payload = _job_of(delivery)
    behind = hook.slow or hook.failing_since is not None
    # Pass the pause instead of the time, because this machine's clock may differ from the database's.
    when: dict[str, Any] = {"priority": -1 if behind else 0, "pause": pause}
    if not queue.renew(session, key, payload, error=delivery.error, **when):
        queue.submit(session, KIND, key, payload, **when)


def _fail(session: Session, queue: TableQueue, delivery: WebhookDelivery) -> None:
    """Mark a delivery and its job as failed. Retrying the job makes the next attempt."""
    delivery.state = "failed"
    queue.renew(session, *_job_of(delivery), error=delivery.error, failed=True)


def _job_of(delivery: WebhookDelivery) -> tuple[str, dict[str, Any]]:
    """Return the key of a delivery's job, and its payload for the next attempt."""
    return f"{KIND} {delivery.message_id}", {"delivery": delivery.id, "attempt": delivery.attempts + 1}


def _awaits(delivery: WebhookDelivery, attempt: int) -> bool:
    """Return whether an attempt is the next one of a delivery that is waiting or failed."""
    return delivery.state in ("waiting", "failed") and delivery.attempts + 1 == attempt


def _refusal(session: Session, hook: Webhook) -> str | None:
    """Return why a message must not be sent: the webhook is disabled, or its keeper lost their permission."""
    if hook.disabled_at is not None:
        return f"the webhook is disabled: {hook.disabled_reason}"
    if hook.keeper_id is None:
        return None
    user = accounts.user_with_owners(session, hook.keeper_id)
    keeper, owner_id = identity_of_user(session, user, HUB.token), hook.owner_id
    if keeper and (keeper.administers if owner_id is None else keeper.may_as_owner("manage", owner_id)):
        return None
    return f"its keeper `{user.name}` lost the permission"


def _give_up(session: Session, queue: TableQueue, number: int, attempt: int, refusal: str) -> None:
    delivery = session.get(WebhookDelivery, number, with_for_update=True)
    if delivery is None or not _awaits(delivery, attempt):
        return
    delivery.attempts, delivery.next_at = attempt, None
    delivery.attempted_at, delivery.error, delivery.status, delivery.answer = now(), refusal, None, None
    _fail(session, queue, delivery)
    hook = session.get_one(Webhook, delivery.webhook_id, with_for_update=_LOCK)
    if hook.disabled_at is None:
        disable(hook, refusal)
