"""Delivers what the outbox holds: a job for each delivery, ever longer pauses, an end to what is in vain."""

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
from wander_hub.webhooks.outcome import Outcome
from wander_hub.webhooks.signing import signed_headers

KIND = "webhook"
"""Of the jobs that make the attempts of a delivery."""
PAUSES = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Seconds after each attempt that failed, give or take a fifth; then no more is made."""
_JITTER = 0.2
_GONE = 410
_FAILING = timedelta(days=5)
"""A webhook that took nothing for so long is told nothing more."""
KEPT = timedelta(days=30)
"""How long a delivery is listed."""
_JOBS_KEPT = timedelta(days=1)
_AT_ONCE = 2
_BATCH = 200
_SLOW_SECONDS = 2.0
_LOCK = {"key_share": True}
"""Of a webhook: whoever adds a delivery to it need not wait."""

Send = Callable[[str, Mapping[str, str], bytes], Outcome]


class Dispatcher:
    """Makes a job of each delivery that has none: called by a worker again and again."""

    def __init__(self, database: Database, queue: TableQueue) -> None:
        self._database, self._queue = database, queue

    def __call__(self) -> None:
        """Make some."""
        unsent = select(WebhookDelivery.id).where(WebhookDelivery.state == "new").limit(_BATCH)
        with self._database.read(HUB) as session:
            if session.scalar(unsent.limit(1)) is None:
                return
        in_order = unsent.order_by(WebhookDelivery.id).with_for_update(skip_locked=True)

        def submit(session: Session) -> None:
            for number in session.scalars(in_order).all():
                one = session.get_one(WebhookDelivery, number)
                _submit(session, self._queue, one, session.get_one(Webhook, one.webhook_id))

        self._database.commit(submit, HUB)


class Deliverer:
    """The handler of attempts."""

    def __init__(self, database: Database, queue: TableQueue, send: Send) -> None:
        self._database, self._queue, self._send = database, queue, send

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Make an attempt; return what keeps how it ended."""
        number, attempt = int(context.lease.payload["delivery"]), int(context.lease.payload["attempt"])
        with self._database.read(HUB) as session:
            found = session.get(WebhookDelivery, number, options=[undefer(WebhookDelivery.body)])
            if found is None or not _awaits(found, attempt):
                return lambda _session: None  # it was asked for anew, or the webhook is gone
            hook, body = session.get_one(Webhook, found.webhook_id), found.body.encode()
            refusal = _refusal(session, hook)
            signers = [hook.secret]
            if hook.former_secret and hook.former_secret_until and hook.former_secret_until > now():
                signers.append(hook.former_secret)
            headers = signed_headers(found.message_id, int(time.time()), body, signers)
        if refusal is not None:
            return lambda session: _give_up(session, self._queue, number, attempt, refusal)
        outcome = self._send(hook.url, headers, body)
        return lambda session: keep(session, self._queue, number, attempt, outcome)


def keep(session: Session, queue: TableQueue, number: int, attempt: int, outcome: Outcome) -> None:
    """Keep how an attempt ended, and have the next one made where there is to be one."""
    found = session.get(WebhookDelivery, number, with_for_update=True)
    if found is None or not _awaits(found, attempt):
        return
    hook = session.get_one(Webhook, found.webhook_id, with_for_update=_LOCK)
    found.attempts, found.attempted_at, found.next_at = attempt, now(), None
    found.status, found.answer, found.error = outcome.status, outcome.answer, outcome.error
    found.seconds = round(outcome.seconds, 3)
    hook.slow = outcome.seconds > _SLOW_SECONDS
    if outcome.error is None:
        found.state, hook.failing_since = "delivered", None
        return
    found.failures += 1
    hook.failing_since = hook.failing_since or now()
    if outcome.status == _GONE:
        disable(hook, "its address answered 410: it is gone")
    elif now() - hook.failing_since > _FAILING:
        disable(hook, f"every delivery failed for {_FAILING.days} days")
    if hook.disabled_at is not None or found.failures > len(PAUSES):
        _fail(session, queue, found)
        return
    _submit(session, queue, found, hook, pause=_pause(found.failures))


def keep_failures(queue: TableQueue, session: Session, job_ids: Sequence[int]) -> None:
    """End deliveries that were called off; go on after attempts whose workers died, again and again."""
    query = select(Job).where(Job.id.in_(job_ids)).order_by(Job.id)
    for job in session.scalars(query.execution_options(populate_existing=True)).all():
        number, attempt = int(job.payload["delivery"]), int(job.payload["attempt"])
        if job.state != "cancelled":
            told = storable(job.error or "the worker that made it died")
            keep(session, queue, number, attempt, Outcome(error=told))
            continue
        found = session.get(WebhookDelivery, number, with_for_update=True)
        if found is not None and _awaits(found, attempt):
            # The attempt is not counted: it is made after all where the job is tried again.
            found.state, found.next_at, found.error = "failed", None, "an administrator called it off"


