"""Scoped tokens: made, limited, expired, revoked, and never in a log."""

from __future__ import annotations

import base64
import io
import logging
import re
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote, unquote

import pytest
from sqlalchemy import update
from wander_hub import security
from wander_hub.database import now
from wander_hub.http.middleware import name_request
from wander_hub.rights import members
from wander_hub.rights.models import Token
from wander_hub.server.log import LogFormatter, without_secrets


async def made(hub, user: str = "alice", **wanted):
    body = {"name": "ci", "scopes": ["read"]} | wanted
    return await hub.client.post("/api/v1/tokens", json=body, headers=hub.auth(user))


async def whoami(hub, secret: str):
    return await hub.get("/api/v1/whoami", headers=bearer(secret))


async def test_a_new_token_expires_in_90_days_by_default(hub):
    info = (await made(hub)).json()
    left = (await whoami(hub, info["token"])).json()["token"]
    assert left["scopes"] == ["read"]
    with hub.database.read() as session:
        kept = session.query(Token).filter_by(prefix=info["prefix"]).one()
        assert kept.expires_at - kept.created_at == pytest.approx(
            timedelta(days=90), abs=timedelta(minutes=1)
        )
    assert (await made(hub, days=None)).json()["expires_at"] is None


async def test_an_expired_token_is_rejected(hub):
    secret = (await made(hub, days=1)).json()["token"]
    with hub.database.write() as session:
        expired = update(Token).where(Token.sha256 == security.token_hash(secret))
        session.execute(expired.values(expires_at=now() - timedelta(seconds=1)))
    answer = await whoami(hub, secret)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")
    assert "wander auth token new" in answer.json()["hint"]


async def test_a_token_cannot_create_a_more_powerful_one(hub):
    await hub.publish()
    bound = (await made(hub, scopes=["manage"], target="alice")).json()["token"]
    for scopes in (["read"], ["manage"]):
        wanted = {"name": "more", "scopes": scopes}
        answer = await hub.client.post("/api/v1/tokens", json=wanted, headers=bearer(bound))
        assert (answer.status_code, answer.json()["code"]) == (403, "token_scope")
    assert (await made(hub, "bob", scopes=["publish"], target="alice/reverse-text")).status_code == 403
    assert (await made(hub, "bob", scopes=["read"], target="alice")).status_code == 404
    assert (await made(hub, scopes=[])).status_code == 422


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def test_a_token_creates_only_tokens_of_its_own_scopes(hub):
    hub.tokens["manager"] = (await made(hub, scopes=["manage"])).json()["token"]
    for scopes in (["publish"], ["results"], ["manage", "publish"]):
        refused = await made(hub, "manager", scopes=scopes)
        assert (refused.status_code, refused.json()["code"]) == (403, "token_scope"), scopes
        assert f"`{scopes[-1]}`" in refused.json()["detail"]
    assert (await made(hub, "manager", scopes=["read", "manage"])).status_code == 201
    workflow = {"name": "x", "kind": "github", "subject": "mallory/repo", "workflow": "release.yml"}
    refused = await hub.client.post(
        "/api/v1/owners/alice/publishers", json=workflow, headers=hub.auth("manager")
    )
    assert (refused.status_code, refused.json()["code"]) == (403, "token_scope"), "a publisher publishes"


@pytest.mark.parametrize("days", [None, 90, 2, 1])
async def test_no_token_outlives_the_token_that_created_it(hub, days):
    first = (await made(hub, scopes=["read", "manage"], days=2)).json()
    hub.tokens["brief"] = first["token"]
    second = (await made(hub, "brief", scopes=["manage"], days=days)).json()
    assert second["expires_at"] <= first["expires_at"]
    assert (second["expires_at"] == first["expires_at"]) == (days != 1)


async def test_the_number_of_valid_tokens_per_user_is_limited(hub, monkeypatch):
    monkeypatch.setattr(members, "_MOST_TOKENS", 2)
    first = (await made(hub)).json()
    refused = await made(hub)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_tokens")
    await hub.client.delete(f"/api/v1/tokens/{first['prefix']}", headers=hub.auth())
    assert (await made(hub)).status_code == 201


async def test_revoking_a_token_revokes_the_tokens_it_created(hub):
    hub.tokens["child"] = (await made(hub, scopes=["manage", "results"])).json()["token"]
    hub.tokens["grandchild"] = (await made(hub, "child", scopes=["manage"])).json()["token"]
    leaf = (await made(hub, "grandchild")).json()["token"]
    sibling = (await made(hub)).json()["token"]
    ended = await hub.client.delete(f"/api/v1/tokens/{hub.tokens['child'][:10]}", headers=hub.auth())
    assert ended.json()["revoked"]
    for secret in (hub.tokens["child"], hub.tokens["grandchild"], leaf):
        assert (await whoami(hub, secret)).status_code == 401
    for secret in (sibling, hub.tokens["alice"]):
        assert (await whoami(hub, secret)).status_code == 200


async def test_a_publishing_token_of_an_environment_publishes_only_it(hub, make_wheel):
    await hub.publish()
    hub.tokens["ci"] = (await made(hub, scopes=["publish"], target="alice/reverse-text")).json()["token"]
    same, other = make_wheel(version="0.2.0"), make_wheel(name="other")
    assert (await hub.upload(same.build(), same.wheel_name, user="ci")).status_code == 200
    assert (await hub.upload(other.build(), other.wheel_name, user="ci")).status_code == 403
    assert (await whoami(hub, hub.tokens["ci"])).json()["owners"] == ["alice"]


