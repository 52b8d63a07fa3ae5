"""Internal environments and models: there for who is signed in, and for strangers as if they were not."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import checkpoint
from staged_uploads import pushed

PATH = "/api/v1/environments/alice/house-rules"
RUN = "01JRUN1NTERNA1000000000000"
INTERNAL, PRIVATE, PUBLIC = {"private": True, "internal": True}, {"private": True}, {"private": False}


@pytest.fixture
async def internal(hub: Any, make_wheel: Any, run_of: Any) -> Any:
    """Alice has an internal environment with a run, and an internal model; bob has no role there."""
    spec = make_wheel(name="house-rules", readme="# House rules\n\nOf quintessence.\n")
    answer = await hub.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": "internal"})
    assert answer.status_code == 200, answer.text
    manifest, rollouts = run_of(None, name="house-rules", run_id=RUN)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    model = await pushed(hub.client, hub.auth(), checkpoint(), name="house-rules", internal=True)
    assert model.status_code == 201, model.text
    hub.file = f"/alice/files/house-rules/{spec.wheel_name}"
    return hub


async def limited_token(hub: Any, user: str, target: str) -> dict[str, str]:
    body = {"name": "part", "scopes": ["read"], "target": target}
    made = await hub.client.post("/api/v1/tokens", json=body, headers=hub.auth(user))
    assert made.status_code == 201, made.text
    return {"Authorization": f"Bearer {made.json()['token']}"}


async def found(hub: Any, query: str, headers: dict[str, str]) -> list[str]:
    listed = (await hub.get(f"/api/v1/environments?{query}", headers=headers)).json()["data"]
    return [f"{one['owner']}/{one['name']}" for one in listed]


async def test_signed_in_users_read_and_post_to_internal_environments(internal, make_wheel, run_of):
    hub = internal
    await hub.publish(make_wheel(name="mine"), owner="bob")
    bob, part = hub.auth("bob"), await limited_token(hub, "bob", "bob/mine")
    whole = [await limited_token(hub, "alice", one) for one in ("alice", "alice/house-rules")]
    paths = [PATH, hub.file, "/alice/simple/house-rules/", f"/api/v1/runs/{RUN}", f"{PATH}/leaderboard"]
    paths += ["/api/v1/models/alice/house-rules", "/alice/house-rules", "/models/alice/house-rules"]
    for path in paths:
        seen = [(await hub.get(path, headers=one)).status_code for one in (bob, part, {})]
        assert seen in ([200, 404, 404], [200, 401, 401]), (path, seen)
        held = {(await hub.get(path, headers=one)).status_code for one in whole}
        assert held == ({200, 404} if "models" in path else {200}), path  # a model is of no environment
    detail = (await hub.get(PATH, headers=bob)).json()
    assert (detail["private"], detail["internal"]) == (True, True)
    assert ">internal<" in (await hub.get("/alice/house-rules", headers=bob)).text
    assert "private" in (await hub.get(hub.file, headers=bob)).headers["cache-control"]
    # What the index does not have goes on to the next one, as where nothing is hidden from the caller.
    asked = [(await hub.get("/alice/simple/requests/", headers=one)).status_code for one in (bob, {})]
    assert asked == [404, 401]
    manifest, rollouts = run_of(None, name="house-rules", run_id="01JRUNBOB00000000000000000")
    assert (await hub.post_run(manifest, rollouts, user="bob")).status_code == 201
    manifest, rollouts = run_of(None, name="house-rules", run_id="01JRUNPART0000000000000000")
    hub.tokens["part"] = part["Authorization"].removeprefix("Bearer ")
    assert (await hub.post_run(manifest, rollouts, user="part")).status_code == 403
    for change in ({"role": "reader"}, None):
        method = "PUT" if change else "DELETE"
        answer = await hub.client.request(method, f"{PATH}/members/bob", json=change, headers=bob)
        # Everybody may leave what they have a role on; bob has none.
        assert answer.status_code == (403 if change else 404)
    assert (await hub.get(f"{PATH}/members", headers=bob)).status_code == 403


@pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)
async def test_search_follows_changes_of_visibility(internal):
    hub, part = internal, await limited_token(internal, "bob", "bob")
    callers = {"stranger": {}, "part": part, "bob": hub.auth("bob"), "alice": hub.auth()}
    everybody = set(callers)
    for body, seen_by in (
        (None, {"bob", "alice"}),
        (PUBLIC, everybody),
        (INTERNAL, {"bob", "alice"}),
        (PRIVATE, {"alice"}),
        (INTERNAL, {"bob", "alice"}),
    ):
        if body:
            assert (
                await hub.client.put(f"{PATH}/visibility", json=body, headers=hub.auth())
            ).status_code == 200
        for query in ("", "q=quintessence", "q=house", "owner=alice", "tag=text", "q=rules&sort=newest"):
            told = {who for who, headers in callers.items() if await found(hub, query, headers)}
            assert told == seen_by, (body, query)
    assert await found(hub, "q=huose", hub.auth("bob")), "its words mend what who is signed in asks for"
    assert not await found(hub, "q=huose", {})


async def test_the_visibility_of_new_environments_is_a_setting_of_the_owner(hub, make_wheel):
    settings = {"private_by_default": True, "internal_by_default": True}
    path = "/api/v1/owners/alice/settings"
    assert (await hub.client.put(path, json=settings, headers=hub.auth())).json() == settings
    await hub.publish(make_wheel())
    new = "/api/v1/environments/alice/reverse-text"
    assert (await hub.get(new)).status_code == 404
    assert (await hub.get(new, headers=hub.auth("bob"))).json()["internal"]
    differs = make_wheel(version="0.2.0")
    for stated, status in (("private", 409), ("internal", 200)):
        answer = await hub.upload(differs.build(), differs.wheel_name, fields={"wander_visibility": stated})
        assert answer.status_code == status, answer.text
    assert (await hub.client.put(path, json={"private_by_default": False}, headers=hub.auth())).json() == {
        "private_by_default": False
    }
