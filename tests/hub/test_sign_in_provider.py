"""Signing in at a provider: a real one over HTTP, its wrong answers, and who is taken for whom."""

from __future__ import annotations

import asyncio
import html
import re
import time
from typing import Any

import jwt
import pytest
from browsers import PASSWORD, browser, form, give_password
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import rsa
from sign_in_provider import CLIENT, SECRET, SignInProvider
from sqlalchemy import func, select
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import User
from wander_hub.accounts.service import add_user
from wander_hub.app import create_app
from wander_hub.audit import list_entries
from wander_hub.cli.main import app as command
from wander_hub.database import now
from wander_hub.people import departures, identities
from wander_hub.people.models import BrowserSession, LinkedIdentity, SecondFactor
from wander_hub.publishers import identity_tokens
from wander_hub.security import without_secrets
from wander_hub.settings import ProviderSettings, Settings

SUBJECT = "248289761001"
OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def settings(settings: Settings, issuer: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("OIDC_SECRET", SECRET)
    provider = ProviderSettings(issuer=issuer.url, client_id=CLIENT, secret_variable="OIDC_SECRET")
    return settings.model_copy(update={"sign_in_provider": provider})


@pytest.fixture
def provider(issuer: Any) -> SignInProvider:
    return SignInProvider(issuer)


@pytest.fixture
def linked(hub: Any, provider: SignInProvider) -> Any:
    """Alice is linked to the provider's person."""
    with hub.database.write() as session:
        alice = accounts.user_named(session, "alice")
        identities.link_identity(session, provider.issuer.url, SUBJECT, alice.id)
    return hub


def with_provider(hub: Any, **changes: Any) -> None:
    """Change what the hub is told of the provider."""
    state = hub.client._transport.app.state
    told = state.settings.sign_in_provider.model_copy(update=changes)
    state.settings, state.provider = state.settings.model_copy(update={"sign_in_provider": told}), None


async def come_back(client: Any, provider: SignInProvider, next: str = "/") -> Any:
    left = await client.get("/login/oidc", params={"next": next})
    assert left.status_code == 303, left.text
    return await client.get(provider.sign_in(left.headers["location"]))


async def go_to_link(client: Any) -> str:
    """Return where the page leads that links an account."""
    shown = await client.post("/login/oidc/link", headers=OWN)
    assert shown.status_code == 200, shown.text
    return html.unescape(re.search(r'<a href="(http[^"]*)"', shown.text)[1])


async def whoami(client: Any) -> str | None:
    return (await client.get("/api/v1/whoami")).json().get("user")


def sessions_of(hub: Any) -> int:
    with hub.database.read() as session:
        return session.scalar(select(func.count()).select_from(BrowserSession))


async def test_a_linked_account_can_sign_in(hub, provider):
    give_password(hub, "alice", "bob")
    async with browser(hub) as client:
        assert "/login/oidc?next=/" in (await client.get("/login")).text
        await form(client, "/login", name="alice", password=PASSWORD)
        done = await client.get(provider.sign_in(await go_to_link(client)))
        assert (done.status_code, done.headers["location"]) == (303, "/login")
        assert f'Linked: <span class="mono">{SUBJECT}</span>' in (await client.get("/login")).text
    with hub.database.write() as session:  # the provider's second factor stands for the hub's
        alice = accounts.user_named(session, "alice").id
        session.add(
            SecondFactor(user_id=alice, secret="A" * 32, last_step=0, recovery=[], confirmed_at=now())
        )
    async with browser(hub, "https://hub.test") as client:
        client.cookies.set("__Host-wander-session", "planted", domain="hub.test")
        answer = await come_back(client, provider, "/alice/x?version=1")
        assert (answer.status_code, answer.headers["location"]) == (303, "/alice/x?version=1")
        assert client.cookies["__Host-wander-session"] != "planted"
        assert await whoami(client) == "alice"
        assert "__Host-wander-oidc" not in client.cookies
    async with browser(hub) as client:
        await form(client, "/login", name="bob", password=PASSWORD)
        taken = await client.get(provider.sign_in(await go_to_link(client)))
        assert taken.status_code == 409
        assert await whoami(client) == "bob"
    with hub.database.read() as session:
        told = [(one.action, one.actor) for one in list_entries(session, limit=6)]
    assert ("user.identity.link", "alice") in told
    assert told[1] == ("user.sign_in", "alice")


async def test_accounts_are_not_matched_by_name_or_email(hub, provider):
    provider.person |= {"preferred_username": "alice", "email": "alice@hub.test", "email_verified": True}
    async with browser(hub) as client:
        answer = await come_back(client, provider)
        assert (answer.status_code, SUBJECT in answer.text) == (403, True)
        with_provider(hub, add_users=True)
        answer = await come_back(client, provider)
        assert (answer.status_code, "already taken" in answer.text) == (409, True)
        assert await whoami(client) is None
    with hub.database.read() as session:
        assert session.scalar(select(LinkedIdentity)) is None


async def test_invalid_provider_responses_sign_nobody_in(linked, provider, issuer):
    moment, stranger = int(time.time()), rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"iss": issuer.url, "aud": CLIENT, "sub": SUBJECT, "iat": moment, "exp": moment + 300}
    spoiled: dict[str, dict[str, Any]] = {
        "nonce": {"nonce": "another"},
        "no nonce": {"nonce": None},
        "audience": {"aud": "another"},
        "audiences": {"aud": [CLIENT, "another"]},
        "issuer": {"iss": "https://evil.example"},
        "expired": {"iat": moment - 900, "exp": moment - 60},
        "no end": {"exp": None},
        "subject": {"sub": "7" * 256},
        "no subject": {"sub": None},
        "key": {"key": stranger},
        "unknown key": {"key": stranger, "kid": "nobody"},
        "shared secret": {"key": SECRET * 2, "algorithm": "HS256"},
        "unsigned": {"raw": jwt.encode(claims, None, algorithm="none")},
        "no token": {"raw": "wnd_abc"},
    }
    for number, (what, provider.spoiled) in enumerate(spoiled.items()):
        async with browser(linked, address=f"192.0.2.{number}") as client:
            answer = await come_back(client, provider)
            assert (answer.status_code, await whoami(client)) == (403, None), (what, answer.text)
    assert sessions_of(linked) == 0
    provider.spoiled = {"aud": [CLIENT]}
    async with browser(linked) as client:
        assert (await come_back(client, provider)).status_code == 303


