"""Secrets are in nothing that a hub writes or answers: log, errors, pages, exports, audit, metrics, backup.

Whoever adds a kind of secret (a password, a cookie, a key of a webhook) uses one in `keep_busy` and returns
it.
"""

from __future__ import annotations

import io
import logging
import tarfile

import httpx
import pytest
import zstandard
from browsers import PASSWORD, browser, form, give_password
from pyotp import TOTP
from sign_in_provider import CLIENT, SECRET, SignInProvider
from wander_hub import security
from wander_hub.accounts.repository import user_named
from wander_hub.audit import Origin
from wander_hub.operation.backup import ROWS, back_up
from wander_hub.operation.export import export
from wander_hub.people import identities, sign_in
from wander_hub.server.log import JsonFormatter, LogFormatter
from wander_hub.settings import ProviderSettings

SPENT = "nine yellow lemons"
"""A password that a link set and another one took the place of."""


@pytest.fixture
def settings(settings, issuer, monkeypatch):
    monkeypatch.setenv("OIDC_SECRET", SECRET)
    provider = ProviderSettings(issuer=issuer.url, client_id=CLIENT, secret_variable="OIDC_SECRET")
    return settings.model_copy(update={"sign_in_provider": provider})


class Kept:
    """All that a hub answered, but for the answers whose purpose is to show a secret once."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.texts: list[str] = []
        self._client = client

    async def ask(self, method: str, path: str, *, shows: bool = False, **options) -> httpx.Response:
        answer = await self._client.request(method, path, **options)
        if not shows:
            self.texts.append(f"{answer.headers} {answer.text}")
        return answer


async def visit(hub, kept: Kept, provider: SignInProvider) -> list[str]:
    """Sign in by a link, by a password and at a provider; return the codes and cookies of it."""
    with hub.database.write() as session:
        bob = user_named(session, "bob")
        code = sign_in.make_code(session, bob)
        identities.link_identity(session, provider.issuer.url, provider.person["sub"], bob.id)
    found = [code, SPENT]
    async with browser(hub) as client:
        for path, fields in (
            ("/login/password", {"code": code, "password": SPENT}),
            ("/login/password", {"code": code, "password": SPENT}),
            ("/login", {"name": "bob", "password": SPENT}),
            ("/login", {"name": code, "password": code}),
            ("/login", {"name": "bob", "password": SPENT}),
        ):
            answer = await form(client, path, **fields)
            kept.texts.append(answer.text)
            found += answer.cookies.values()
        left = (await client.get("/login/oidc")).headers["location"]
        found += [client.cookies["wander-oidc"], SECRET]
        back = provider.sign_in(left)
        for _ in range(2):  # the second time in vain
            answer = await client.get(back, headers={"Accept": "text/html"})
            kept.texts.append(answer.text)
            found += answer.cookies.values()
        for path in ("/", "/login", "/api/v1/whoami", "/api/v1/account/second-factor"):
            kept.texts.append((await client.get(path)).text)
    assert len(found) >= 6
    return [one for one in found if one]


async def keep_busy(hub, kept: Kept, run_of) -> tuple[list[str], list[str], list[str]]:
    """Do what shows, takes and mistakes secrets; return those that addresses may hold, those that the hub has
    to keep as they are, and the others.
    """
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    wanted = {"json": {"name": "ci", "scopes": ["publish"]}, "headers": hub.auth()}
    made = (await kept.ask("POST", "/api/v1/tokens", shows=True, **wanted)).json()["token"]
    unknown, password = security.new_token(), "hunter2hunter2"
    for secret in (made, unknown):
        for path in (f"/{secret}", f"/api/v1/runs/{secret}", f"/api/v1/environments/{secret}/x?q={secret}"):
            await kept.ask("GET", path, headers={"Authorization": f"Bearer {secret}"})
            await kept.ask("GET", path, headers={"Accept": "text/html"})
        await kept.ask("DELETE", f"/api/v1/tokens/{secret}", headers=hub.auth())
        await kept.ask(
            "PUT", f"/api/v1/owners/alice/members/{secret}", headers=hub.auth(), json={"role": "reader"}
        )
    hook = {"json": {"url": "https://hook.example/?key=hunter3", "owner": "alice"}, "headers": hub.auth()}
    signer = (await kept.ask("POST", "/api/v1/webhooks", shows=True, **hook)).json()["secret"]
    await kept.ask("GET", f"/api/v1/runs/{signer}", headers=hub.auth())
    for path in ("/api/v1/webhooks?owner=alice", "/api/v1/webhooks/1", "/api/v1/webhooks/1/deliveries"):
        assert (await kept.ask("GET", path, shows="owner" in path, headers=hub.auth())).status_code == 200
    give_password(hub, "alice")
    factor = {"json": {"password": PASSWORD}, "headers": hub.auth()}
    second = "/api/v1/account/second-factor"
    seed = (await kept.ask("POST", second, shows=True, **factor)).json()["secret"]
    code = {"json": {"code": TOTP(seed).now()}, "headers": hub.auth()}
    recovery = (await kept.ask("PUT", second, shows=True, **code)).json()["data"][0]
    await kept.ask("GET", second, headers=hub.auth())
    await form(hub.client, "/login", name=seed, password=PASSWORD, second=recovery)
    off = {"json": {"code": recovery}, "headers": hub.auth()}
    assert (await kept.ask("POST", second + "/off", **off)).status_code == 204
    yank = {"json": {"reason": f"see https://ada:{password}@example.org"}, "headers": hub.auth()}
    place = "/api/v1/environments/alice/reverse-text/versions/0.1.0/yank"
    await kept.ask("PUT", place, shows=True, **yank)  # what somebody writes for everybody to read is theirs
    assert (await kept.ask("DELETE", place, headers=hub.auth())).status_code == 200
    for path in (
        "/api/v1/tokens",
        "/api/v1/owners/alice/audit.jsonl",
        "/api/v1/owners/alice/audit",
        "/alice",
    ):
        assert (await kept.ask("GET", path, headers=hub.auth())).status_code == 200
    for path in ("/metrics", "/api/v1/audit.jsonl", "/openapi.json"):
        assert (await kept.ask("GET", path, headers=hub.auth("admin"))).status_code == 200
    return [made, unknown, password, *hub.tokens.values()], [seed, signer], [recovery, PASSWORD]


def unpacked(rows: bytes) -> str:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(rows)).read().decode()


@pytest.mark.parametrize(
    "formatter",
    [LogFormatter(), pytest.param(JsonFormatter(), marks=pytest.mark.full)],
    ids=["text", "json"],
)
async def test_a_busy_hub_writes_no_secrets(hub, run_of, tmp_path, formatter, issuer):
    log, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(log)
    handler.setFormatter(formatter)
    root.addHandler(handler)
    kept = Kept(hub.client)
    try:
        secrets, whole, typed = await keep_busy(hub, kept, run_of)
        typed += await visit(hub, kept, SignInProvider(issuer))
        for secret in secrets:  # as uvicorn logs a request
            logging.getLogger("uvicorn.access").warning('%s - "GET /?token=%s" %d', "127.0.0.1", secret, 404)
    finally:
        root.removeHandler(handler)
    storage = hub.client._transport.app.state.storage
    back_up(hub.database, storage, tmp_path)
    export(hub.database, storage, tmp_path / "hub.tar", origin=Origin("hub.export", "wander-hub"))
    rows = unpacked((tmp_path / ROWS).read_bytes())
    with tarfile.open(tmp_path / "hub.tar") as tar:
        exported = unpacked(tar.extractfile(ROWS).read())
    assert "version.yank" in rows
    assert "reverse-text" in exported
    tokens = [one for one in secrets if one.startswith("wnd_")]
    assert len(tokens) == len(secrets) - 1
    written = {"answers": "\n".join(kept.texts), "log": log.getvalue(), "backup": rows, "export": exported}
    for where, text in written.items():  # a backup has what codes and signatures are made with
        hidden = [*tokens, *typed, *(whole if where != "backup" else [])]
        assert [one[:10] for one in hidden if one in text] == [], where
    assert secrets[2] not in written["answers"]
