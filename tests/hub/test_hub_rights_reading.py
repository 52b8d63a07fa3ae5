"""What strangers see of private environments: nothing, in the same words as of what does not exist."""

from __future__ import annotations

import base64
import re
from contextvars import ContextVar
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts
from outages import OUTAGES, outage
from run_parcels import Parcel
from sealed_rows import keep_sealed_set
from small_models import checkpoint
from sqlalchemy import event
from staged_uploads import PATH, VERSIONS, StagedUpload, announced, pushed
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service as account_service
from wander_hub.accounts.models import Membership
from wander_hub.database import now
from wander_hub.identity import HUB
from wander_hub.people import sessions
from wander_hub.rights.tokens import add_token

MARK = "hidden-treasure"
RUN = "01JRUNPRIVATE000000000000A"
PRIVATE = {
    "owner": "alice",
    "name": MARK,
    "project": MARK,
    "version": "0.1.0",
    "filename": "hidden_treasure-0.1.0-py3-none-any.whl",
    "run_id": RUN,
    "commitment": "",  # `private` makes the set
    "format": "inspect",
    "number": "0",
    "place": "0",
    "user": "alice",
    "namespace": "alice",
    "transfer_id": "0" * 32,
    "part": "run",
    "board": "0" * 8,
    "revision": "latest",
    "webhook": "1",
    "delivery": "1",
    "path": "api/rights",
    "section": "jobs",
    "own_section": "tokens",
}
ABSENT = PRIVATE | {
    "name": "nowhere-known",
    "project": "nowhere-known",
    "filename": "nowhere_known-0.1.0-py3-none-any.whl",
    "run_id": "01JRUNABSENT0000000000000A",
    "commitment": "0" * 64,
}


TABLE = {
    path: who
    for who, paths in re.findall(
        r"(?m)^\| ([a-z ]+)(?:,[^|]*)? \| (`/[^|]*) \|$",
        (Path(__file__).parents[2] / "docs/api/rights.md").read_text(),
    )
    for path in re.findall("`([^`]+)`", paths)
}
"""What the documentation says of each route that reads."""
ASKING = ContextVar("ASKING", default=False)
"""Whether what goes on was begun by a test's request."""
NOT_THERE = {
    "/_/oidc/audience",
    "/api/v1/environments/{owner}/{name}/versions/{version}/check",
    "/api/v1/environments/{owner}/{name}/versions/{version}/learning",
    "/api/v1/environments/{owner}/{name}/versions/{version}/pylock.toml",
    "/api/v1/runs/{run_id}/hiding",
    "/files/{project}/{filename}",
    "/files/{project}/{filename}.metadata",
    "/login/oidc",
    "/login/oidc/callback",
    "/runs/{run_id}/rollouts/{number}/turns/{place}",
    "/simple/namespace/{namespace}",
    "/simple/{project}/",
    "/static/{name}",
    "/{owner}/{name}/versions/{version}/image",
    "/{owner}/integrity/{project}/{version}/{filename}/provenance",
}
"""What the hub of these tests does not have, or has of public environments alone."""


@pytest.fixture
async def private(hub, make_wheel, run_of, request):
    """Alice has a public environment and a private one with a run, which carol may read; and such a model.

    An internal one where the test asks for that.
    """
    visibility = getattr(request, "param", "private")
    await hub.publish(make_wheel(name="open", files={"open_.py": b"def load_environment(): ...\n"}))
    spec = make_wheel(name=MARK, readme=f"# {MARK}\n", summary=f"The {MARK}.", keywords=MARK)
    answer = await hub.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": visibility})
    assert answer.status_code == 200, answer.text
    manifest, rollouts = run_of(None, name=MARK, run_id=RUN)
    posted = await hub.post_run(manifest, rollouts, artifacts={"notes.txt": MARK.encode()})
    assert posted.status_code == 201, posted.text
    model = await pushed(hub.client, hub.auth(), checkpoint(), name=MARK, **{visibility: True})
    assert model.status_code == 201, model.text
    PRIVATE["commitment"] = keep_sealed_set(hub.database, MARK, opened=True)
    with hub.database.write(HUB) as session:
        carol = account_service.add_user(session, "carol")
        hub.tokens["carol"] = add_token(session, carol, "test")
    path = f"/api/v1/environments/alice/{MARK}/members/carol"
    given = await hub.client.put(path, json={"role": "reader"}, headers=hub.auth("admin"))
    assert given.status_code == 200, given.text
    return hub