async def test_tokens_of_others_cannot_be_seen_or_revoked(hub):
    prefix = hub.tokens["alice"][:10]
    listed = await hub.get("/api/v1/tokens", headers=hub.auth("bob"))
    assert prefix not in listed.text
    assert (await hub.client.delete(f"/api/v1/tokens/{prefix}", headers=hub.auth("bob"))).status_code == 404
    ended = await hub.client.delete(f"/api/v1/tokens/{prefix}", headers=hub.auth("admin"))
    assert ended.json()["revoked"]
    assert (await whoami(hub, hub.tokens["alice"])).status_code == 401


async def test_logs_contain_no_token(hub, caplog):
    caplog.set_level(logging.DEBUG)
    secret = (await made(hub)).json()["token"]
    await whoami(hub, secret)
    await whoami(hub, secret[:-1])
    await hub.get("/api/v1/whoami", headers={"Authorization": f"Basic {secret}"})
    own = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))]
    assert not any(secret[10:] in one.getMessage() for one in own)


def test_tokens_in_addresses_are_removed_from_every_log():
    secret = security.new_token()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter())
    logger = logging.Logger("scrubbed")
    logger.addHandler(handler)

    def answer() -> None:
        name_request("mine-1")
        logger.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1", "GET", f"/?token={secret}", "1.1", 200)
        logger.info("fetching https://__token__:%s@hub/simple/ for %s", secret, ValueError(secret))
        try:
            raise RuntimeError(f"cannot use {secret}")
        except RuntimeError:
            logger.exception("failed with %(token)s", {"token": secret})

    Context().run(answer)
    written = stream.getvalue()
    assert secret[10:] not in written
    assert written.count(secret[:10] + "...") >= 3
    assert '"GET /?token=' in written
    assert "RuntimeError" in written
    assert all(re.match(r"20\d\d-\S+ (INFO|ERROR) mine-1 ", line) for line in written.splitlines())
    assert without_secrets("https://u:pass@host/p") == "https://u:...@host/p"


def every_character(text: str) -> str:
    return "".join(f"%{ord(one):02X}" for one in text)


@pytest.mark.parametrize(
    "encode",
    [
        lambda secret: secret.replace("_", "%5F"),
        lambda secret: secret.replace("_", "%5f"),
        every_character,
        lambda secret: every_character(secret).lower(),
        lambda secret: secret[:20] + every_character(secret[20:]),
        lambda secret: quote(every_character(secret)),
        lambda secret: quote(quote(secret.replace("_", "%5F"))),
    ],
)
def test_percent_encoded_tokens_are_removed_too(encode):
    secret = security.new_token()
    encoded = encode(secret)
    assert unquote(unquote(unquote(encoded))) == secret
    cut = without_secrets(f'"GET /?token={encoded}&page=2 HTTP/1.1" 200')
    shown = unquote(unquote(unquote(cut)))
    assert shown == f'"GET /?token={secret[:10]}...&page=2 HTTP/1.1" 200'
    harmless = "GET /simple/wnd%20notes/%25wnd_/?q=wnd_short%2C"
    assert without_secrets(harmless) == harmless


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


WRONG_CREDENTIALS = {
    "another host's": basic("company", "hunter2"),
    "unknown": basic("__token__", security.new_token()),
    "cut": basic("__token__", security.new_token()[:-1]),
    "empty": basic("company", ""),
    "no colon": {"Authorization": "Basic " + base64.b64encode(b"company").decode()},
    "not base64": {"Authorization": "Basic *"},
    "not text": {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()},
    "nothing": {"Authorization": "Basic"},
    "another scheme": {"Authorization": "Negotiate YII="},
}


@pytest.mark.parametrize("user", ["__token__", "", "company", "alice@example.org", "aé", "token"])
async def test_basic_authentication_takes_any_user_name(hub, wheel_spec, user):
    headers = basic(user, hub.tokens["alice"])
    assert (await hub.get("/api/v1/whoami", headers=headers)).json()["user"] == "alice"
    assert (await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, headers=headers)).status_code == 200


@pytest.mark.parametrize("password", ["", "x-oauth-basic"])
async def test_basic_authentication_takes_a_token_as_user_name(hub, password):
    headers = basic(hub.tokens["alice"], password)
    assert (await hub.get("/api/v1/whoami", headers=headers)).json()["user"] == "alice"


@pytest.mark.parametrize("kind", WRONG_CREDENTIALS)
async def test_wrong_credentials_are_reported_and_hide_nothing_public(hub, wheel_spec, kind):
    headers = WRONG_CREDENTIALS[kind]
    await hub.publish(wheel_spec)
    await hub.publish(
        replace(
            wheel_spec,
            name="secret-text",
            entry_points=None,
            files={"secret_text.py": b"def load_environment(): ...\n"},
        )
    )
    path = "/api/v1/environments/alice/secret-text/visibility"
    assert (await hub.client.put(path, json={"private": True}, headers=hub.auth("alice"))).is_success
    public = f"/alice/files/reverse-text/{wheel_spec.wheel_name}"
    for path in (
        "/alice/simple/reverse-text/",
        "/alice/index/reverse-text/",
        public,
        public + ".metadata",
        "/",
    ):
        plain, answer = await hub.get(path), await hub.get(path, headers=headers)
        assert (answer.status_code, answer.content) == (200, plain.content), path
    details = set()
    for name in ("secret-text", "free-text"):
        answer = await hub.get(f"/alice/simple/{name}/", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "bad_token")
        assert answer.headers["www-authenticate"].startswith("Basic")
        details.add((answer.json()["detail"], answer.json()["hint"]))
    assert len(details) == 1
    for answer in (
        await hub.get("/api/v1/whoami", headers=headers),
        await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, headers=headers),
    ):
        assert (answer.status_code, answer.json()["code"]) == (401, "bad_token")
        assert answer.json()["detail"] in {detail for detail, _ in details}
