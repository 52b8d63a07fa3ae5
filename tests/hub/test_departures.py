"""Users who are disabled, enabled again, or removed."""

from __future__ import annotations

import json
import threading

import pytest
from browsers import PASSWORD, browser, form, give_password
from click.testing import CliRunner
from sqlalchemy import select, update
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service
from wander_hub.accounts.models import User
from wander_hub.audit import list_entries
from wander_hub.cli.main import app as command
from wander_hub.http.problems import HubProblem
from wander_hub.identity import JOB_TOKEN
from wander_hub.people import departures, sessions, sign_in
from wander_hub.people.models import OneTimeCode
from wander_hub.rights.models import Token
from wander_hub.rights.tokens import add_token, make_token


async def ask(hub, method: str, path: str, who: str = "admin", **options):
    return await hub.client.request(method, f"/api/v1{path}", headers=hub.auth(who), **options)


@pytest.fixture
def lab(hub):
    """Alice is the one owner of `lab`, a maintainer of bob's; she has a password and a code for another."""
    give_password(hub, "alice")
    with hub.database.write() as session:
        alice = accounts.user_named(session, "alice")
        service.add_member(session, "lab", alice)
        service.add_member(session, "bob", alice)
        sign_in.make_code(session, alice)
        hub.tokens["job"] = add_token(session, alice, JOB_TOKEN + "1", scopes=("read",))
        publishing = make_token(session, alice.id, "github", claims={"publisher": "1"}, scopes=("publish",))
        hub.tokens["workflow"] = publishing[0]
    return hub


async def test_a_disabled_user_loses_access_immediately(lab, make_wheel):
    hub, spec = lab, make_wheel()
    await hub.publish(spec)
    async with browser(hub) as client:
        assert (await form(client, "/login", name="alice", password=PASSWORD)).status_code == 303
        assert (await ask(hub, "PUT", "/users/alice/disabled", "bob")).status_code == 403
        changed = (await ask(hub, "PUT", "/users/Alice/disabled", follow_redirects=True)).json()
        assert (changed["ownerless"], changed["ended_tokens"]) == (["alice", "lab"], 3)
        assert (await client.get("/api/v1/whoami")).status_code == 401
        for secret in ("alice", "job", "workflow"):
            assert (await ask(hub, "GET", "/whoami", secret)).status_code == 401, secret
        late = await form(client, "/login", name="alice", password=PASSWORD)
        wrong = await form(client, "/login", name="alice", password="x")
        assert (late.status_code, late.text) == (wrong.status_code, wrong.text)
    with hub.database.read() as session:
        assert session.scalar(select(OneTimeCode)) is None
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).status_code == 200
    # Her roles wait, and give nothing meanwhile, to any token that something may have left.
    with hub.database.write() as session:
        session.execute(update(Token).values(revoked_at=None))
        with pytest.raises(HubProblem):
            add_token(session, accounts.user_named(session, "alice"), "late")
        with pytest.raises(HubProblem):
            sign_in.make_code(session, accounts.user_named(session, "alice"))
        with pytest.raises(HubProblem):
            sessions.begin_session(session, accounts.user_named(session, "alice"), hub.settings)
    assert (await ask(hub, "GET", "/whoami", "alice")).status_code == 401
    enabled = (await ask(hub, "DELETE", "/users/alice/disabled")).json()
    assert enabled["user"]["disabled_at"] is None
    assert (await ask(hub, "GET", "/whoami", "alice")).status_code == 401, "what was left ended then"
    with hub.database.write() as session:
        hub.tokens["alice"] = add_token(session, accounts.user_named(session, "alice"), "new")
    assert (await ask(hub, "GET", "/whoami", "alice")).json()["owners"] == ["alice", "bob", "lab"]


async def test_a_removed_user_keeps_publications_and_name(lab, make_wheel):
    hub = lab
    await hub.publish(make_wheel())
    changed = (await ask(hub, "DELETE", "/users/alice")).json()
    assert (changed["ownerless"], changed["ended_tokens"]) == (["alice", "lab"], 3)
    assert (await ask(hub, "GET", "/whoami", "alice")).status_code == 401
    members = (await ask(hub, "GET", "/owners/bob/members", "bob")).json()["data"]
    assert [one["user"] for one in members] == ["bob"]
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).json()["owner"] == "alice"
    with pytest.raises(HubProblem, match="already taken"), hub.database.write() as session:
        service.add_user(session, "alice")
    back = await ask(hub, "DELETE", "/users/alice/disabled")
    assert (back.status_code, back.json()["code"]) == (409, "user_removed")
    assert (await ask(hub, "DELETE", "/users/nobody")).status_code == 404
    first = (await ask(hub, "GET", "/users", params={"limit": 2})).json()
    rest = (await ask(hub, "GET", "/users", params={"limit": 2, "cursor": first["next"]})).json()
    assert [one["name"] for one in first["data"] + rest["data"]] == ["admin", "alice", "bob"]
    assert (first["data"][1]["removed_at"] is not None, rest["next"]) == (True, None)
    assert (await ask(hub, "GET", "/users", "bob")).status_code == 403
    with hub.database.read() as session:
        told = list_entries(session, action="user")
    assert [(one.action, one.actor, one.target) for one in told] == [("user.remove", "admin", "alice")]


