"""How much owners may have: what is counted, what is refused, and that it holds when many add at once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from small_models import checkpoint
from staged_uploads import VERSIONS, StagedUpload, announced, pushed
from wander_hub.audit import list_entries

QUOTA = "/api/v1/owners/alice/quota"
BOTH = pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)


async def limit(hub, owner: str = "alice", **limits: int | str) -> dict:
    answer = await hub.client.put(f"/api/v1/owners/{owner}/quota", json=limits, headers=hub.auth("admin"))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def used(hub, owner: str = "alice") -> dict[str, int]:
    answer = (await hub.get(f"/api/v1/owners/{owner}/quota", headers=hub.auth(owner))).json()
    return {kind: answer[kind]["used"] for kind in ("stored_bytes", "versions", "runs")}


def objects_of(hub) -> dict[str, int]:
    storage = hub.client._transport.app.state.storage
    return {one.sha256: one.size for one in storage.objects()}


@BOTH
async def test_simultaneous_uploads_respect_the_quota(hub, make_wheel, run_of):
    wheel = await hub.publish()
    await limit(hub, versions=3, runs=2)

    async def publish(number: int):
        spec = make_wheel(name=f"env-{number}", files={f"env_{number}.py": b"x = 1\n"})
        return await hub.upload(spec.build(), spec.wheel_name)

    async def post(number: int):
        manifest, rollouts = run_of(wheel, run_id=f"01RUN{number:021d}", model=f"model {number}")
        return await hub.post_run(manifest, rollouts)

    answers = await asyncio.gather(*(work(number) for number in range(6) for work in (publish, post)))
    told = Counter((one.request.url.path, one.status_code) for one in answers)
    assert told == {
        **{("/alice/legacy/", 200): 2, ("/alice/legacy/", 403): 4},
        **{("/api/v1/runs", 201): 2, ("/api/v1/runs", 403): 4},
    }
    assert {one.json()["code"] for one in answers if one.status_code == 403} == {"quota_exceeded"}
    assert (await used(hub))["versions"] == 3
    assert (await used(hub))["runs"] == 2


@BOTH
async def test_the_used_quota_equals_the_stored_bytes(hub, make_wheel, run_of):
    wheel = await hub.publish()
    await hub.publish(make_wheel(name="other", files={"other.py": b"x = 1\n"}))
    model = checkpoint()
    assert (await pushed(hub.client, hub.auth(), model)).status_code == 201
    assert (await pushed(hub.client, hub.auth(), model, name="twin")).status_code == 201
    assert await used(hub) == {"stored_bytes": sum(objects_of(hub).values()), "versions": 4, "runs": 0}
    before, files = await used(hub), set(objects_of(hub))
    manifest, rollouts = run_of(wheel)
    assert (await hub.post_run(manifest, rollouts, artifacts={"notes.txt": b"notes"})).status_code == 201
    of_run = sum(size for sha256, size in objects_of(hub).items() if sha256 not in files)
    text = len(json.dumps(manifest))
    after = before | {"stored_bytes": before["stored_bytes"] + of_run + text, "runs": 1}
    assert await used(hub) == after
    of_bob, rollouts = run_of(wheel, run_id="01RUNBOB", reward=0.25)
    assert (await hub.post_run(of_bob, rollouts, user="bob")).status_code == 201
    assert await used(hub) == after, "a run counts to who posted it"
    assert (await used(hub, "bob"))["runs"] == 1
    for path in (
        *(f"/runs/{manifest['run_id']}?reason=wrong", "/environments/alice/other"),
        *("/models/alice/ttt", "/models/alice/twin"),
    ):
        assert (await hub.client.delete("/api/v1" + path, headers=hub.auth())).status_code < 300
    assert await used(hub) == {
        "stored_bytes": text + len(make_wheel().build()), "versions": 1, "runs": 0
    }  # fmt: skip


async def test_an_exhausted_quota_is_reported_before_the_upload(hub, make_wheel, run_of):
    wheel = await hub.publish()
    spec = make_wheel(version="0.2.0")
    files = {spec.wheel_name: spec.build()}
    size = len(make_wheel().build())
    await limit(hub, stored_bytes=size + len(spec.build()) - 1)
    wanted = announced(files, name="reverse-text", version="0.2.0")
    refused = await hub.client.post(VERSIONS, json=wanted, headers=hub.auth())
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
    needed = size + len(spec.build())
    assert refused.json()["errors"] == [{"limit": "stored_bytes", "allowed": needed - 1, "needed": needed}]
    assert f"would have {needed:,} stored bytes, but the limit is {needed - 1:,}" in refused.json()["detail"]
    assert "wander env owner quota alice" in refused.json()["hint"]
    model = checkpoint(README_md=b"x" * size)
    large = await StagedUpload.begin_model(hub.client, hub.auth(), model)
    assert (large.opened.status_code, large.opened.json()["code"]) == (403, "quota_exceeded")
    known = objects_of(hub)
    assert (await hub.upload(spec.build(), spec.wheel_name)).status_code == 403
    assert (await hub.upload(make_wheel().build(), make_wheel().wheel_name)).status_code == 200, "it is there"
    assert (await hub.post_run(*run_of(wheel))).status_code == 403
    assert objects_of(hub) == known, "nothing of what was refused is kept"
    await limit(hub, stored_bytes=needed)
    assert (await hub.upload(spec.build(), spec.wheel_name)).status_code == 200


async def test_an_upload_started_before_the_limit_is_rejected_at_its_end(hub, make_wheel):
    spec = make_wheel()
    files = {spec.wheel_name: spec.build()}
    upload = await StagedUpload.begin(hub.client, hub.auth(), files, name="reverse-text", version="0.1.0")
    model = await StagedUpload.begin_model(hub.client, hub.auth(), checkpoint())
    await limit(hub, versions=0)
    for one in (upload, model):
        await one.send_all()
        ended = await one.finalize()
        assert (ended.status_code, ended.json()["code"]) == (403, "quota_exceeded")
    assert await used(hub) == {"stored_bytes": 0, "versions": 0, "runs": 0}
    await limit(hub, versions=2)
    assert [(await one.finalize()).status_code for one in (upload, model)] == [201, 201]


async def test_transfers_count_toward_the_quota_of_the_new_owner(hub, make_wheel):
    await hub.publish()
    await hub.client.put(
        "/api/v1/owners/bob/members/alice", json={"role": "owner"}, headers=hub.auth("admin")
    )
    place = "/api/v1/environments/alice/reverse-text"
    await limit(hub, "bob", versions=0)
    answer = await hub.client.post(f"{place}/transfer", json={"owner": "bob"}, headers=hub.auth())
    assert (answer.status_code, answer.json()["code"]) == (403, "quota_exceeded")
    assert await used(hub, "bob") == {"stored_bytes": 0, "versions": 0, "runs": 0}
    await limit(hub, "bob", versions=1)
    moved = await hub.client.post(f"{place}/transfer", json={"owner": "bob"}, headers=hub.auth())
    assert moved.status_code == 200
    assert ((await used(hub))["versions"], (await used(hub, "bob"))["versions"]) == (0, 1)
    # Whoever has too much already may still change its name.
    await limit(hub, "bob", versions=0)
    renamed = {"owner": "bob", "name": "renamed"}
    path = "/api/v1/environments/bob/reverse-text/transfer"
    assert (await hub.client.post(path, json=renamed, headers=hub.auth())).status_code == 200


async def test_administrators_can_set_quotas_for_owners(hub, monkeypatch):
    for name, value in (("STORED_BYTES", "10MiB"), ("RUNS", "5")):
        monkeypatch.setenv(f"WANDER_HUB_QUOTA_{name}", value)
    app = hub.client._transport.app
    app.state.settings = type(hub.settings)(data=hub.settings.data)
    default = (await hub.get(QUOTA, headers=hub.auth())).json()
    assert default["stored_bytes"] == {"used": 0, "allowed": 10 * 1024**2, "own": False}
    assert default["versions"] == {"used": 0, "allowed": None, "own": False}
    changed = await limit(hub, stored_bytes="unlimited", runs=7)
    assert changed["stored_bytes"] == {"used": 0, "allowed": None, "own": True}
    assert (changed["runs"]["allowed"], changed["versions"]["own"]) == (7, False)
    refused = await hub.client.put(QUOTA, json={"runs": 9}, headers=hub.auth())
    assert refused.status_code == 403
    for wrong in ({"runs": -1}, {"runs": "many"}, {"run": 1}):
        assert (await hub.client.put(QUOTA, json=wrong, headers=hub.auth("admin"))).status_code == 422
    for headers, status in ((hub.auth("bob"), 404), ({}, 401)):
        assert (await hub.get(QUOTA, headers=headers)).status_code == status
    with hub.database.read() as session:
        told = list_entries(session, action="owner.quota")
    assert [(one.actor, one.owner, one.detail) for one in told] == [
        ("admin", "alice", {"stored_bytes": "unlimited", "versions": None, "runs": 7})
    ]