def read_paths(hub) -> list[str]:
    app = hub.client._transport.app
    found = {one.path for one in iter_route_contexts(app.routes) if "GET" in (one.methods or ())}
    return sorted(found)


def filled(path: str, values: dict[str, str]) -> str:
    if "artifacts" in path:
        values = values | {"name": "notes.txt"}
    if "models" in path:
        values = values | {"filename": "config.json"}
    return re.sub(r"{(\w+)[^}]*}", lambda match: values[match[1]], path)


def comparable(answer) -> tuple[object, ...]:
    """Return all of an answer but what names the request."""
    body = re.sub(rb'"request_id":"[^"]*"', b"", answer.content)
    body = re.sub(rb"<code>[0-9a-f]{16}</code>|[0-9a-f]{16}", b"", body)
    headers = {k: v for k, v in answer.headers.items() if k not in ("x-request-id", "etag", "content-length")}
    for values in (PRIVATE, ABSENT):
        for key in ("name", "filename", "run_id", "commitment"):
            body = body.replace(values[key].encode(), b"")
            headers = {k: v.replace(values[key], "") for k, v in headers.items()}
    return answer.status_code, body, headers


@pytest.mark.parametrize(
    ("private", "caller", "accept"),
    [
        ("private", "bob", "application/json"),
        *(
            pytest.param(visibility, caller, accept, marks=pytest.mark.full)
            for visibility, caller, accept in (
                ("private", "bob", "text/html"),
                ("private", None, "application/json"),
                ("private", None, "text/html"),
                ("internal", None, "application/json"),
                ("internal", None, "text/html"),
            )
        ),
    ],
    indirect=["private"],
)
async def test_reads_reveal_nothing_private(private, caller, accept):
    await compare_reads(private, caller, accept)


@pytest.mark.full
@pytest.mark.parametrize("away", OUTAGES[1:])
async def test_reads_reveal_nothing_private_during_outages(private, away):
    hub = private
    with outage(hub, away):
        await compare_reads(hub, "bob", "application/json")


async def compare_reads(hub, caller: str | None, accept: str) -> None:
    """Read everything private, and the same of a name that nobody has."""
    asked = list[str]()

    def keep(*given: object) -> None:
        if ASKING.get():  # and not what the hub does beside requests
            asked.append(given[2])

    event.listen(hub.database.engine, "before_cursor_execute", keep)
    ASKING.set(True)
    headers = {"Accept": accept} | (hub.auth(caller) if caller else {})
    for path in read_paths(hub):
        there, took = await hub.get(filled(path, PRIVATE), headers=headers), [*asked]
        asked.clear()
        absent, takes = await hub.get(filled(path, ABSENT), headers=headers), [*asked]
        asked.clear()
        if "{name" in path or "{project" in path or "{run_id" in path or "{commit" in path:
            assert comparable(there) == comparable(absent), path
            assert took == takes, f"{path}: nor is it told by time, which the database takes"
            assert there.status_code >= 300, (path, there.text)
        elif MARK.encode() in there.content:
            raise AssertionError(f"{path} tells of the private environment: {there.text}")