async def test_the_last_administrator_and_owner_cannot_leave(lab):
    hub = lab
    for method, path in (("PUT", "/users/admin/disabled"), ("DELETE", "/users/admin")):
        refused = await ask(hub, method, path)
        assert (refused.status_code, refused.json()["code"]) == (409, "last_administrator")
    with hub.database.write() as session:
        service.add_member(session, "lab", accounts.user_named(session, "bob"), "owner")
    assert (await ask(hub, "PUT", "/users/alice/disabled")).json()["ownerless"] == ["alice"]
    left = await ask(hub, "DELETE", "/owners/lab/members/bob", "bob")
    assert (left.status_code, left.json()["code"]) == (409, "last_owner"), "a disabled owner does not count"


async def test_the_last_owner_must_hand_over_an_organization(lab):
    hub, role = lab, {"role": "owner"}
    assert (await ask(hub, "PUT", "/owners/lab/members/bob", "alice", json=role)).status_code == 200
    leave = await ask(hub, "DELETE", "/owners/lab/members/alice", "alice")
    assert (leave.status_code, leave.json()["code"]) == (409, "last_owner"), "who is invited owns nothing yet"
    assert "`wander env owner add lab USER --role owner`" in leave.json()["hint"]
    (waiting,) = (await ask(hub, "GET", "/account/invitations", "bob")).json()["data"]
    await ask(hub, "POST", f"/account/invitations/{waiting['id']}/accept", "bob")
    assert (await ask(hub, "DELETE", "/owners/lab/members/alice", "alice")).json()["data"] == []
    # Bob is its last owner now, and so is his token: he ends that, then is removed; administrators go on.
    (token,) = (await ask(hub, "GET", "/tokens", "bob")).json()["data"]
    assert (await ask(hub, "DELETE", f"/tokens/{token['prefix']}", "bob")).status_code == 200
    assert (await ask(hub, "GET", "/owners", "bob")).status_code == 401
    removed = (await ask(hub, "DELETE", "/users/bob")).json()
    assert (removed["ownerless"], removed["ended_tokens"]) == (["bob", "lab"], 0)
    assert (await ask(hub, "PUT", "/owners/lab/members/alice", json=role)).status_code == 200
    assert (await ask(hub, "GET", "/owners", "alice")).json()["data"][-1]["role"] == "owner"
    listed = (await ask(hub, "GET", "/organizations")).json()["data"]
    assert [(one["name"], one["owners"]) for one in listed] == [("lab", ["alice"])]


def test_two_administrators_do_not_disable_each_other(hub):
    with hub.database.write() as session:
        service.add_user(session, "second", admin=True)
    barrier, refused = threading.Barrier(2), []

    def disable(name: str) -> None:
        barrier.wait()
        try:
            hub.database.commit(lambda session: departures.disable_user(session, name))
        except HubProblem as problem:
            refused.append(problem.code)

    threads = [threading.Thread(target=disable, args=(one,)) for one in ("admin", "second")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert refused == ["last_administrator"]
    with hub.database.read() as session:
        left = select(User).where(User.admin, User.disabled_at.is_(None))
        assert len(session.scalars(left).all()) == 1


def test_removing_a_user_prints_what_remains(lab, monkeypatch):
    monkeypatch.setenv("WANDER_HUB_DATABASE_URL", lab.database.url)
    monkeypatch.setenv("WANDER_HUB_DATA", str(lab.settings.data))

    def run(*words: str, status: int = 0) -> str:
        done = CliRunner().invoke(command, ["user", *words])
        assert done.exit_code == status, done.output
        return done.stdout

    said = run("disable", "alice")
    assert said == "disabled `alice`, revoked 3 tokens; administrators now control: alice, lab\n"
    assert run("enable", "alice") == "enabled `alice`, revoked 0 tokens\n"
    run("remove", "alice", status=2)
    assert json.loads(run("remove", "alice", "--yes", "--json"))["user"]["removed_at"]
    states = {one["name"]: one["state"] for one in json.loads(run("list", "--json"))["data"]}
    assert states == {"admin": "active", "alice": "removed", "bob": "active"}