async def test_a_provider_redirect_works_once_in_the_same_browser(linked, provider):
    async with browser(linked) as client, browser(linked, address="192.0.2.1") as other:
        left = (await client.get("/login/oidc")).headers["location"]
        cookie = client.cookies["wander-oidc"]
        back = provider.sign_in(left)
        assert (await other.get(back)).status_code == 403, "without a cookie"
        await other.get("/login/oidc")
        assert (await other.get(back)).status_code == 403, "with the cookie of another visit"
        assert cookie.partition(".")[0] not in left + back
        assert (await client.get(back)).status_code == 303
        assert (await client.get(back)).status_code == 403, "the cookie is gone"
        client.cookies.set("wander-oidc", cookie)
        again = await client.get(back)
        assert (again.status_code, "invalid_grant" in again.text) == (403, True)
        client.cookies.clear()
        left = (await client.get("/login/oidc")).headers["location"]
        denied = await client.get(provider.sign_in(left).replace("code=", "error=access_denied&x="))
        assert (denied.status_code, "access_denied" in denied.text) == (403, True)
        left = (await client.get("/login/oidc")).headers["location"]
        assert (await client.get(provider.sign_in(left) + "&iss=https://evil.example")).status_code == 403
    assert sessions_of(linked) == 1


@pytest.mark.parametrize(
    "wanted", ["https://evil.test", "//evil.test", "/\\evil.test", "/\r\nSet-Cookie: a=b"]
)
async def test_sign_in_redirects_only_within_the_hub(linked, provider, wanted):
    async with browser(linked) as client:
        assert (await come_back(client, provider, wanted)).headers["location"] == "/"
        left = (await client.get("/login/oidc")).headers["location"]
        secret = client.cookies["wander-oidc"].partition(".")[0]
        client.cookies.clear()
        client.cookies.set("wander-oidc", f"{secret}.in.%2F%2Fevil.test")
        assert (await client.get(provider.sign_in(left))).headers["location"] == "/"


