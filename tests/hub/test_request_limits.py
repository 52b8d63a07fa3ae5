"""How many requests a minute somebody may make: told with the time to wait, and held under parallel ones."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest
from wander_hub.app import create_app
from wander_hub.http import limits


@pytest.fixture
def still(monkeypatch) -> None:
    """Have it be the middle of one minute."""
    monkeypatch.setattr(limits.time, "time", lambda: 30.5)


def of(hub, address: str = "192.0.2.1", app=None, **changes) -> httpx.AsyncClient:
    """Return a client at an address, of the same hub with other limits."""
    app = app or create_app(hub.settings.model_copy(update=changes), database=hub.database)
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://hub.test")


async def statuses(client: httpx.AsyncClient, count: int, path: str = "/live", **options) -> Counter[int]:
    method = options.pop("method", "GET")
    answers = await asyncio.gather(*(client.request(method, path, **options) for _ in range(count)))
    return Counter(one.status_code for one in answers)


async def test_a_rate_limit_holds_in_parallel_and_sends_retry_after(hub, still):
    client = of(hub, reads_per_minute=20)
    assert await statuses(client, 50) == {200: 20, 429: 30}
    answer = await client.get("/live")
    assert (answer.headers["retry-after"], answer.json()["code"]) == ("30", "too_many_requests")
    assert answer.headers["ratelimit"] == '"reads";r=0;t=30'
    assert answer.headers["ratelimit-policy"] == '"reads";q=20;w=60'
    assert "wait 30 seconds" in answer.json()["hint"]
    assert answer.headers["x-request-id"] == answer.json()["request_id"]


async def test_a_token_that_was_sent_as_a_name_is_not_logged(hub):
    token = hub.auth()["Authorization"].removeprefix("Bearer ")
    for name, kept in (("request-7", True), (token, False)):
        answer = await hub.get("/live", headers={"X-Request-ID": name})
        assert (answer.headers["x-request-id"] == name) == kept, "a name is logged, a token is not"


async def test_the_next_minute_everybody_may_again(hub, monkeypatch):
    client, clock = of(hub, reads_per_minute=1), [59.0]
    monkeypatch.setattr(limits.time, "time", lambda: clock[0])
    assert await statuses(client, 2) == {200: 1, 429: 1}
    clock[0] = 60.0
    assert await statuses(client, 1) == {200: 1}


async def test_tokens_addresses_and_kinds_of_requests_have_budgets_of_their_own(hub, still):
    client = of(hub, reads_per_minute=3, writes_per_minute=2, uploads_per_minute=1)
    elsewhere = of(hub, "192.0.2.2", app=client._transport.app)
    mine, his = ({"path": "/api/v1/whoami", "headers": hub.auth(user)} for user in ("alice", "bob"))
    assert await statuses(client, 4, **mine) == {200: 3, 429: 1}
    assert await statuses(client, 3, **his) == {200: 3}
    assert await statuses(client, 3) == {200: 3}
    assert await statuses(elsewhere, 3) == {200: 3}
    owned = {"json": {"private_by_default": False}, "headers": hub.auth(), "method": "PUT"}
    assert await statuses(client, 3, "/api/v1/owners/alice/settings", **owned) == {200: 2, 429: 1}
    upload = {"headers": hub.auth(), "method": "POST"}
    assert await statuses(client, 2, "/alice/legacy/", **upload) == {415: 1, 429: 1}


@pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)
async def test_processes_of_a_hub_share_rate_limits(hub, still):
    one, other = of(hub, reads_per_minute=20), of(hub, reads_per_minute=20)
    kept = [client._transport.app.state.limits for client in (one, other)]

    def tell() -> None:
        for unshared in filter(None, [each.unshared() for each in kept]):
            limits.share_spending(hub.database, unshared)

    assert await statuses(one, 12) == {200: 12}
    assert await statuses(other, 1) == {200: 1}
    tell()
    assert await statuses(other, 10) == {200: 7, 429: 3}, "12 were spent elsewhere"
    assert (await other.get("/live")).headers["ratelimit"] == '"reads";r=0;t=30'
    tell()
    assert await statuses(one, 1) == {200: 1}, "who tells nothing hears nothing"
    tell()
    assert await statuses(one, 1) == {429: 1}
    assert kept[1].unshared() == [], "each spending is shared once"
    assert await statuses(of(hub, "192.0.2.2", app=one._transport.app), 20) == {200: 20}


async def test_requests_of_earlier_minutes_do_not_count(hub, monkeypatch):
    one, other = of(hub, reads_per_minute=20), of(hub, reads_per_minute=20)
    clock = [59.0]
    monkeypatch.setattr(limits.time, "time", lambda: clock[0])
    for clock[0] in (59.0, 61.0):
        assert await statuses(one, 20) == {200: 20}
        limits.share_spending(hub.database, one._transport.app.state.limits.unshared())
        assert await statuses(other, 1) == {200: 1}
        limits.share_spending(hub.database, other._transport.app.state.limits.unshared())
        assert await statuses(other, 1) == {429: 1}


def test_late_counts_do_not_affect_the_next_minute(monkeypatch):
    clock = [59.0]
    monkeypatch.setattr(limits.time, "time", lambda: clock[0])
    budget = limits.RequestBudget("reads", 20)
    assert budget.spend("one", 20)
    told = budget.unshared()
    clock[0] = 60.0
    assert budget.spend("one", 5)
    budget.merge_shared(told, {budget.key("one"): 20})
    assert budget.unshared() == {"one": 5}


async def test_guessing_tokens_is_limited_without_affecting_others(hub, still):
    client = of(hub, "2001:db8::1", failures_per_minute=3)
    neighbor = of(hub, "2001:db8::2", app=client._transport.app)
    elsewhere = of(hub, "2001:db8:0:1::1", app=client._transport.app)
    for number in range(5):
        headers = {"Authorization": f"Bearer wnd_{number}"}
        answer = await client.get("/api/v1/whoami", headers=headers)
        assert answer.status_code == (401 if number < 4 else 429)
    for one, status in ((client, 429), (neighbor, 429), (elsewhere, 200)):
        assert (await one.get("/api/v1/whoami", headers=hub.auth())).status_code == status
    assert await statuses(client, 5) == {200: 5}, "without a token nothing is tried"


async def test_invented_tokens_do_not_help_on_public_routes(hub, still):
    client = of(hub, writes_per_minute=10)
    said = Counter[int]()
    for number in range(12):
        made_up = {"Authorization": f"Bearer {number}"}
        said += await statuses(client, 1, "/api/v1/leaks", method="POST", json=[], headers=made_up)
    assert said == {202: 10, 429: 2}


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::"),
        ("x", "x"),
    ],
)
def test_senders_of_ipv4_differ_on_a_socket_of_ipv6_too(host, network):
    assert limits.network_of(host) == network


async def test_an_installation_of_a_thousand_packages_meets_no_limit(hub):
    assert hub.settings.reads_per_minute >= 10 * 2 * 1000


@pytest.mark.parametrize("path", ["/live", "/robots.txt", "/docs"])
async def test_invented_tokens_count_toward_the_read_limit(hub, still, path):
    client = of(hub, reads_per_minute=10)
    made_up = [{"Authorization": f"Bearer {number}"} for number in range(12)]
    given = [(await client.get(path, headers=one)).status_code for one in made_up]
    assert given[10:] == [429, 429], given
    assert (await client.get("/live")).status_code == 200, "who sends none has a budget of their own"


async def test_invented_tokens_do_not_block_a_valid_one(hub, still):
    client = of(hub, reads_per_minute=10)
    assert (await client.get("/api/v1/whoami", headers=hub.auth())).status_code == 200
    for number in range(12):
        await client.get("/live", headers={"Authorization": f"Bearer {number}"})
    assert (await client.get("/api/v1/whoami", headers=hub.auth())).status_code == 200


async def test_behind_a_proxy_that_is_not_named_one_visitor_does_not_lock_out_others(hub, still):
    app = create_app(hub.settings.model_copy(update={"reads_per_minute": 20}), database=hub.database)
    proxy, public = of(hub, "10.1.2.3", app), of(hub, "8.8.8.8", app)
    bad, good = {"X-Forwarded-For": "203.0.113.7"}, {"X-Forwarded-For": "spoofed, 203.0.113.8"}
    assert await statuses(proxy, 30, headers=bad) == {200: 20, 429: 10}
    assert await statuses(proxy, 20, headers=good) == {200: 20}
    seen = (await of(hub, "10.1.2.3").get("/live", headers=good)).json()
    assert (seen["address"], seen["forwarded_for"]) == ("10.1.2.3", "203.0.113.8")
    # What a visitor of the internet makes up counts for nothing.
    assert await statuses(public, 10, headers=bad) == {200: 10}
    assert await statuses(public, 20, headers=good) == {200: 10, 429: 10}
