"""The only index that an installer needs: names of the hub, and from the index behind it all others."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import httpx
import pytest
from failing_upstream import STATES, failing_upstream
from sqlalchemy import select
from wander_hub.index import upstream
from wander_hub.index.models import PrivateName
from wander_hub.index.negotiation import JSON_V1
from wander_hub.index.upstream import Upstream

AS_JSON = {"Accept": JSON_V1}
DIGEST = "5" * 64
HTML = (
    '<!DOCTYPE html><base href="https://files.example/all/">'
    f'<a href="numpy-2.0-py3-none-any.whl#sha256={DIGEST}"'
    f' data-requires-python="&gt;=3.11" data-core-metadata="sha256={DIGEST}" data-yanked="slow">numpy</a>'
    '<a href="torch-1.0-py3-none-any.whl">of another project</a>'
    '<a href="ftp://files.example/numpy-3.0-py3-none-any.whl">no address</a>'
)
FILE = {
    "filename": "requests-2.0-py3-none-any.whl",
    "url": "../../packages/requests-2.0-py3-none-any.whl",
    "hashes": {"sha256": DIGEST},
    "size": 3,
    "upload-time": "2026-01-01T00:00:00Z",
    "core-metadata": {"sha256": DIGEST},
    "odd": "dropped",
}


class Behind:
    """An index behind the hub, which counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent = False
        self.pages: dict[str, tuple[str, bytes]] = {
            "numpy": ("text/html", HTML.encode()),
            "requests": (JSON_V1, json.dumps({"meta": {}, "name": "requests", "files": [FILE]}).encode()),
        }

    def offer(self, name: str) -> None:
        """Offer a name as somebody hostile would."""
        link = f'<a href="{name.replace("-", "_")}-99.0-py3-none-any.whl">99.0</a>'
        self.pages[name] = ("text/html", link.encode())

    async def answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.split("/")[-2]
        self.asked.append(name)
        await asyncio.sleep(0)
        if self.silent:
            raise httpx.ConnectError("nobody there")
        if name not in self.pages:
            return httpx.Response(404)
        kind, body = self.pages[name]
        return httpx.Response(200, content=body, headers={"Content-Type": kind})


@pytest.fixture
def behind(hub: Any) -> Behind:
    found = Behind()
    app: Any = hub.client._transport.app
    app.state.upstream = Upstream("https://index.example/simple", transport=httpx.MockTransport(found.answer))
    return found


async def test_environments_of_an_owner_are_the_pages_of_its_index(hub, behind, make_wheel):
    await hub.publish(make_wheel(name="echo"))
    behind.offer("echo")
    for headers in ({}, AS_JSON, hub.auth(), {"Accept-Encoding": "zstd", **AS_JSON}):
        sole = await hub.get("/alice/index/echo/", headers=headers)
        own = await hub.get("/alice/simple/echo/", headers=headers)
        assert (sole.status_code, sole.content, sole.headers["etag"]) == (
            200,
            own.content,
            own.headers["etag"],
        )
    (file,) = (await hub.get("/alice/index/echo/", headers=AS_JSON)).json()["files"]
    assert (await hub.get(str(httpx.URL("http://x/alice/index/echo/").join(file["url"]).path))).is_success
    assert (await hub.get("/alice/index/Echo/")).headers["location"] == "/alice/index/echo/"
    assert (await hub.get("/alice/index/")).headers["location"] == "/alice/simple/"
    assert behind.asked == []


async def test_other_names_come_from_the_upstream_index_with_digests(hub, behind):
    page = (await hub.get("/alice/index/requests/", headers=AS_JSON)).json()
    (file,) = page["files"]
    assert file["url"] == "https://index.example/packages/requests-2.0-py3-none-any.whl"
    assert file == {**{k: v for k, v in FILE.items() if k != "odd"}, "url": file["url"]}
    assert (page["meta"]["api-version"], page["versions"]) == ("1.1", ["2.0"])
    html = (await hub.get("/alice/index/numpy/")).text
    (link,) = re.findall("<a .*?</a>", html)
    assert f'href="https://files.example/all/numpy-2.0-py3-none-any.whl#sha256={DIGEST}"' in link
    assert 'data-requires-python="&gt;=3.11"' in link
    assert f'data-core-metadata="sha256={DIGEST}"' in link
    assert 'data-yanked="slow"' in link
    page = (await hub.get("/alice/index/numpy/", headers=AS_JSON)).json()
    assert (page["meta"]["api-version"], page["files"][0]["requires-python"]) == ("1.0", ">=3.11")
    assert behind.asked == ["requests", "numpy"], "a page is kept"
    same = await hub.get(
        "/alice/index/numpy/",
        headers={"If-None-Match": (await hub.get("/alice/index/numpy/")).headers["etag"]},
    )
    assert same.status_code == 304
    assert (await hub.get("/alice/index/no-such/")).status_code == 404
    assert (await hub.get("/alice/index/requests/", params={"held": True})).status_code == 404
    assert (await hub.get("/nobody/index/requests/")).status_code == 404
    assert (await hub.get("/alice/index/requests/", headers={"Accept": "image/png"})).status_code == 406