async def test_only_the_session_that_left_links_an_account(hub, provider):
    give_password(hub, "alice", "bob")
    async with browser(hub) as client, browser(hub) as other:
        assert (await client.post("/login/oidc/link", headers=OWN)).status_code == 401
        await form(client, "/login", name="alice", password=PASSWORD)
        await form(other, "/login", name="bob", password=PASSWORD)
        assert (await client.post("/login/oidc/link")).status_code == 403, "not from a page elsewhere"
        back = provider.sign_in(await go_to_link(client))
        other.cookies.set("wander-oidc", client.cookies["wander-oidc"])
        assert (await other.get(back)).status_code == 403, "a planted cookie links nobody"
        await form(client, "/logout")
        assert (await client.get(back)).status_code == 403
    with hub.database.read() as session:
        assert session.scalar(select(LinkedIdentity)) is None


async def test_new_provider_keys_are_used_and_old_ones_are_rejected(linked, provider, issuer, monkeypatch):
    monkeypatch.setattr(identity_tokens, "_COOL_DOWN_SECONDS", 0)
    async with browser(linked) as client:
        assert (await come_back(client, provider)).status_code == 303
        issuer.new_key()
        assert (await come_back(client, provider)).status_code == 303
        provider.spoiled = {"kid": "key-0", "key": issuer.keys.pop("key-0")}
        monkeypatch.setattr(identity_tokens, "_KEPT_SECONDS", 0)
        assert (await come_back(client, provider)).status_code == 403


async def test_an_unreachable_provider_is_reported(linked, provider, issuer, monkeypatch):
    async with browser(linked) as client:
        left = (await client.get("/login/oidc")).headers["location"]
        provider.down = True
        answer = await client.get(provider.sign_in(left))
        assert (answer.status_code, "try again in a minute" in answer.text) == (503, True)
        issuer.endpoints = {"authorization_endpoint": "javascript:alert(1)", "token_endpoint": "/"}
        with_provider(linked)
        assert (await client.get("/login/oidc")).status_code == 503
        asked = []
        with monkeypatch.context() as patch:
            patch.setattr(identity_tokens, "discover", lambda issuer: asked.append(issuer) or {})
            with_provider(linked)
            assert [(await client.get("/login/oidc")).status_code for _ in range(3)] == [503] * 3
        assert len(asked) == 1, "the others do not wait for it, too"
        for changes in ({"issuer": "http://127.0.0.1:9"}, {"secret_variable": "NOT_SET"}):
            with_provider(linked, **changes)
            assert (await client.get("/login/oidc")).status_code == 503


async def test_users_are_created_if_the_setting_allows(hub, provider):
    with_provider(hub, add_users=True, domains=("lab.example",), groups=("rl", "ops"))
    person = {
        "preferred_username": "Dora",
        "email": "dora@Lab.example",
        "email_verified": True,
        "groups": ["rl"],
    }
    wrong = (
        {"email_verified": False},
        {"email": "dora@lab.example.evil"},
        {"groups": ["x"]},
        {"groups": "rl"},
    )
    for number, changes in enumerate((*wrong, {"preferred_username": None}, {"preferred_username": "d@x"})):
        provider.person = {"sub": "dora", **person, **changes}
        async with browser(hub, address=f"192.0.2.{number}") as client:
            assert (await come_back(client, provider)).status_code in (403, 422), changes
    provider.person = {"sub": "dora", **person}
    async with browser(hub) as here, browser(hub) as there:
        both = await asyncio.gather(come_back(here, provider), come_back(there, provider))
        assert [one.status_code for one in both] == [303, 303]
        assert await whoami(here) == await whoami(there) == "dora"
        with hub.database.write() as session:
            assert session.scalar(select(func.count()).select_from(User).where(User.name == "dora")) == 1
            departures.remove_user(session, "dora")
        assert await whoami(here) is None
        provider.person["preferred_username"] = "dora2"
        assert (await come_back(here, provider)).status_code == 401, "who was removed is not added again"


