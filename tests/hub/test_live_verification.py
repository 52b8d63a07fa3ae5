"""A run's page follows the hub's replays of it, and lets who may ask for another one."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from browsers import PASSWORD, browser, form, give_password
from sqlalchemy import select
from wander.wire.verification import ReplayReport
from wander_hub.http import live
from wander_hub.jobs import OPEN, Job, TableQueue
from wander_hub.operation import job_queue
from wander_hub.verification import service
from wander_hub.web.run import replays as page

HTML = {"Accept": "text/html"}
RUN = "01JRUN0000000000000000000A"
LIVE = f"/runs/{RUN}/live"


@pytest.fixture
async def run(hub: Any, run_of: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run by alice that waits to be played again."""
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    manifest, rollouts = run_of(await hub.publish(), reward=0.5)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    return RUN


def told(stream: str) -> list[tuple[str, str]]:
    """Return the events of a stream, each with its data."""
    found = []
    for block in stream.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines()]
        names = [value for name, _, value in lines if name == "event"]
        found += [(names[0], "\n".join(value for name, _, value in lines if name == "data"))] if names else []
    return found


async def test_a_page_follows_a_replay_from_the_queue_to_its_end(hub, run):
    streaming = asyncio.create_task(hub.get(LIVE))
    queue = TableQueue(hub.database)
    streams = hub.client._transport.app.state.streams

    read, real_list = [], page.list_replays
    loop, looks, real = asyncio.get_running_loop(), asyncio.Queue[None](), service.list_states

    def watched(*given: Any) -> Any:
        found = real(*given)
        loop.call_soon_threadsafe(looks.put_nowait, None)
        return found

    async def until_seen() -> None:
        """Wait until the page has been sent what the rows say now."""
        while not looks.empty():
            looks.get_nowait()
        for _ in range(2):
            await looks.get()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "list_states", watched)
        patch.setattr(page, "list_replays", lambda *given: (read.append(1), real_list(*given))[1])
        await until_seen()
        assert streams.open.total() == 1
        lease = queue.claim("another process", [service.KIND])
        await until_seen()
        queue.beat(lease, {"done": 2, "total": 6, "differing": 1})
        await until_seen()
        report = ReplayReport(run_id=RUN, expected=6, recorded=6, replayed=6, same=6, differing=0, failed=0)
        queue.finish(lease, lambda session: service.store_report(session, lease.job_id, report, None))
        answer = await streaming
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["x-accel-buffering"], answer.headers["cache-control"]) == ("no", "no-store")
    queued, begun, running, done, end = told(answer.text)
    assert [one[0] for one in (queued, begun, running, done, end)] == ["changed"] * 4 + ["end"]
    assert len(read) == 4, "what did not change is not read again"
    assert ("queued" in queued[1], "running" in begun[1]) == (True, True)
    assert "2 of 6 rollouts, 1 differed" in running[1]
    assert "6 of 6 rollouts matched" in done[1]
    assert streams.open.total() == 0
    assert [one for one, _ in told((await hub.get(LIVE)).text)] == ["changed", "end"], "one that is over"


