"""Signing in with a browser: passwords, cookies, and who else may send a form."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from asgi_client import asgi_client
from browsers import PASSWORD, browser, form, give_password
from sqlalchemy import select, update
from wander_hub.accounts import repository as accounts
from wander_hub.app import create_app
from wander_hub.audit import list_entries
from wander_hub.database import now
from wander_hub.people import passwords, sign_in
from wander_hub.people.models import BrowserSession, SecondFactor, SignInAttempts
from wander_hub.people.sessions import IDLE_HOURS
from wander_hub.web.sign_in import local_path


@pytest.fixture
def alice(hub):
    give_password(hub, "alice")
    return hub


async def test_a_private_page_is_read_after_signing_in(alice, make_wheel):
    spec = make_wheel()
    hidden = {"wander_visibility": "private"}
    assert (await alice.upload(spec.build(), spec.wheel_name, fields=hidden)).status_code == 200
    async with browser(alice) as client:
        assert (await client.get("/alice/reverse-text")).status_code == 404
        answer = await form(client, "/login", name="Alice ", password=PASSWORD, next="/alice/reverse-text")
        assert (answer.status_code, answer.headers["location"]) == (303, "/alice/reverse-text")
        page = await client.get("/alice/reverse-text", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "Sign out" in page.text
        assert page.headers["cache-control"] == "private, no-store"
        whoami = (await client.get("/api/v1/whoami")).json()
        assert (whoami["user"], whoami["token"]["name"], whoami["owners"]) == ("alice", "browser", ["alice"])
        await form(client, "/logout")
        assert (await client.get("/alice/reverse-text")).status_code == 404
        assert (await client.get("/api/v1/whoami")).status_code == 401


async def test_the_session_cookie_is_secure_and_http_only(alice):
    async with browser(alice, "https://hub.test") as client:
        first = await form(client, "/login", name="alice", password=PASSWORD)
        parts = set(first.headers["set-cookie"].split("; "))
        assert next(iter(client.cookies)) == "__Host-wander-session"
        assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax"} <= parts
        before = client.cookies["__Host-wander-session"]
        # The cookie that a visitor came with is not the one they leave with: nobody can plant one.
        second = await form(client, "/login", name="alice", password=PASSWORD)
        assert second.cookies["__Host-wander-session"] != before
        planted = {"Cookie": f"wander-session={before}"}
        async with browser(alice, "https://hub.test") as other:
            assert (await other.get("/api/v1/whoami", headers=planted)).status_code == 401
    with alice.database.read() as session:
        assert before not in {one.sha256 for one in session.scalars(select(BrowserSession))}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://hub.test"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://hub.test:81"},
    ],
    ids=str,
)
async def test_forms_of_other_sites_change_nothing(alice, headers):
    async with browser(alice) as client:
        await form(client, "/login", name="alice", password=PASSWORD)
        for method, path in (
            ("PUT", "/api/v1/owners/alice/settings"),
            ("DELETE", "/api/v1/account/sessions"),
            ("POST", "/logout"),
            ("POST", "/login"),
            ("POST", "/login/password"),
        ):
            body = {"private_by_default": True} if method == "PUT" else None
            answer = await client.request(method, path, json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "other_site"), path
        own = {"Sec-Fetch-Site": "same-origin"}
        body = {"private_by_default": True}
        answer = await client.put("/api/v1/owners/alice/settings", json=body, headers=own)
        assert answer.status_code == 200
        # A token is nothing that a browser sends by itself.
        token = {**alice.auth(), **headers}
        assert (await client.put("/api/v1/owners/alice/settings", json=body, headers=token)).is_success


@pytest.mark.parametrize(
    "wanted",
    [
        *(
            "https://evil.test",
            "//evil.test",
            "/\\evil.test",
            "/\t/evil.test",
            "javascript:alert(1)",
            "",
            "x",
        ),
        *("/\r\nSet-Cookie: a=b", "/ü", "/a b"),
    ],
)
async def test_sign_in_redirects_only_within_the_hub(alice, wanted):
    assert local_path(wanted) == "/"
    async with browser(alice) as client:
        answer = await form(client, "/login", name="alice", password=PASSWORD, next=wanted)
        assert answer.headers["location"] == "/"
        assert len(answer.headers.get_list("set-cookie")) == 1


def test_a_redirect_within_the_hub_is_kept():
    for path in ("/", "/alice/x?version=1%2B2#top", "/runs/01A/rollouts/3"):
        assert local_path(path) == path


async def test_sign_in_errors_reveal_nothing(alice, monkeypatch):
    computed = []
    verify = passwords.verify_password
    monkeypatch.setattr(passwords, "verify_password", lambda *given: computed.append(1) or verify(*given))
    said = set()
    async with browser(alice) as client:
        for name, password in (("alice", "wrong"), ("bob", PASSWORD), ("nobody", PASSWORD), ("", "")):
            answer = await form(client, "/login", name=name, password=password)
            said.add((answer.status_code, answer.text, "set-cookie" in answer.headers))
    assert len(said) == 1
    assert len(computed) == 4, "as long for who does not exist, or has no password"


async def test_guessing_passwords_is_limited_without_locking_others_out(alice):
    async with browser(alice) as client, browser(alice, address="192.0.2.9") as elsewhere:
        tries = [form(client, "/login", name="alice", password=f"guess {number}") for number in range(12)]
        statuses = [one.status_code for one in await asyncio.gather(*tries)]
        assert set(statuses) <= {401, 429}
        with alice.database.read() as session:  # none of those that came at once went uncounted
            assert {one.failures for one in session.scalars(select(SignInAttempts))} == {statuses.count(401)}
        late = await form(client, "/login", name="alice", password="x")
        while late.status_code != 429:  # each time the wait is twice as long
            late = await form(client, "/login", name="alice", password="x")
        assert (await form(client, "/login", name="alice", password=PASSWORD)).status_code == 429
        assert int(late.headers["retry-after"]) >= 1
        assert (await form(client, "/login", name="bob", password="x")).status_code == 401
        assert (await form(elsewhere, "/login", name="alice", password=PASSWORD)).status_code == 303
        with alice.database.write() as session:
            session.execute(update(SignInAttempts).values(until=now()))
        assert (await form(client, "/login", name="alice", password=PASSWORD)).status_code == 303
        assert (await form(client, "/login", name="alice", password="x")).status_code == 401


async def test_failed_logins_expire_and_rejected_ones_do_not_count(alice):
    def rows() -> list[int]:
        with alice.database.read() as session:
            return sorted(one.failures for one in session.scalars(select(SignInAttempts)))

    async with browser(alice) as client:
        await form(client, "/login", name="alice", password="x")
        for until, status in ((timedelta(minutes=9), 429), (timedelta(hours=-3, minutes=-1), 401)):
            with alice.database.write() as session:
                session.execute(update(SignInAttempts).values(until=now() + until, failures=80))
            answer = await form(client, "/login", name=f"name{status}", password="x")
            assert answer.status_code == status
            assert rows() == ([80, 80] if status == 429 else [1, 11, 80])


async def test_sessions_end(alice):
    async with browser(alice) as client:
        for change in (
            {"expires_at": now()},
            {"seen_at": now() - timedelta(hours=IDLE_HOURS)},
        ):
            await form(client, "/login", name="alice", password=PASSWORD)
            assert (await client.get("/api/v1/whoami")).status_code == 200
            with alice.database.write() as session:
                session.execute(update(BrowserSession).values(**change))
            assert (await client.get("/api/v1/whoami")).status_code == 401
            assert (await client.get("/")).status_code == 200


async def test_a_new_password_signs_out_everywhere_else(alice):
    own = {"Sec-Fetch-Site": "same-origin"}
    path = "/api/v1/account/password"
    async with browser(alice) as here, browser(alice) as there:
        for client in (here, there):
            await form(client, "/login", name="alice", password=PASSWORD)
        wrong = await here.put(path, json={"old": "x", "new": "another fine secret"}, headers=own)
        assert (wrong.status_code, wrong.json()["code"]) == (403, "wrong_password")
        weak = await here.put(path, json={"old": PASSWORD, "new": "password1234"}, headers=own)
        assert (weak.status_code, weak.json()["code"]) == (422, "bad_password")
        body = {"old": PASSWORD, "new": "another fine secret"}
        assert (await here.put(path, json=body, headers=own)).status_code == 204
        assert (await here.get("/api/v1/whoami")).status_code == 200
        assert (await there.get("/api/v1/whoami")).status_code == 401
        assert (await here.delete("/api/v1/account/sessions", headers=own)).status_code == 204
        assert (await here.get("/api/v1/whoami")).status_code == 401
        assert (await form(there, "/login", name="alice", password=PASSWORD)).status_code == 401
        assert (await form(there, "/login", name="alice", password=body["new"])).status_code == 303


async def test_a_password_that_changed_meanwhile_is_not_changed_again(alice, monkeypatch):
    hash_password = passwords.hash_password

    def meanwhile(password: str, user: str) -> str:
        with alice.database.write() as session:
            accounts.user_named(session, "alice").password_hash = "another"
        return hash_password(password, user)

    async with browser(alice) as client:
        await form(client, "/login", name="alice", password=PASSWORD)
        monkeypatch.setattr(passwords, "hash_password", meanwhile)
        body = {"old": PASSWORD, "new": "another fine secret"}
        own = {"Sec-Fetch-Site": "same-origin"}
        answer = await client.put("/api/v1/account/password", json=body, headers=own)
        assert (answer.status_code, answer.json()["code"]) == (403, "wrong_password")


async def test_a_weak_password_of_old_is_hashed_again(alice, monkeypatch):
    with alice.database.write() as session:
        accounts.user_named(session, "alice").password_hash = passwords.hash_again("password1234")
    monkeypatch.setattr(passwords, "is_outdated", lambda _: True)
    async with browser(alice) as client:
        assert (await form(client, "/login", name="alice", password="password1234")).status_code == 303


@pytest.mark.parametrize("password", ["short", "password1234", "alicewander", "qwertyuiop12", "x" * 201])
def test_common_passwords_are_rejected(password):
    assert passwords._fault(password, "alice") is not None


def test_passwords_are_stored_as_argon2id(alice):
    with alice.database.read() as session:
        kept = accounts.user_named(session, "alice").password_hash
    assert kept.startswith("$argon2id$")
    assert not passwords.is_outdated(kept)
    assert passwords.is_outdated(kept.replace("t=2", "t=1"))


async def test_a_link_is_used_once_to_choose_a_password(hub):
    def make(session):
        return sign_in.make_code(session, accounts.user_named(session, "bob"))

    old, code = hub.database.commit(make), hub.database.commit(make)
    link = sign_in.link_of(code, "http://hub.test")
    async with browser(hub) as client:
        assert (await client.get("/login/password")).status_code == 200
        for wrong in (old, "x", ""):
            answer = await form(client, "/login/password", code=wrong, password=PASSWORD)
            assert answer.status_code == 403
        weak = await form(client, "/login/password", code=link, password="password1234")
        assert (weak.status_code, "is easy to guess" in weak.text) == (422, True)
        assert code not in weak.text, "a browser keeps it in the address (wander.js)"
        answer = await form(client, "/login/password", code=link, password=PASSWORD)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert (await client.get("/api/v1/whoami")).json()["user"] == "bob"
        assert (await form(client, "/login/password", code=link, password=PASSWORD)).status_code == 403


async def test_an_administrator_adds_somebody_and_lets_them_back_in(hub):
    users, admin = "/api/v1/users", hub.auth("admin")
    made = await hub.client.post(users, json={"name": "Carol"}, headers=admin)
    assert (made.status_code, made.json()["user"]["name"]) == (201, "carol")
    assert (await hub.client.post(users, json={"name": "carol"}, headers=admin)).status_code == 409
    assert [one["name"] for one in (await hub.get(f"{users}?q=ARO", headers=admin)).json()["data"]] == [
        "carol"
    ]
    links = [
        made.json()["link"],
        (await hub.client.post(f"{users}/carol/link", headers=admin)).json()["link"],
    ]
    address, code = links[1].split("#")
    assert address == "http://hub.test/login/password"
    async with browser(hub) as client:
        old = await form(client, "/login/password", code=links[0], password=PASSWORD)
        assert old.status_code == 403, "another link ends the first one"
        assert (await form(client, "/login/password", code=code, password=PASSWORD)).status_code == 303
        assert (await client.get("/api/v1/whoami")).json()["user"] == "carol"
    with hub.database.write() as session:
        carol, alice = accounts.user_named(session, "carol"), accounts.user_named(session, "alice")
        lost = SecondFactor(user_id=carol.id, secret="A" * 32, last_step=0, recovery=[], confirmed_at=now())
        session.add(lost)
        alice.admin = True
    async with browser(hub) as client:
        assert (await form(client, "/login", name="carol", password=PASSWORD)).status_code == 401
        gone = await hub.client.delete(f"{users}/carol/second-factor", headers=admin)
        assert gone.status_code == 204
        assert (await form(client, "/login", name="carol", password=PASSWORD)).status_code == 303
    for method, what in (("POST", "link"), ("DELETE", "second-factor")):
        refused = await hub.client.request(method, f"{users}/alice/{what}", headers=admin)
        assert (refused.status_code, refused.json()["code"]) == (403, "administrator")
    assert (await hub.client.put(f"{users}/carol/disabled", headers=admin)).status_code == 200
    assert (await hub.client.post(f"{users}/carol/link", headers=admin)).status_code == 409
    log = (await hub.get("/api/v1/audit.jsonl", headers=admin)).text
    assert "user.add" in log
    assert [one for one in links if one.partition("#")[2] in log] == []


async def test_behind_a_proxy_the_public_address_decides(alice):
    settings = alice.settings.model_copy(update={"public_url": "https://hub.example"})
    app = create_app(settings, database=alice.database)
    async with asgi_client(app, "http://inside") as client:
        origin = {"Origin": "https://hub.example"}
        what = {"name": "alice", "password": PASSWORD}
        answer = await client.post("/login", data=what, headers=origin)
        assert answer.status_code == 303
        assert answer.headers["set-cookie"].startswith("__Host-wander-session=")
        wrong = await client.post("/login", data=what, headers={"Origin": "http://hub.example"})
        assert wrong.status_code == 403


async def test_a_too_long_form_is_rejected(hub):
    async with browser(hub) as client:
        answer = await form(client, "/login", name="x" * 20_000, password="x")
        assert answer.status_code == 413
        answer = await form(client, "/login", **{f"field{number}": "x" for number in range(60)})
        assert answer.status_code == 422


async def test_no_secret_of_a_visit_is_logged_shown_or_kept(alice, caplog):
    caplog.set_level("DEBUG")
    wrong, new = "a wrong guess of mine", "another fine secret"
    code = alice.database.commit(
        lambda session: sign_in.make_code(session, accounts.user_named(session, "bob"))
    )
    own = {"Sec-Fetch-Site": "same-origin"}
    shown = []
    async with browser(alice) as client:
        for path, fields in (
            ("/login", {"name": "alice", "password": wrong}),
            ("/login", {"name": wrong, "password": wrong}),
            ("/login/password", {"code": code + "x", "password": wrong}),
            ("/login/password", {"code": code, "password": PASSWORD}),
            ("/login", {"name": "alice", "password": PASSWORD}),
        ):
            shown.append((await form(client, path, **fields)).text)
        cookie = client.cookies["wander-session"]
        body = {"old": wrong, "new": new}
        shown.append((await client.put("/api/v1/account/password", json=body, headers=own)).text)
        body = {"old": PASSWORD, "new": new}
        assert (await client.put("/api/v1/account/password", json=body, headers=own)).status_code == 204
        for path in ("/", "/alice", "/api/v1/whoami", "/nothing/here"):
            shown.append((await client.get(path, headers={"Accept": "text/html"})).text)
    with alice.database.read() as session:
        kept = repr([vars(one) for one in list_entries(session)])
    everything = "\n".join([caplog.text, kept, *shown])
    assert [one for one in (wrong, new, PASSWORD, code, cookie) if one in everything] == []
