"""Tokens that somebody found in the open."""

from __future__ import annotations

from wander_hub.accounts import repository as accounts
from wander_hub.audit import list_entries
from wander_hub.rights.tokens import make_token
from wander_hub.security import new_token


async def test_a_reported_token_is_revoked_without_revealing_its_validity(hub):
    with hub.database.write() as session:
        alice = accounts.user_named(session, "alice")
        owner = accounts.owner_named(session, "alice")
        shared = new_token()
        make_token(session, alice.id, "workflow", owner=owner, shared=shared)
    made = {"name": "ci", "scopes": ["read"]}
    child = (await hub.client.post("/api/v1/tokens", json=made, headers=hub.auth())).json()["token"]
    leaked = hub.tokens["alice"]
    said = set()
    for token in (leaked, leaked, shared, new_token(), "wnd_wrong", "", "é" * 900, leaked[:-1] + "\0"):
        report = {"token": token, "type": "wander", "url": "https://example.org/gist", "source": "content"}
        answer = await hub.client.post("/api/v1/leaks", json=[report])
        said.add((answer.status_code, answer.text, *sorted(answer.headers)))
    assert len(said) == 1
    assert next(iter(said))[:2] == (202, '{"received":1}')
    for token in (leaked, child):
        refused = await hub.get("/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})
        assert (refused.status_code, refused.json()["code"]) == (401, "bad_token")
    assert (await hub.get("/api/v1/whoami", headers=hub.auth("bob"))).status_code == 200
    with hub.database.read() as session:
        found = list_entries(session, action="token.leak")
    assert [(one.target, one.owner) for one in found] == [(one[:10], "alice") for one in (shared, leaked)]
    assert found[0].detail["url"] == "https://example.org/gist"
    assert leaked not in repr([vars(one) for one in found])