async def test_administrators_follow_the_queue_and_look_together(hub, run, monkeypatch):
    admin, queue, reads = hub.auth("admin"), TableQueue(hub.database), []
    real = job_queue.list_states
    monkeypatch.setattr(job_queue, "list_states", lambda *a, **k: (reads.append(1), real(*a, **k))[1])
    all_saw, looks, look = asyncio.Event(), [], live.Streams.look

    async def looked(*given: Any) -> Any:
        found = await look(*given)
        looks.append(found[1] is not None)
        if sum(looks) == 4:
            all_saw.set()
        return found

    monkeypatch.setattr(live.Streams, "look", looked)
    page = (await hub.get("/system/jobs", headers=HTML | admin)).text
    assert 'data-live="/system/jobs/live"' in page
    assert "data-live" not in (await hub.get("/system/jobs?state=done", headers=HTML | admin)).text
    for settings in ("/alice/settings", "/alice/reverse-text/settings"):
        seen = (await hub.get(f"{settings}/jobs", headers=HTML | hub.auth("alice"))).text
        assert f'href="/runs/{RUN}#verification">run {RUN[-10:]} on alice/reverse-text</a>' in seen
        assert f'id="open-jobs" data-live="{settings}/live"' in seen
        assert (await hub.get(f"{settings}/live", headers=hub.auth("bob"))).status_code == 403
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.2)
    watching = [asyncio.create_task(hub.get("/system/jobs/live", headers=admin)) for _ in range(4)]
    await all_saw.wait()
    with hub.database.read() as session:
        numbers = list(session.scalars(select(Job.id).where(Job.state.in_(OPEN))))
    hub.database.commit(lambda session: [queue.cancel(session, number) for number in numbers])
    answers = [told((await one).text) for one in watching]
    assert [name for name, _ in answers[0]] == ["changed", "changed", "end"]
    assert "canceled" in answers[0][1][1]
    assert answers == [answers[0]] * 4, "all see the same"
    (_, part), (end, _) = told((await hub.get("/alice/settings/live", headers=hub.auth("alice"))).text)
    assert ("No replays or checks" in part, end) == (True, "end")
    assert len(reads) < len(looks), "they share their looks"
    nothing = (await hub.get("/alice/settings/jobs", headers=HTML | hub.auth("alice"))).text
    assert "No replays or checks are queued" in nothing
    assert (await hub.get("/system/jobs/live", headers=hub.auth("bob"))).status_code == 403


async def test_streams_are_bounded_and_end_by_themselves(hub, run, monkeypatch):
    monkeypatch.setattr(live, "ALIVE_SECONDS", 0.0)
    monkeypatch.setattr(live, "LONGEST_SECONDS", 0.1)
    answer = await hub.get(LIVE)
    assert [one for one, _ in told(answer.text)] == ["changed"], "the browser asks again"
    assert ": alive\n\n" in answer.text
    monkeypatch.setattr(live, "MOST_OF_ONE", 0)
    refused = await hub.get(LIVE)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
    monkeypatch.setattr(live, "MOST_OF_ONE", 1)
    hub.client._transport.app.state.draining = True
    assert (await hub.get(LIVE)).text == "", "a hub that ends waits for no page"
    assert (await hub.get("/runs/no-such-run/live")).status_code == 404
    assert (await hub.client.head(LIVE)).status_code == 200


async def test_who_leaves_before_the_first_event_is_counted_no_longer(hub, run):
    app = hub.client._transport.app
    scope = dict(type="http", asgi={"spec_version": "2.3"}, method="GET", path=LIVE, raw_path=LIVE.encode())
    scope |= dict(query_string=b"", headers=[(b"host", b"testserver")], client=("::1", 1), scheme="http")

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        await asyncio.Event().wait()

    await app(scope, receive, send)
    assert not app.state.streams.open


async def test_who_may_asks_for_a_replay_on_the_page_and_calls_it_off(hub, run):
    give_password(hub, "bob")
    anybody = (await hub.get(f"/runs/{run}", headers=HTML)).text
    assert f'data-live="{LIVE}"' in anybody
    assert "Reload this page" in anybody
    assert ">Replay</button>" not in anybody
    async with browser(hub) as bob:
        await form(bob, "/login", name="bob", password=PASSWORD)
        page = (await bob.get(f"/runs/{run}", headers=HTML)).text
        assert ">Replay</button>" in page
        assert ">Cancel</button>" not in page, "it was the hub that asked"
        back = f"/runs/{run}#verification"
        asked = await form(bob, "/account/forms/verify", at_run=run, level="rescored", back=back)
        assert asked.headers["location"] == f"/runs/{run}?done=verify#verification"
        page = (await bob.get(f"/runs/{run}", headers=HTML)).text
        assert "requested by bob" in page
        number = re.search(r'name="at_verification" value="(\d+)"', page)[1]
        answer = await form(bob, "/account/forms/cancel-verification", at_verification=number, back=back)
        assert answer.status_code == 303
        assert ">Cancel</button>" not in (await bob.get(f"/runs/{run}", headers=HTML)).text
