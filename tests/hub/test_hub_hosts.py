"""A hub answers requests that call it by a name of its own, and no others."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from wander_hub.app import create_app
from wander_hub.http.hosts import Hosts
from wander_hub.settings import Settings


def accepts(host: str | None, address: str | None = "http://127.0.0.1:8600", **settings: Any) -> bool:
    headers = [] if host is None else [(b"host", host.encode())]
    hosts, scope = Hosts(Settings(**settings), address), {"headers": headers}
    first = hosts.accepts(scope)
    assert hosts.accepts(scope) == first, "what is remembered changes nothing"
    return first


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8600", "localhost", "LOCALHOST:80", "localhost.", "[::1]:8600", None]
)
def test_a_local_hub_accepts_local_host_names(host):
    assert accepts(host)


BAD = [
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example:8600",
    "evil@localhost",
    "",
    "localhost:8600:1",
    "a b",
]
BAD += ["localhost/", "[::1", "localhost\r", "10.0.0.1", "localhost:999999"]


@pytest.mark.parametrize("host", BAD)
def test_a_local_hub_rejects_other_host_names(host):
    assert not accepts(host)


def test_configured_host_names_are_accepted():
    public = {"public_url": "https://Hub.example.org/"}
    assert accepts("hub.example.org", **public)
    assert accepts("hub.example.org:8443", **public)
    assert accepts("127.0.0.1:8600", **public), "workers and checks of health on the machine itself"
    assert not accepts("example.org", **public)
    assert not accepts("hub.example.org.evil.example", **public)
    assert accepts("hub.internal", hosts=("hub.internal",))


def test_a_hub_on_every_address_goes_by_numbers_and_names_that_are_nobody_s():
    everywhere = "http://0.0.0.0:8600"
    for host in ("192.0.2.7:8600", "[2001:db8::7]:8600", "hub:8600", "localhost", "0.0.0.0:8600"):
        assert accepts(host, everywhere), host
        assert accepts(host, "http://[::]:8600"), host
    for host in ("evil.example", "192.0.2.7.evil.example", "1.2.3.4.5"):
        assert not accepts(host, everywhere), host
    assert accepts("box.lan:8600", "http://box.lan:8600")
    assert not accepts("evil.example", "http://box.lan:8600")


async def test_every_route_checks_the_host_name(hub, make_wheel):
    await hub.publish()
    app = create_app(hub.settings, database=hub.database, address="http://127.0.0.1:8600")
    ways = (
        "/alice/simple/reverse-text/",
        f"/alice/files/reverse-text/{make_wheel().wheel_name}",
        "/health",
        "/",
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://localhost:8600"
    ) as own:
        for path in (*ways, "/api/v1/environments"):
            assert (await own.get(path)).status_code == 200, path
            refused = await own.get(path, headers={"Host": "evil.example", **hub.auth()})
            assert (refused.status_code, refused.json()["code"]) == (421, "unknown_host"), path
            assert "evil" not in refused.text
            assert refused.headers["x-request-id"]