def disable(hook: Webhook, reason: str) -> None:
    """Tell a webhook nothing more, and say why."""
    hook.disabled_at, hook.disabled_reason = now(), reason


def worker(settings: Settings, database: Database, queue: TableQueue, send: Send | None = None) -> JobWorker:
    """Return a worker that does nothing but deliver, not yet started: nobody waits here for a replay."""
    begin_links(database, settings)
    handlers = {KIND: Deliverer(database, queue, send or sender(settings))}
    name = worker_name("webhooks")
    return JobWorker(queue, handlers, name, look=Dispatcher(database, queue), concurrency=_AT_ONCE)


def sender(settings: Settings) -> Send:
    """Return what sends messages as a hub's settings allow."""

    def send(url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        from wander_hub.webhooks.sender import Sender  # a hub without webhooks loads no client

        return Sender(settings).send(url, headers, body)

    return send


def sweep(session: Session) -> None:
    """Forget deliveries that ended long ago, and the jobs of attempts."""
    moment = now()
    ended = WebhookDelivery.state.in_(("delivered", "failed"))
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.created_at < moment - KEPT, ended))
    over = Job.state.in_(("done", "failed", "cancelled")), Job.kind == KIND
    session.execute(delete(Job).where(*over, Job.finished_at < moment - _JOBS_KEPT))
    past = Webhook.former_secret_until < moment
    session.execute(update(Webhook).where(past).values(former_secret=None, former_secret_until=None))


def _submit(
    session: Session,
    queue: TableQueue,
    found: WebhookDelivery,
    hook: Webhook,
    pause: timedelta = timedelta(),
) -> None:
    found.state, found.next_at = "waiting", now() + pause
    key, payload = _job_of(found)
    behind = hook.slow or hook.failing_since is not None
    # Not the time above: this machine's clock may be another than the database's.
    when: dict[str, Any] = {"priority": -1 if behind else 0, "pause": pause}
    if not queue.renew(session, key, payload, error=found.error, **when):
        queue.submit(session, KIND, key, payload, **when)


def _fail(session: Session, queue: TableQueue, found: WebhookDelivery) -> None:
    """Give a delivery up; its job is failed too, and makes the next attempt if it is tried again."""
    found.state = "failed"
    queue.renew(session, *_job_of(found), error=found.error, failed=True)


def _job_of(found: WebhookDelivery) -> tuple[str, dict[str, Any]]:
    """Return the key of a delivery's job, and its payload for the next attempt."""
    return f"{KIND} {found.message_id}", {"delivery": found.id, "attempt": found.attempts + 1}


def _awaits(found: WebhookDelivery, attempt: int) -> bool:
    """Tell whether an attempt is the next one; of a delivery that failed, one that was called off is."""
    return found.state in ("waiting", "failed") and found.attempts + 1 == attempt


def _refusal(session: Session, hook: Webhook) -> str | None:
    """Return why nothing is to be sent: the webhook is off, or its keeper lost the right to it."""
    if hook.disabled_at is not None:
        return f"the webhook is disabled: {hook.disabled_reason}"
    if hook.keeper_id is None:
        return None
    user = accounts.user_with_owners(session, hook.keeper_id)
    keeper, owner_id = identity_of_user(session, user, HUB.token), hook.owner_id
    if keeper and (keeper.administers if owner_id is None else keeper.may_as_owner("manage", owner_id)):
        return None
    return f"`{user.name}`, who kept it, may not any more"


def _give_up(session: Session, queue: TableQueue, number: int, attempt: int, refusal: str) -> None:
    found = session.get(WebhookDelivery, number, with_for_update=True)
    if found is None or not _awaits(found, attempt):
        return
    found.attempts, found.next_at = attempt, None
    found.attempted_at, found.error, found.status, found.answer = now(), refusal, None, None
    _fail(session, queue, found)
    hook = session.get_one(Webhook, found.webhook_id, with_for_update=_LOCK)
    if hook.disabled_at is None:
        disable(hook, refusal)


def _pause(failures: int) -> timedelta:
    return timedelta(seconds=PAUSES[failures - 1] * (1 + SystemRandom().uniform(-_JITTER, _JITTER)))
