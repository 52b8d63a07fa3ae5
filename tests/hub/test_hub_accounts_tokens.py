"""Scoped tokens: made, limited, expired, revoked, and never in a log."""

from __future__ import annotations

import io
import logging
import logging.config
from datetime import timedelta

import pytest
from sqlalchemy import update
from wander_hub import security
from wander_hub.database import now
from wander_hub.rights.models import Token
from wander_hub.server.serve import HidesSecrets, _log_config, without_secrets


async def made(hub, user: str = "alice", **wanted):
    body = {"name": "ci", "scopes": ["read"]} | wanted
    return await hub.client.post("/api/v1/tokens", json=body, headers=hub.auth(user))


async def whoami(hub, secret: str):
    return await hub.get("/api/v1/whoami", headers={"Authorization": f"Bearer {secret}"})


async def test_a_new_token_expires_in_90_days_unless_told_otherwise(hub):
    info = (await made(hub)).json()
    left = (await whoami(hub, info["token"])).json()["token"]
    assert left["scopes"] == ["read"]
    with hub.database.read() as session:
        kept = session.query(Token).filter_by(prefix=info["prefix"]).one()
        assert kept.expires_at - kept.created_at == pytest.approx(
            timedelta(days=90), abs=timedelta(minutes=1)
        )
    assert (await made(hub, days=None)).json()["expires_at"] is None


async def test_an_expired_token_is_refused(hub):
    secret = (await made(hub, days=1)).json()["token"]
    with hub.database.write() as session:
        expired = update(Token).where(Token.sha256 == security.token_hash(secret))
        session.execute(expired.values(expires_at=now() - timedelta(seconds=1)))
    answer = await whoami(hub, secret)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")
    assert "wander token new" in answer.json()["hint"]


async def test_no_token_makes_a_mightier_one(hub):
    await hub.publish()
    bound = (await made(hub, scopes=["manage"], target="alice")).json()["token"]
    for scopes in (["read"], ["manage"]):
        answer = await hub.client.post(
            "/api/v1/tokens",
            json={"name": "more", "scopes": scopes},
            headers={"Authorization": f"Bearer {bound}"},
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "token_scope")
    assert (await made(hub, "bob", scopes=["publish"], target="alice/reverse-text")).status_code == 403
    assert (await made(hub, "bob", scopes=["read"], target="alice")).status_code == 403
    assert (await made(hub, scopes=[])).status_code == 422


async def test_a_publishing_token_of_one_environment_publishes_that_alone(hub, make_wheel):
    await hub.publish()
    hub.tokens["ci"] = (await made(hub, scopes=["publish"], target="alice/reverse-text")).json()["token"]
    same, other = make_wheel(version="0.2.0"), make_wheel(name="other")
    assert (await hub.upload(same.build(), same.wheel_name, user="ci")).status_code == 200
    assert (await hub.upload(other.build(), other.wheel_name, user="ci")).status_code == 403
    assert (await whoami(hub, hub.tokens["ci"])).json()["owners"] == ["alice"]


async def test_tokens_of_others_can_be_neither_seen_nor_ended(hub):
    prefix = hub.tokens["alice"][:10]
    listed = await hub.get("/api/v1/tokens", headers=hub.auth("bob"))
    assert prefix not in listed.text
    assert (await hub.client.delete(f"/api/v1/tokens/{prefix}", headers=hub.auth("bob"))).status_code == 404
    ended = await hub.client.delete(f"/api/v1/tokens/{prefix}", headers=hub.auth("admin"))
    assert ended.json()["revoked"]
    assert (await whoami(hub, hub.tokens["alice"])).status_code == 401


async def test_no_log_of_the_hub_holds_a_token(hub, caplog):
    caplog.set_level(logging.DEBUG)
    secret = (await made(hub)).json()["token"]
    await whoami(hub, secret)
    await whoami(hub, secret[:-1])
    await hub.get("/api/v1/whoami", headers={"Authorization": f"Basic {secret}"})
    own = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))]
    assert not any(secret[10:] in one.getMessage() for one in own)


def test_a_token_in_an_address_is_cut_in_every_log(tmp_path):
    secret = security.new_token()
    config = _log_config()
    stream = io.StringIO()
    for handler in config["handlers"].values():
        handler["stream"] = stream
    assert all(handler["filters"] == ["secrets"] for handler in config["handlers"].values())
    handler = logging.StreamHandler(stream)
    handler.addFilter(HidesSecrets())
    logger = logging.Logger("scrubbed")
    logger.addHandler(handler)
    logger.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1", "GET", f"/?token={secret}", "1.1", 200)
    logger.info("fetching https://__token__:%s@hub/simple/ for %s", secret, ValueError(secret))
    try:
        raise RuntimeError(f"cannot use {secret}")
    except RuntimeError:
        logger.exception("failed with %(token)s", {"token": secret})
    written = stream.getvalue()
    assert secret[10:] not in written
    assert written.count(secret[:10] + "...") >= 3
    assert '"GET /?token=' in written
    assert without_secrets("https://u:pass@host/p") == "https://u:...@host/p"