async def everything_to_read(hub, make_wheel, run_of) -> dict[str, str]:
    """Make what the routes name, where it was not made; return their values."""
    with hub.database.write(HUB) as session:
        alice = accounts.owner_named(session, "alice")
        for name in ("reader", "owner"):
            user = account_service.add_user(session, name)
            hub.tokens[name] = add_token(session, user, "test")
            session.add(Membership(owner_id=alice.id, user_id=user.id, role=name))
        gone = account_service.add_user(session, "gone")
        session.add(Membership(owner_id=alice.id, user_id=gone.id, role="owner"))
        hub.tokens["disabled"], gone.disabled_at = add_token(session, gone, "left"), now()
        for name in ("bob", "reader"):
            user = accounts.user_named(session, name)
            hub.tokens[f"browser of {name}"] = (
                f"wander-session={sessions.begin_session(session, user, hub.settings)}"
            )
            hub.tokens[f"results of {name}"] = add_token(session, user, "ci", scopes=("results",))
    parcel = Parcel.of(*run_of(None, name=MARK, run_id="01JRUNPOSTED0000000000000A"))
    begun = await StagedUpload.begin_run(hub.client, hub.auth(), parcel)
    assert begun.opened.status_code == 201, begun.opened.text
    spec = make_wheel(name=MARK, version="0.2.0")
    body = announced({spec.wheel_name: spec.build()}, name=MARK, version="0.2.0")
    opened = await hub.client.post(VERSIONS, json=body, headers=hub.auth())
    assert opened.status_code == 201, opened.text
    hook = {"url": "https://hook.example/", "owner": "alice"}
    made = await hub.client.post("/api/v1/webhooks", json=hook, headers=hub.auth())
    test = f"/api/v1/webhooks/{made.json()['webhook']['id']}/test"
    assert (await hub.client.post(test, headers=hub.auth())).json()["id"] == 1
    assert made.json()["webhook"]["id"] == 1, made.text
    asked = await hub.client.post(
        f"/api/v1/runs/{RUN}/verifications", json={"sample": None}, headers=hub.auth()
    )
    assert asked.json()["id"] == 1, asked.text
    pushed = await StagedUpload.begin_model(hub.client, hub.auth(), checkpoint(), name="on-its-way")
    return PRIVATE | {"runs": begun.id, "versions": opened.json()["id"], "models": pushed.id}


async def test_each_route_documents_who_may_read(hub):
    assert sorted(TABLE) == read_paths(hub), "say in docs/api/rights.md who may read the new route"


@pytest.mark.full
async def test_reading_rights_match_the_documentation(private, make_wheel, run_of):
    hub, paths = private, read_paths(private)
    values = await everything_to_read(hub, make_wheel, run_of)
    readers = {"reader", "carol", "owner", "alice", "admin", "browser of reader", "results of reader"}
    people = readers | {"bob", "browser of bob", "results of bob"}
    may = {
        "anybody": people | {None},
        "yourself": people,
        "yourself with an unrestricted token": people - {"results of bob", "results of reader"},
        "reader": readers,
        "reader of the owner": readers - {"carol"},
        "owner": {"owner", "alice", "admin"},
        "its maker": {"alice"},
        "administrator": {"admin"},
    }
    for path in paths:
        here = values | {"number": "1"} if "verifications" in path else values
        if path.startswith(PATH):
            here = here | {"transfer_id": values[path.split("/")[4]]}
        for caller in sorted(people | {None}, key=str):
            answer = await hub.get(filled(path, here), headers=hub.auth(caller) if caller else {})
            told = (path, caller, answer.status_code, answer.text[:300])
            if caller not in may[TABLE[path]]:
                asked = answer.status_code == 303 and answer.headers["location"].startswith("/login?")
                assert asked or answer.status_code in (401, 403, 404), told
            elif path not in NOT_THERE:
                assert answer.status_code < 400, told
            else:
                assert answer.status_code == 404, told
        if TABLE[path] != "anybody":
            answer = await hub.get(filled(path, here), headers=hub.auth("disabled"))
            assert answer.status_code == 401, (path, "disabled", answer.status_code)


async def test_lists_and_counts_leave_private_environments_out(private):
    hub = private
    for caller, expected in (
        (None, ["open"]),
        ("bob", ["open"]),
        ("carol", [MARK, "open"]),
        ("alice", [MARK, "open"]),
    ):
        headers = hub.auth(caller) if caller else {}
        for query in ("", f"?q={MARK[:6]}", "?tag=" + MARK, "?owner=alice"):
            listed = (await hub.get(f"/api/v1/environments{query}", headers=headers)).json()["data"]
            names = sorted(one["name"] for one in listed)
            assert names == (
                expected if query in ("", "?owner=alice") else [n for n in expected if n == MARK]
            )
        runs = (await hub.get("/api/v1/runs", headers=headers)).json()["data"]
        ids = [one["run_id"].partition("~")[0] for one in runs]
        assert ids == ([RUN] if MARK in expected else [])
        home = (await hub.get("/", headers=headers | {"Accept": "text/html"})).text
        assert (MARK in home) == (MARK in expected)
    near = await hub.get("/api/v1/environments/alice/hidden-treasur")
    assert MARK not in near.text, "no suggestion of a private name"
    mine = await hub.get("/api/v1/environments/alice/hidden-treasur", headers=hub.auth())
    assert MARK in mine.json()["hint"]