async def test_simultaneous_requests_for_a_page_ask_upstream_once(hub, behind):
    answers = await asyncio.gather(*(hub.get("/alice/index/requests/") for _ in range(8)))
    assert {one.status_code for one in answers} == {200}
    assert behind.asked == ["requests"]


async def test_cached_pages_are_used_while_upstream_is_silent(hub, behind, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("wander_hub.index.upstream.time.monotonic", lambda: now[0])
    before = (await hub.get("/alice/index/requests/")).content
    behind.silent, now[0] = True, now[0] + 10_000
    assert (await hub.get("/alice/index/requests/")).content == before
    missing = await hub.get("/alice/index/numpy/")
    assert (missing.status_code, missing.json()["code"]) == (503, "upstream_silent")
    assert missing.headers["retry-after"]
    assert behind.asked == ["requests", "requests"], "it is not asked again at once"
    behind.silent, now[0] = False, now[0] + 20
    assert (await hub.get("/alice/index/numpy/")).status_code == 200


async def test_invalid_upstream_pages_are_ignored(hub, behind):
    behind.pages["bad"] = (JSON_V1, b'{"files": 3}')
    behind.pages["worse"] = (JSON_V1, b"<html>")
    for name in ("bad", "worse"):
        assert (await hub.get(f"/alice/index/{name}/")).status_code == 503


async def test_names_of_wander_never_come_from_upstream(hub, behind, make_wheel):
    for name in ("wander-sdk", "wander-more"):
        behind.offer(name)
        answer = await hub.get(f"/alice/index/{name}/")
        assert (answer.status_code, answer.headers["location"]) == (307, f"/wander/simple/{name}/")
    assert behind.asked == []


async def test_an_ambiguous_name_of_another_namespace_is_rejected(hub, behind, make_wheel):
    await hub.publish(make_wheel(name="bob-base"), owner="bob")
    answer = await hub.get("/alice/index/bob-base/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/simple/bob-base/")
    behind.pages.clear()
    behind.offer("bob-rest")
    assert (await hub.get("/alice/index/bob-rest/")).status_code == 200, "nobody here has it"
    behind.offer("bob-tool")
    await hub.publish(make_wheel(name="bob-tool"), owner="bob")
    answer = await hub.get("/alice/index/bob-tool/")
    assert (answer.status_code, answer.json()["code"]) == (409, "ambiguous_name")


async def test_hidden_and_former_names_never_come_from_upstream(hub, behind, make_wheel):
    for name in ("hidden", "gone", "moved"):
        await hub.publish(make_wheel(name=name))
        behind.offer(name)
    api = "/api/v1/environments/alice"
    for name in ("hidden", "moved"):
        body = {"private": True}
        assert (await hub.client.put(f"{api}/{name}/visibility", json=body, headers=hub.auth())).is_success
    body = {"owner": "bob"}
    assert (await hub.client.post(f"{api}/moved/transfer", json=body, headers=hub.auth("admin"))).is_success
    assert (await hub.client.delete(f"{api}/gone", headers=hub.auth())).is_success
    for path in ("index", "simple"):
        for name in ("hidden", "moved", "never-there"):
            assert (await hub.get(f"/alice/{path}/{name}/")).status_code == 401, name
        assert (await hub.get(f"/alice/{path}/hidden/", headers=hub.auth("bob"))).status_code == 401
        assert (await hub.get(f"/alice/{path}/hidden/", headers=hub.auth())).status_code == 200
        moved = await hub.get(f"/alice/{path}/moved/", headers=hub.auth("bob"))
        assert (moved.status_code, moved.headers["location"]) == (301, f"/bob/{path}/moved/")
        assert (await hub.get(f"/alice/{path}/moved/", headers=hub.auth())).status_code == 401
        page = await hub.get(f"/alice/{path}/gone/", headers=AS_JSON)
        assert (page.status_code, page.json()["files"]) == (200, [])
    assert "numpy" not in behind.asked
    assert (await hub.get("/alice/index/numpy/")).status_code == 200, "strangers get what is public elsewhere"
    assert {"hidden", "gone", "moved"}.isdisjoint(behind.asked)


async def test_a_name_that_was_private_stays_401(hub, behind, make_wheel):
    """After a transfer, and for who may read another environment of the owner."""
    for name in ("first", "second"):
        await hub.publish(make_wheel(name=name))
        path = f"/api/v1/environments/alice/{name}"
        assert (
            await hub.client.put(f"{path}/visibility", json={"private": True}, headers=hub.auth())
        ).is_success
    grant = {"role": "reader"}
    path = "/api/v1/environments/alice/second/members/bob"
    assert (await hub.client.put(path, json=grant, headers=hub.auth("admin"))).is_success
    for name in ("first", "second"):
        behind.offer(name)
    for place in ("simple", "index"):
        statuses = {
            name: (await hub.get(f"/alice/{place}/{name}/", headers=hub.auth("bob"))).status_code
            for name in ("first", "second", "other")
        }
        assert statuses == {"first": 401, "second": 200, "other": 401}, "free and private names look the same"
    with hub.database.read() as session:
        assert len(session.scalars(select(PrivateName)).all()) == 2


async def hide(hub: Any, make_wheel: Any, name: str, owner: str = "alice") -> None:
    """Publish a private environment."""
    await hub.publish(make_wheel(name=name), owner=owner)
    path = f"/api/v1/environments/{owner}/{name}/visibility"
    assert (await hub.client.put(path, json={"private": True}, headers=hub.auth(owner))).is_success


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(state, marks=() if state in ("refuses connections", "is silent") else pytest.mark.full)
        for state in STATES
    ],
)
async def test_no_state_of_upstream_reveals_a_private_name(hub, make_wheel, monkeypatch, state):
    """Free and hidden names get the same answer, at first and when the hub knows the state."""
    monkeypatch.setattr(upstream, "_TIMEOUT_SECONDS", 0.8)
    for name, owner in (("secret", "alice"), ("bob-secret", "bob")):
        await hide(hub, make_wheel, name, owner)
    app: Any = hub.client._transport.app
    answers, waited = [], dict[str, list[bool]]()
    with failing_upstream(state) as url:
        for name in ("secret", "free", "bob-secret", "bob-free"):
            app.state.upstream = Upstream(url)
            for _ in range(2):
                begun = time.monotonic()
                answer = await hub.get(f"/alice/index/{name}/")
                waited.setdefault(name, []).append(time.monotonic() - begun > 0.7)
                headers = {key: value for key, value in answer.headers.items() if key != "x-request-id"}
                body = answer.text.replace(answer.json()["request_id"], "").replace(name, "")
                answers.append((answer.status_code, body, headers))
            await app.state.upstream.close()
    assert answers[0][0] == 401
    assert all(answer == answers[0] for answer in answers), answers
    assert waited["secret"] == waited["free"]
    assert waited["bob-secret"] == waited["bob-free"]
    assert (await hub.get("/bob/index/free/", headers=hub.auth())).status_code == 401
    app.state.upstream = Upstream(None)


async def test_a_private_name_is_not_sent_upstream(hub, behind, make_wheel):
    await hide(hub, make_wheel, "secret")
    assert (await hub.get("/alice/index/secret/")).status_code == 401
    (asked,) = behind.asked
    assert "secret" not in asked
    assert (await hub.get("/alice/index/secret/")).status_code == 401
    assert behind.asked == [asked], "the absence of a page is kept"


async def test_names_that_wander_hides_are_not_revealed(hub, behind, make_wheel):
    """The bundled environments come before the index behind, so their owner's names appear in every index."""
    hub.tokens["wander"] = hub.tokens["admin"]
    await hub.publish(make_wheel(name="bundled"), owner="wander")
    assert (await hub.get("/alice/index/bundled/")).headers["location"] == "/wander/simple/bundled/"
    assert (await hub.get("/alice/index/free/")).status_code == 404
    await hide(hub, make_wheel, "secret", "wander")
    behind.offer("secret")
    for name in ("secret", "free"):
        assert (await hub.get(f"/alice/index/{name}/")).status_code == 401, name
    assert "secret" not in behind.asked
    answer = await hub.get("/alice/index/secret/", headers=hub.auth("admin"))
    assert answer.headers["location"] == "/wander/simple/secret/"
