"""Workflows that prove who they are get a token of minutes for what they may publish; nothing else does."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import func, select
from token_issuer import AUDIENCE, Issuer, github_claims
from wander.wire.people import NewPublisher
from wander_hub.accounts.models import Membership
from wander_hub.database import now
from wander_hub.identity import HUB
from wander_hub.publishers import identity_tokens, service
from wander_hub.publishers.models import Publisher, UsedAssertion
from wander_hub.rights.models import Token
from wander_hub.settings import Settings

WORKFLOW = {"kind": "github", "subject": "acme/Environments", "workflow": "release.yml"}


@pytest.fixture
def settings(settings: Settings, issuer: Issuer) -> Settings:
    return settings.model_copy(update={"oidc_issuers": {issuer.url: "github"}, "oidc_audience": AUDIENCE})


@pytest.fixture
def trust(hub: Any, issuer: Issuer) -> Any:
    async def add(owner: str = "alice", user: str = "alice", **changes: Any) -> Any:
        body = {**WORKFLOW, "name": "reverse-text", "issuer": issuer.url, **changes}
        return await hub.client.post(f"/api/v1/owners/{owner}/publishers", json=body, headers=hub.auth(user))

    return add


@pytest.fixture
def mint(hub: Any, issuer: Issuer) -> Any:
    async def ask(token: str | None = None, target: dict[str, str] | None = None, **claims: Any) -> Any:
        token = token or issuer.token(**github_claims(**claims))
        return await hub.client.post("/_/oidc/mint-token", json={"token": token}, params=target)

    return ask


def bearer(answer: Any) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


async def test_a_workflow_publishes_without_a_stored_token(hub, trust, mint, make_wheel):
    added = await trust()
    assert added.status_code == 201, added.text
    assert added.json()["subject"] == "acme/environments"
    assert (await hub.get("/_/oidc/audience")).json() == {"audience": AUDIENCE}
    minted = await mint()
    headers = bearer(minted)
    assert 14 * 60 < minted.json()["expires"] - time.time() <= 15 * 60
    whoami = (await hub.get("/api/v1/whoami", headers=headers)).json()
    assert (whoami["owners"], whoami["token"]["scopes"]) == (["alice"], ["publish"])
    assert whoami["token"]["target"] == "alice/reverse-text"
    spec = make_wheel()
    answer = await hub.upload(spec.build(), spec.wheel_name, headers=headers)
    assert answer.status_code == 200, answer.text
    again = make_wheel(version="0.2.0")
    assert (await hub.upload(again.build(), again.wheel_name, headers=headers)).status_code == 200
    other = make_wheel(name="other", files={"other.py": b"def load_environment(): ...\n"})
    refused = await hub.upload(other.build(), other.wheel_name, headers=headers)
    assert refused.status_code == 403, "the token is for one environment"
    listed = await hub.get("/api/v1/owners/alice/publishers", headers=hub.auth())
    assert [one["pinned"] for one in listed.json()["data"]] == [
        {"repository_owner_id": "7", "repository_id": "11"}
    ]
    assert listed.json()["data"][0]["last_used_at"]


async def test_a_token_of_a_publisher_does_nothing_else(hub, trust, mint, make_wheel):
    await hub.publish(make_wheel(name="secret", files={"secret.py": b"def load_environment(): ...\n"}))
    private = await hub.client.put(
        "/api/v1/environments/alice/secret/visibility", json={"private": True}, headers=hub.auth()
    )
    assert private.status_code == 200
    await trust()
    headers = bearer(await mint())
    assert (await hub.get("/api/v1/environments/alice/secret", headers=headers)).status_code == 404
    for method, path, body in (
        ("POST", "/api/v1/tokens", {"name": "more", "scopes": ["publish"]}),
        ("POST", "/api/v1/owners/alice/publishers", {**WORKFLOW, "name": "secret"}),
        ("DELETE", "/api/v1/environments/alice/secret", None),
    ):
        refused = await hub.client.request(method, path, json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "token_scope"), path


async def test_publisher_rights_end_with_those_of_the_user_who_added_it(hub, trust, mint, make_wheel):
    await trust()
    headers = bearer(await mint())
    with hub.database.write(HUB) as session:
        membership = session.scalars(
            select(Membership).join(Membership.user).where(Membership.owner_id == 2)
        ).one()
        membership.role = "reader"
    spec = make_wheel()
    assert (await hub.upload(spec.build(), spec.wheel_name, headers=headers)).status_code == 403


async def test_an_owner_s_publisher_serves_every_environment(hub, trust, mint, make_wheel):
    await trust(name=None)
    headers = bearer(await mint())
    for name in ("one", "two"):
        spec = make_wheel(name=name, files={f"{name}.py": b"def load_environment(): ...\n"})
        assert (await hub.upload(spec.build(), spec.wheel_name, headers=headers)).status_code == 200
    assert (await hub.upload(spec.build(), spec.wheel_name, owner="bob", headers=headers)).status_code == 403


async def test_an_identity_token_works_once_even_when_sent_at_the_same_time(hub, trust, mint, issuer):
    await trust()
    token = issuer.token(**github_claims())
    import anyio

    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await mint(token))

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(ask)
    assert sorted(one.status_code for one in answers) == [200, 422, 422, 422, 422, 422]
    refused = next(one for one in answers if one.status_code == 422).json()
    assert refused["code"] == "token_used"
    assert refused["errors"] == [{"code": "token_used", "description": refused["errors"][0]["description"]}]


async def test_tokens_and_assertions_that_expired_are_swept(hub, trust, mint):
    await trust()
    await mint()
    with hub.database.write(HUB) as session:
        service.forget_before(session, now() + timedelta(minutes=3))
        assert session.scalar(select(func.count()).select_from(UsedAssertion)) == 1
        service.forget_before(session, now() + timedelta(minutes=30))
        assert session.scalar(select(func.count()).select_from(UsedAssertion)) == 0
        left = session.scalars(select(Token.name)).all()
    assert set(left) == {"first start", "test"}, "tokens that users made stay"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"repository": "evil/environments"}, "no publisher matches `evil/environments`"),
        (
            {"job_workflow_ref": "Acme/environments/.github/workflows/ci.yml@refs/heads/main"},
            "workflow is `ci.yml`",
        ),
        ({"job_workflow_ref": "evil/other/.github/workflows/release.yml@refs/heads/main"}, "workflow is `?`"),
        ({"job_workflow_ref": "Acme/environments/.github/workflows/release.yml"}, "workflow is `?`"),
        ({"event_name": "pull_request_target"}, "may not publish"),
        ({"environment": "staging"}, "in the environment `staging`, not in `release`"),
        ({"environment": None}, "not in `release`"),
    ],
)
async def test_claims_of_other_workflows_are_rejected(trust, mint, claims, reason):
    assert (await trust(deployment="release")).status_code == 201
    answer = await mint(**{"environment": "Release", **claims})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_publisher"), answer.text
    assert reason in answer.json()["errors"][0]["description"]
    assert (await mint(environment="Release")).status_code == 200


async def test_a_repository_name_taken_by_another_account_is_not_trusted(trust, mint):
    await trust()
    assert (await mint()).status_code == 200
    answer = await mint(repository_owner_id="8")
    assert answer.status_code == 422
    assert "the name now belongs to another account" in answer.json()["detail"]


async def test_forged_tokens_and_tokens_for_other_hubs_are_rejected(trust, mint, issuer):
    await trust()
    moment = int(time.time())
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = github_claims()
    bad = {
        "another key": issuer.token(key=stranger, **claims),
        "unknown key": issuer.token(kid="nobody", key=stranger, **claims),
        "another hub": issuer.token(aud="other.example", **claims),
        "several audiences": issuer.token(aud=[AUDIENCE, "other.example"], **claims),
        "expired": issuer.token(iat=moment - 900, exp=moment - 60, **claims),
        "not yet": issuer.token(iat=moment, nbf=moment + 600, **claims),
        "no jti": issuer.token(jti=None, **claims),
        "no exp": issuer.token(exp=None, **claims),
        "lives for ever": issuer.token(exp=moment + 10 * 86_400, **claims),
        "another issuer": issuer.token(iss="https://evil.example", **claims),
        "a shared secret": issuer.token(key="s" * 32, algorithm="HS256", **claims),
        "unsigned": jwt.encode({"iss": issuer.url}, None, algorithm="none"),
        "no token": "wnd_abc",
    }
    for what, token in bad.items():
        answer = await mint(token)
        assert answer.status_code == 422, (what, answer.text)
        assert answer.json()["code"] in {"invalid_token", "unknown_issuer", "unknown_key"}, what
        assert token not in answer.text
    assert (await mint()).status_code == 200


async def test_new_keys_are_fetched_once_a_minute_at_most(trust, mint, issuer, monkeypatch):
    await trust()
    assert (await mint()).status_code == 200
    issuer.new_key()
    for _ in range(3):
        answer = await mint()
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_key")
    assert issuer.asked.count("/keys") == 1
    monkeypatch.setattr(identity_tokens, "_COOL_DOWN_SECONDS", 0)
    assert (await mint()).status_code == 200


async def test_an_unreachable_issuer_is_reported(trust, mint, issuer):
    await trust()
    token = issuer.token(**github_claims())
    issuer.keys.clear()
    answer = await mint(token)
    assert (answer.status_code, answer.json()["code"]) == (503, "issuer_unreachable")


async def test_a_workflow_with_several_environments_must_name_one(hub, trust, mint):
    await trust(name="one")
    await trust(name="two")
    answer = await mint()
    assert (answer.status_code, answer.json()["code"]) == (422, "several_publishers")
    assert "alice" not in answer.text
    said = answer.json()["errors"][0]["description"]
    assert "several environments trust this workflow" in said
    assert all(
        f"`wander {what}" in said for what in ("publish --owner OWNER", "auth workflow-token OWNER/NAME")
    )
    for name in ("one", "two"):
        named = bearer(await mint(target={"owner": "alice", "name": name}))
        whoami = (await hub.get("/api/v1/whoami", headers=named)).json()
        assert whoami["token"]["target"] == f"alice/{name}"
    for other in ({"owner": "alice", "name": "four"}, {"owner": "bob"}, {"owner": "bob", "name": "one"}):
        refused = await mint(target=other)
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown_publisher"), other
    assert (await trust(name="three", deployment="three")).status_code == 201
    await trust(name=None)
    assert (await mint()).status_code == 200, "the owner's own publisher covers them"


@pytest.mark.parametrize("theirs", [("secret-plan",), ("secret-plan", "secret-two"), (None,)])
async def test_publishers_of_strangers_are_ignored(hub, trust, mint, make_wheel, theirs):
    for name in theirs:
        assert (await trust("bob", "bob", name=name)).status_code == 201
    await trust()
    for target in (None, {"owner": "alice"}, {"owner": "Alice", "name": "Reverse_Text"}):
        answer = await mint(target=target)
        assert "bob" not in answer.text
        assert "secret" not in answer.text
        spec = make_wheel()
        sent = await hub.upload(spec.build(), spec.wheel_name, headers=bearer(answer))
        assert sent.status_code == 200, (target, sent.text)
        refused = await hub.upload(spec.build(), spec.wheel_name, owner="admin", headers=bearer(answer))
        assert refused.status_code in (401, 403)
        elsewhere = make_wheel(name="other", files={"other.py": b"def load_environment(): ...\n"})
        refused = await hub.upload(elsewhere.build(), elsewhere.wheel_name, headers=bearer(answer))
        assert refused.status_code == 403, "the token is for one environment"
    unnamed = await mint(target={"name": "reverse-text"})
    if None in theirs:
        assert (unnamed.status_code, unnamed.json()["code"]) == (422, "several_publishers")
        assert "bob" not in unnamed.text
    else:
        assert unnamed.status_code == 200, "whose name it is can be told"


async def test_exchanged_tokens_have_the_rights_of_their_owner(hub, trust, mint, make_wheel):
    await trust("bob", "bob")
    added = await trust()
    headers, spec = bearer(await mint()), make_wheel()
    for owner in ("alice", "bob"):
        assert (
            await hub.upload(spec.build(), spec.wheel_name, owner=owner, headers=headers)
        ).status_code == 200
    assert (await hub.get("/api/v1/whoami", headers=headers)).status_code == 401, "it is nobody's by itself"
    removed = f"/api/v1/owners/alice/publishers/{added.json()['id']}"
    assert (await hub.client.delete(removed, headers=hub.auth())).status_code == 200
    assert (await hub.upload(spec.build(), spec.wheel_name, headers=headers)).status_code == 401
    again = await hub.upload(spec.build(), spec.wheel_name, owner="bob", headers=headers)
    assert again.status_code == 200, "bob still trusts it"


async def test_only_managers_add_publishers(hub, trust):
    assert (await trust(user="bob")).status_code == 403
    assert (await trust(issuer="https://evil.example")).json()["code"] == "unknown_issuer"
    assert (await trust()).status_code == 201
    assert (await trust()).json()["code"] == "publisher_exists"
    removed = await hub.client.delete("/api/v1/owners/alice/publishers/1", headers=hub.auth())
    assert removed.json()["subject"] == "acme/environments"
    gone = await hub.client.delete("/api/v1/owners/alice/publishers/1", headers=hub.auth())
    assert (gone.status_code, gone.json()["code"]) == (404, "publisher_not_found")


async def test_a_removed_publisher_s_tokens_end(hub, trust, mint):
    await trust()
    headers = bearer(await mint())
    await hub.client.delete("/api/v1/owners/alice/publishers/1", headers=hub.auth())
    assert (await hub.get("/api/v1/whoami", headers=headers)).status_code == 401


async def test_an_environment_that_is_renamed_or_deleted_keeps_no_publisher(hub, trust):
    await hub.publish()
    await trust()
    moved = await hub.client.post(
        "/api/v1/environments/alice/reverse-text/transfer",
        json={"owner": "alice", "name": "turned"},
        headers=hub.auth(),
    )
    assert moved.status_code == 200, moved.text
    assert (await trust(name="turned")).status_code == 201
    assert (
        await hub.client.delete("/api/v1/environments/alice/turned", headers=hub.auth())
    ).status_code == 204
    with hub.database.read(HUB) as session:
        assert session.scalars(select(Publisher)).all() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"workflow": None},
        {"workflow": "../release.yml"},
        {"workflow": "release.txt"},
        {"subject": "acme"},
        {"subject": "acme/a/b"},
        {"kind": "oidc"},
        {"kind": "oidc", "workflow": None},
    ],
)
def test_impossible_publishers_are_rejected(changes):
    with pytest.raises(ValueError, match=r".+"):
        NewPublisher(**{**WORKFLOW, "name": "x", **changes})


async def test_a_hub_without_a_public_address_exchanges_no_tokens(hub, trust, mint):
    hub.client._transport.app.state.settings = hub.settings.model_copy(update={"oidc_audience": None})
    answer = await hub.get("/_/oidc/audience")
    assert (answer.status_code, answer.json()["code"]) == (404, "trusted_publishing_off")
    assert (await mint()).status_code == 404


def test_the_audience_is_the_hub_s_own_host(tmp_path):
    assert Settings(data=tmp_path, public_url="https://hub.acme.org/").audience == "hub.acme.org"
    assert Settings(data=tmp_path).audience is None
    with pytest.raises(ValueError, match="https"):
        Settings(data=tmp_path, oidc_issuers={"http://gitlab.acme.org": "gitlab"})