async def test_the_index_of_a_private_owner_looks_unknown_to_strangers(private):
    hub = private
    for project in (MARK, "no-such-thing", "requests"):
        for headers in ({}, hub.auth("bob")):
            answer = await hub.get(f"/alice/simple/{project}/", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == 'Basic realm="wander"'
    assert (await hub.get("/alice/simple/open/")).status_code == 200
    assert (await hub.get("/bob/simple/requests/")).status_code == 404, (
        "who has nothing private hides nothing"
    )
    for who in ("alice", "carol", "admin"):
        assert (await hub.get("/alice/simple/requests/", headers=hub.auth(who))).status_code == 404
    public = (await hub.get("/alice/simple/", headers={"Accept": "text/html"})).text
    assert MARK not in public
    assert "open" in public
    for who in ("alice", "carol"):
        assert MARK in (await hub.get("/alice/simple/", headers=hub.auth(who))).text


async def test_an_index_with_nothing_public_asks_for_a_token(hub, make_wheel):
    spec = make_wheel()
    odd = await hub.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": "hidden"})
    assert (odd.status_code, odd.json()["code"]) == (400, "bad_form")
    await hub.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": "private"})
    for headers in ({}, hub.auth("bob")):
        assert (await hub.get("/alice/simple/", headers=headers)).status_code == 401
    assert "reverse-text" in (await hub.get("/alice/simple/", headers=hub.auth())).text


async def test_installers_send_the_token_as_a_password(private):
    hub = private
    secret = base64.b64encode(f"__token__:{hub.tokens['carol']}".encode()).decode()
    headers = {"Authorization": f"Basic {secret}", "Accept": "application/vnd.pypi.simple.v1+json"}
    page = await hub.get(f"/alice/simple/{MARK}/", headers=headers)
    assert page.status_code == 200
    for suffix in ("", ".metadata"):
        url = str(page.url.join(page.json()["files"][0]["url"])) + suffix
        assert (await hub.get(url)).status_code == 401
        file = await hub.get(url, headers=headers)
        assert file.status_code == 200
        assert file.headers["cache-control"].startswith("private"), "no shared cache may keep it"


async def test_restricted_tokens_read_only_their_target(private):
    hub = private
    path = f"/api/v1/environments/alice/{MARK}"
    with hub.database.write(HUB) as session:
        alice = accounts.user_named(session, "alice")
        account_service.add_member(session, "team", alice)
        team = accounts.owner_named(session, "team")
        own = accounts.owner_named(session, "alice")
        elsewhere = add_token(session, alice, "t", scopes=("read",), owner=team)
        here = add_token(session, alice, "a", scopes=("results",), owner=own)
    assert (await hub.get(path, headers={"Authorization": f"Bearer {elsewhere}"})).status_code == 404
    assert (await hub.get(path, headers={"Authorization": f"Bearer {here}"})).status_code == 200


async def test_a_published_environment_is_visible_immediately(private):
    hub = private
    path = f"/api/v1/environments/alice/{MARK}"
    await hub.client.put(f"{path}/visibility", json={"private": False}, headers=hub.auth())
    assert (await hub.get(path)).status_code == 200
    assert (await hub.get(f"/alice/simple/{MARK}/")).status_code == 200
    assert (await hub.get("/alice/simple/requests/")).status_code == 404
    await hub.client.put(f"{path}/visibility", json={"private": True}, headers=hub.auth())
    assert (await hub.get(path)).status_code == 404
    assert (await hub.get(f"/alice/simple/{MARK}/")).status_code == 401


async def test_new_environments_of_a_careful_owner_are_private(hub, make_wheel):
    settings = {"private_by_default": True}
    answer = await hub.client.put("/api/v1/owners/alice/settings", json=settings, headers=hub.auth())
    assert answer.json() == settings
    await hub.publish()
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).status_code == 404
    spec = make_wheel(version="0.2.0")
    clash = await hub.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": "public"})
    assert (clash.status_code, clash.json()["code"]) == (409, "visibility_differs")