async def test_an_operator_links_and_unlinks(hub, provider, monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with_provider(hub, secret_variable=None, secret_file=secret)
    monkeypatch.setenv("WANDER_HUB_DATABASE_URL", hub.database.url)
    told = hub.client._transport.app.state.settings.sign_in_provider.model_dump_json()
    monkeypatch.setenv("WANDER_HUB_SIGN_IN_PROVIDER", told)
    run = ["user", "identity", "bob"]
    done = CliRunner().invoke(command, [*run, "--link", SUBJECT])
    assert done.stdout == f"issuer\tsubject\n{provider.issuer.url}\t{SUBJECT}\n", done.output
    async with browser(hub) as client:
        assert (await come_back(client, provider)).status_code == 303
        assert await whoami(client) == "bob"
        assert CliRunner().invoke(command, [*run, "--unlink", "another"]).exit_code == 1
        assert CliRunner().invoke(command, [*run, "--unlink", SUBJECT]).stdout == ""
        assert await whoami(client) is None
        assert (await come_back(client, provider)).status_code == 403


async def test_an_administrator_links_and_unlinks_over_the_api(hub, provider):
    path, admin = "/api/v1/users/bob/identities", hub.auth("admin")
    body = {"subject": SUBJECT}
    state = hub.client._transport.app.state
    told, state.settings = state.settings, state.settings.model_copy(update={"sign_in_provider": None})
    unknown = await hub.client.post(path, json=body, headers=admin)
    assert (unknown.status_code, unknown.json()["code"]) == (422, "no_provider")
    nowhere = await hub.client.post(path, json={**body, "issuer": ""}, headers=admin)
    assert nowhere.status_code == 422, "no provider has an empty name"
    state.settings = told
    assert (await hub.client.post(path, json=body, headers=admin)).status_code == 204
    async with browser(hub) as client:
        assert (await come_back(client, provider)).status_code == 303
        assert await whoami(client) == "bob"
        (found,) = (await hub.get(path, headers=admin)).json()["data"]
        assert (found["issuer"], found["subject"]) == (provider.issuer.url, SUBJECT)
        taken = await hub.client.post(path.replace("bob", "alice"), json=body, headers=admin)
        assert (taken.status_code, taken.json()["code"]) == (409, "identity_taken")
        assert (await hub.client.delete(path, params={"subject": "x"}, headers=admin)).status_code == 404
        assert (await hub.client.delete(path, params=body, headers=admin)).status_code == 204
        assert await whoami(client) is None
    with hub.database.write() as session:
        add_user(session, "chief", admin=True)
    mighty = await hub.client.post(path.replace("bob", "chief"), json=body, headers=admin)
    assert mighty.status_code == 403, "a stolen token must not become another administrator's account"
    assert (await hub.get(path.replace("bob", "nobody"), headers=admin)).status_code == 404


async def test_provider_redirects_are_not_logged(linked, provider, caplog):
    caplog.set_level("DEBUG")
    async with browser(linked) as client:
        left = (await client.get("/login/oidc")).headers["location"]
        cookie, back = client.cookies["wander-oidc"], provider.sign_in(left)
        code = next(iter(provider.codes))
        assert (await client.get(back)).status_code == 303
        begun = client.cookies["wander-session"]
    with linked.database.read() as session:
        kept = repr([vars(one) for one in list_entries(session)])
    here = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith(("wander", "uvicorn")))
    assert [one for one in (code, cookie, begun, SECRET) if one in here + kept] == []
    line = f'127.0.0.1 - "GET {back.removeprefix("http://hub.test")} HTTP/1.1" 303'
    assert without_secrets(line).endswith('"GET /login/oidc/callback?... HTTP/1.1" 303')


async def test_a_hub_without_a_provider_has_no_provider_pages(hub):
    settings = hub.settings.model_copy(update={"sign_in_provider": None})
    app = create_app(settings, database=hub.database)
    hub.client._transport.app = app
    async with browser(hub) as client:
        assert "/login/oidc" not in (await client.get("/login")).text
        for path in ("/login/oidc", "/login/oidc/callback"):
            assert (await client.get(path)).status_code == 404
