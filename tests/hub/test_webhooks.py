"""Webhooks: told of what was kept and of nothing else, signed, in private, again and again until it comes."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import select, update
from standardwebhooks.webhooks import Webhook as StandardWebhook
from standardwebhooks.webhooks import WebhookVerificationError
from wander.wire.events import BoardEvent, LevelEvent, RunEvent, VerificationEvent, VersionEvent
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Membership
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.identity import HUB
from wander_hub.jobs import Job, TableQueue
from wander_hub.jobs.table import MAX_ATTEMPTS
from wander_hub.operation.job_queue import settle_failures
from wander_hub.runs.models import Run
from wander_hub.settings import Settings
from wander_hub.webhooks import delivery, outbox
from wander_hub.webhooks.models import Webhook, WebhookDelivery
from wander_hub.webhooks.signing import signed_headers
from webhook_receiver import webhook_receiver

HOOKS = "/api/v1/webhooks"
VERSION = "/api/v1/environments/alice/reverse-text/versions/0.1.0"
RUN = "01JRUN0000000000000000000A"


@pytest.fixture
def settings(settings) -> Settings:
    inside = {"webhook_http": True, "webhook_networks": ("127.0.0.0/8",)}
    return settings.model_copy(update={**inside, "public_url": "http://hub.test"})


@pytest.fixture
def receiver():
    with webhook_receiver() as found:
        yield found


@pytest.fixture
def deliver(hub):
    """Return what makes the attempts whose time has come."""
    queue = settle_failures(TableQueue(hub.database, lease_seconds=60, retry_seconds=0))
    worker = delivery.worker(hub.settings, hub.database, queue)
    return partial(asyncio.to_thread, worker.run_waiting)


async def hooked(hub, url: str, *, user: str = "alice", **wanted) -> tuple[int, str]:
    """Make a webhook; return its number and secret."""
    body = {"url": url, "owner": "alice", **wanted}
    made = await hub.client.post(HOOKS, json=body, headers=hub.auth(user))
    assert made.status_code == 201, made.text
    return made.json()["webhook"]["id"], made.json()["secret"]


async def deliveries(hub, number: int) -> list[dict]:
    answer = await hub.get(f"{HOOKS}/{number}/deliveries", headers=hub.auth("admin"))
    return answer.json()["data"]


def let_time_pass(hub) -> None:
    """Make the next attempts due."""
    with hub.database.write(HUB) as session:
        session.execute(update(Job).values(run_after=now()))


def verified(one, secret: str) -> bool:
    """Tell whether a message is signed with a secret, by what receivers verify with."""
    try:
        return StandardWebhook(secret).verify(one.body.decode(), one.headers) == json.loads(one.body)
    except WebhookVerificationError:
        return False


def test_signatures_match_the_example_of_the_standard():
    moment, body, secret = 1614265330, b'{"test": 2432232314}', "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", moment, body, [secret])
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_fast_clock_does_not_delay_messages(hub, receiver, deliver, monkeypatch):
    await hooked(hub, receiver.url)
    monkeypatch.setattr(delivery, "now", lambda: now() + timedelta(minutes=10))
    await hub.publish()
    await deliver()
    assert receiver.types() == ["version.published"]


async def test_events_are_delivered_once_and_signed(hub, run_of, make_wheel, receiver, deliver):
    number, secret = await hooked(hub, receiver.url)
    sha256 = await hub.publish()
    manifest, rollouts = run_of(sha256)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    asked = await hub.client.post(f"/api/v1/runs/{RUN}/verifications", json={"sample": 2}, headers=hub.auth())
    called_off = await hub.client.delete(f"/api/v1/verifications/{asked.json()['id']}", headers=hub.auth())
    assert called_off.status_code == 200, called_off.text
    await hub.client.put(f"/api/v1/runs/{RUN}/hiding", json={"reason": "asked for"}, headers=hub.auth())
    await hub.client.delete(f"/api/v1/runs/{RUN}/hiding", headers=hub.auth())
    await hub.client.put(f"{VERSION}/yank", json={"reason": "wrong"}, headers=hub.auth())
    with hub.database.write(HUB) as session:
        session.get_one(Run, RUN).level = "claimed"
    await deliver()
    once = ("version.published", "version.yanked", "run.posted", "run.verified")
    assert sorted(receiver.types()) == sorted([*once, "run.level", *["board.changed"] * 5])
    told = {}
    for one in receiver.received:
        assert verified(one, secret)
        assert len(one.body) < 20_000
        assert json.loads(one.body)["schema"] == "wander.webhook/1"
        told.setdefault(one.payload.type, []).append(one.payload.data)
    (published,), (yanked,) = told["version.published"], told["version.yanked"]
    assert isinstance(published, VersionEvent)
    assert (published.environment, published.version) == ("alice/reverse-text", "0.1.0")
    assert (published.files, yanked.reason) == ({make_wheel().wheel_name: sha256}, "wrong")
    assert published.url == "http://hub.test/alice/reverse-text/versions/0.1.0"
    (posted,), (checked,), (level,) = told["run.posted"], told["run.verified"], told["run.level"]
    assert [type(one) for one in (posted, checked, level)] == [RunEvent, VerificationEvent, LevelEvent]
    assert (posted.run_id, posted.level, posted.reward_mean) == (RUN, "complete", 0.5)
    assert (checked.reported, level.before, level.level) == (False, "complete", "claimed")
    boards = told["board.changed"]
    assert all(isinstance(one, BoardEvent) for one in boards)
    assert {(one.change, one.run_id) for one in boards} == {
        *[("best", RUN), ("best", None), ("hidden", RUN), ("shown", RUN)]
    }
    found = await deliveries(hub, number)
    assert {(one["state"], one["status"], one["attempts"], one["error"]) for one in found} == {
        ("delivered", 200, 1, None)
    }
    assert {one["answer"] for one in found} == {"thanks wnd_aaaaaa..."}
    assert {one["message_id"] for one in found} == {one.headers["webhook-id"] for one in receiver.received}
    await deliver()
    assert len(receiver.received) == len(found), "nothing comes twice"


async def test_rolled_back_events_are_not_delivered(hub, receiver, deliver):
    await hooked(hub, receiver.url)
    await hub.publish()

    def fail(session) -> None:
        found = environments.environment_named(session, "alice", "reverse-text")
        outbox.tell(session, found, "version.yanked", lambda: pytest.fail("told of nothing"), private=True)

    with pytest.raises(pytest.fail.Exception), hub.database.write(HUB) as session:
        fail(session)
    refused = await hub.client.put(f"{VERSION}9/yank", json={}, headers=hub.auth())
    assert refused.status_code == 404
    await deliver()
    assert receiver.types() == ["version.published"]


async def test_webhooks_receive_only_their_events(hub, make_wheel, receiver, deliver):
    other = make_wheel(name="other", files={"other.py": b"def load_environment(): ...\n"})
    secret = make_wheel(name="secret", files={"secret.py": b"def load_environment(): ...\n"})
    await hub.publish()
    whole, _ = await hooked(hub, receiver.url)
    one, _ = await hooked(hub, receiver.url, environment="reverse-text", events=["version.yanked"])
    everybody, _ = await hooked(hub, receiver.url, owner=None, user="admin")
    bobs, _ = await hooked(hub, receiver.url, owner="bob", user="bob")
    await hub.publish(other)
    hidden = {"wander_visibility": "private"}
    assert (await hub.upload(secret.build(), secret.wheel_name, fields=hidden)).status_code == 200
    assert (await hub.client.put(f"{VERSION}/yank", json={}, headers=hub.auth())).status_code == 200
    await deliver()
    found = {
        number: [(each["event"]) for each in reversed(await deliveries(hub, number))]
        for number in (whole, one, everybody, bobs)
    }
    published = "version.published"
    assert found == {
        whole: [published, published, "version.yanked"],
        one: ["version.yanked"],
        everybody: [published, "version.yanked"],
        bobs: [],
    }
    told = [each.payload.data.environment for each in receiver.received]
    assert told.count("alice/secret") == 1, "what is private only its owner's webhooks are told"


async def test_failed_deliveries_are_retried_with_growing_delays(hub, receiver, deliver, caplog):
    caplog.set_level(logging.DEBUG)
    number, _ = await hooked(hub, receiver.url)
    receiver.answers = [500]
    await hub.publish()
    pauses = []
    for _ in range(len(delivery.PAUSES) + 1):
        await deliver()
        (found,) = await deliveries(hub, number)
        if found["next_at"] is not None:
            with hub.database.read(HUB) as session:
                row = session.scalars(select(WebhookDelivery)).one()
                pauses.append((row.next_at - row.attempted_at).total_seconds())
        await deliver()  # it waits
        assert len(receiver.received) == found["attempts"]
        let_time_pass(hub)
    for pause, usual in zip(pauses, delivery.PAUSES, strict=True):
        assert 0.79 * usual <= pause <= 1.21 * usual + 1
    assert (found["state"], found["status"], found["error"]) == ("failed", 500, "it returned status 500")
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
    hook = (await hub.get(f"{HOOKS}/{number}", headers=hub.auth())).json()
    assert hook["failing_since"]
    assert hook["disabled_at"] is None
    receiver.answers = [200]
    again = f"{HOOKS}/{number}/deliveries/{found['id']}/redeliver"
    assert (await hub.client.post(again, headers=hub.auth())).status_code == 202
    await deliver()
    (found,) = await deliveries(hub, number)
    assert (found["state"], found["message_id"]) == ("delivered", receiver.received[0].headers["webhook-id"])
    assert (await hub.get(f"{HOOKS}/{number}", headers=hub.auth())).json()["failing_since"] is None
    assert "s3cr3t" not in caplog.text


async def test_a_waiting_delivery_can_be_sent_now_and_only_once(hub, receiver, deliver):
    number, _ = await hooked(hub, receiver.url)
    receiver.answers = [500, 200]
    await hub.publish()
    await deliver()
    (found,) = await deliveries(hub, number)
    assert (found["state"], found["attempts"]) == ("waiting", 1)
    again = f"{HOOKS}/{number}/deliveries/{found['id']}/redeliver"
    assert (await hub.client.post(again, headers=hub.auth())).status_code == 202
    await deliver()
    let_time_pass(hub)
    await deliver()  # the job of before finds nothing to do
    assert len(receiver.received) == 2
    assert (await deliveries(hub, number))[0]["state"] == "delivered"


async def test_status_410_or_days_of_failures_disable_a_webhook(hub, make_wheel, receiver, deliver):
    number, _ = await hooked(hub, receiver.url)
    receiver.answers = [410]
    await hub.publish()
    await deliver()
    path = f"{HOOKS}/{number}"
    hook = (await hub.get(path, headers=hub.auth())).json()
    assert hook["disabled_reason"] == "its address returned status 410 (gone)"
    refused = await hub.client.post(f"{path}/test", headers=hub.auth())
    assert (refused.status_code, refused.json()["code"]) == (409, "webhook_disabled")
    await hub.publish(make_wheel(version="0.2.0"))
    await deliver()
    assert len(receiver.received) == 1
    body = {"url": receiver.url, "events": []}
    enabled = await hub.client.put(path, json=body, headers=hub.auth())
    assert (enabled.json()["disabled_at"], enabled.json()["keeper"]) == (None, "alice")
    receiver.answers = [503]
    await hub.client.post(f"{path}/test", headers=hub.auth())
    await deliver()
    with hub.database.write(HUB) as session:
        session.execute(update(Webhook).values(failing_since=now() - timedelta(days=5, minutes=1)))
    let_time_pass(hub)
    await deliver()
    hook = (await hub.get(path, headers=hub.auth())).json()
    assert hook["disabled_reason"] == "every delivery failed for 5 days"


async def test_a_webhook_of_a_former_member_receives_nothing(hub, make_wheel, receiver, deliver):
    with hub.database.write(HUB) as session:
        alice, bob = accounts.owner_named(session, "alice"), accounts.user_named(session, "bob")
        session.add(Membership(owner_id=alice.id, user_id=bob.id, role="owner"))
    number, _ = await hooked(hub, receiver.url, user="bob")
    await hub.publish()
    await deliver()
    assert len(receiver.received) == 1
    await hub.client.delete("/api/v1/owners/alice/members/bob", headers=hub.auth())
    await hub.publish(make_wheel(version="0.2.0"))
    await deliver()
    assert len(receiver.received) == 1
    hook = (await hub.get(f"{HOOKS}/{number}", headers=hub.auth())).json()
    assert (hook["disabled_reason"], hook["keeper"]) == ("its keeper `bob` lost the permission", "bob")
    for path in ("", "/deliveries"):
        assert (await hub.get(f"{HOOKS}/{number}{path}", headers=hub.auth("bob"))).status_code == 404
    body = {"url": receiver.url, "events": []}
    kept = await hub.client.put(f"{HOOKS}/{number}", json=body, headers=hub.auth())
    assert kept.json()["keeper"] == "alice"


async def test_a_new_secret_signs_together_with_the_previous_one(hub, receiver, deliver):
    number, before = await hooked(hub, receiver.url)
    renewed = (await hub.client.post(f"{HOOKS}/{number}/secret", headers=hub.auth())).json()
    assert renewed["secret"] != before
    await hub.client.post(f"{HOOKS}/{number}/test", headers=hub.auth())
    await deliver()
    with hub.database.write(HUB) as session:
        session.execute(update(Webhook).values(former_secret_until=now()))
    await hub.client.post(f"{HOOKS}/{number}/test", headers=hub.auth())
    await deliver()
    found = [[verified(one, secret) for secret in (before, renewed["secret"])] for one in receiver.received]
    assert found == [[True, True], [False, True]]


async def test_a_killed_worker_loses_no_delivery(hub, receiver, deliver):
    number, _ = await hooked(hub, receiver.url, events=["webhook.test"])
    await hub.client.post(f"{HOOKS}/{number}/test", headers=hub.auth())
    queue = TableQueue(hub.database, lease_seconds=60, retry_seconds=0)
    delivery.Dispatcher(hub.database, queue)()
    for attempt in range(MAX_ATTEMPTS):  # killed with -9, each time before it said anything
        assert queue.claim(f"worker {attempt}", [delivery.KIND]) is not None
        with hub.database.write(HUB) as session:
            session.execute(update(Job).values(lease_until=now() - timedelta(seconds=1)))
    await deliver()
    (found,) = await deliveries(hub, number)
    assert (found["state"], found["attempts"]) == ("waiting", 1)
    let_time_pass(hub)
    await deliver()
    assert (await deliveries(hub, number))[0]["state"] == "delivered"


async def test_a_delivery_is_one_job_which_failed_if_no_attempt_was_accepted(hub, receiver, deliver):
    number, _ = await hooked(hub, receiver.url, events=["webhook.test"])
    receiver.answers[:] = [500]
    await hub.client.post(f"{HOOKS}/{number}/test", headers=hub.auth())

    async def jobs(**asked) -> list[dict]:
        answer = await hub.get("/api/v1/jobs", params={"kind": "webhook"} | asked, headers=hub.auth("admin"))
        return answer.json()["data"]

    await deliver()
    (waiting,) = await jobs()
    assert (waiting["state"], waiting["attempt"]) == ("queued", 1)
    assert "500" in waiting["error"]
    for _ in delivery.PAUSES:
        let_time_pass(hub)
        await deliver()
    (failed,) = await jobs(state="failed")
    assert (failed["id"], failed["attempt"]) == (waiting["id"], 1 + len(delivery.PAUSES))
    assert "500" in failed["error"]
    page = await hub.get("/system/jobs?kind=webhook", headers={"Accept": "text/html"} | hub.auth("admin"))
    assert "/account/forms/retry-jobs-of" in page.text
    # All of a kind are tried again by one request, and others are left alone.
    receiver.answers[:] = [200]
    for kind, retried in (("replay", 0), ("webhook", 1)):
        answer = await hub.client.post(f"/api/v1/jobs/retry?kind={kind}", headers=hub.auth("admin"))
        assert answer.json()["retried"] == retried
    await deliver()
    (done,) = await jobs()
    assert (done["state"], done["error"]) == ("done", None)
    assert (await deliveries(hub, number))[0]["state"] == "delivered"


async def test_a_canceled_delivery_is_made_when_retried(hub, receiver, deliver):
    number, _ = await hooked(hub, receiver.url, events=["webhook.test"])
    for _ in range(2):
        await hub.client.post(f"{HOOKS}/{number}/test", headers=hub.auth())
    delivery.Dispatcher(hub.database, TableQueue(hub.database, lease_seconds=60, retry_seconds=0))()
    jobs = (await hub.get("/api/v1/jobs?kind=webhook", headers=hub.auth("admin"))).json()["data"]
    for one in jobs:
        off = await hub.client.delete(f"/api/v1/jobs/{one['id']}", headers=hub.auth("admin"))
        assert off.json()["state"] == "canceled"
        assert one["about"] == f"delivery {one['payload']['delivery']}, webhook.test to webhook {number}"
        path = one["page"].replace("/account/", "/api/v1/")
        assert json.loads((await hub.get(path, headers=hub.auth())).json()["body"])["type"] == "webhook.test"
    ended = await deliveries(hub, number)
    told = {"state": "failed", "attempts": 0, "next_at": None, "error": "canceled by an administrator"}
    assert [{name: one[name] for name in told} for one in ended] == [told] * 2
    hook = (await hub.get(f"{HOOKS}/{number}", headers=hub.auth())).json()
    assert (hook["failing_since"], hook["disabled_at"]) == (None, None), "its address did nothing wrong"
    again = f"{HOOKS}/{number}/deliveries/{ended[0]['id']}/redeliver"
    assert (await hub.client.post(again, headers=hub.auth())).status_code == 202
    retried = await hub.client.post(f"/api/v1/jobs/{jobs[1]['id']}/retry", headers=hub.auth("admin"))
    assert retried.json()["state"] == "queued"
    await deliver()
    assert [one["state"] for one in await deliveries(hub, number)] == ["delivered"] * 2
    assert len(receiver.received) == 2, "each once"


async def test_old_deliveries_are_deleted(hub, receiver, deliver):
    number, _ = await hooked(hub, receiver.url)
    await hub.publish()
    await deliver()
    with hub.database.write(HUB) as session:
        session.execute(update(WebhookDelivery).values(created_at=now() - delivery.KEPT - timedelta(days=1)))
        session.execute(update(Job).values(finished_at=now() - timedelta(days=2)))
        delivery.sweep(session)
        assert session.scalars(select(Job).where(Job.kind == delivery.KIND)).all() == []
    assert await deliveries(hub, number) == []
    assert (await hub.client.delete(f"{HOOKS}/{number}", headers=hub.auth())).status_code == 200


async def test_a_new_webhook_works_although_sqlite_reuses_delivery_ids(hub, make_wheel, receiver, deliver):
    for version in ("0.1.0", "0.2.0"):
        number, _ = await hooked(hub, receiver.url)
        await hub.publish(make_wheel(version=version))
        await deliver()
        (found,) = await deliveries(hub, number)
        assert (found["state"], receiver.received[-1].payload.data.version) == ("delivered", version)
        assert (await hub.client.delete(f"{HOOKS}/{number}", headers=hub.auth())).status_code == 200
    assert len(receiver.received) == 2


async def test_bad_addresses_and_too_many_webhooks_are_rejected(hub, receiver):
    for url in ("ftp://example.org/", "http://10.0.0.1/", "https://ada:pw@example.org/"):
        body = {"url": url, "owner": "alice"}
        refused = await hub.client.post(HOOKS, json=body, headers=hub.auth())
        assert (refused.status_code, refused.json()["code"]) == (422, "bad_webhook_address")
    for number in range(20):
        await hooked(hub, f"{receiver.url}?{number}")
    body = {"url": f"{receiver.url}?0", "owner": "alice"}
    twice = await hub.client.post(HOOKS, json=body, headers=hub.auth())
    assert (twice.status_code, twice.json()["code"]) == (409, "webhook_exists")
    body = {"url": receiver.url, "owner": "alice"}
    refused = await hub.client.post(HOOKS, json=body, headers=hub.auth())
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_webhooks")
    listed = await hub.get(HOOKS, params={"owner": "alice"}, headers=hub.auth())
    assert len(listed.json()["data"]) == 20
    assert "whsec_" not in listed.text
    assert (await hub.get(HOOKS, headers=hub.auth())).status_code == 403
