"""The life of a version: yanked, deprecated, archived, quarantined, deleted, moved, closed."""

from __future__ import annotations

import hashlib
import io
import tarfile
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from wander_hub.database import now
from wander_hub.environments.models import Version
from wander_hub.storage import Storage

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
PATH = "/api/v1/environments/alice/reverse-text"


def sdist() -> bytes:
    """Return a source archive of 0.1.0."""
    project = b'[project.entry-points."wander.environments"]\nreverse-text = "reverse_text"\n'
    info = b"Metadata-Version: 2.4\nName: reverse-text\nVersion: 0.1.0\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, body in {"PKG-INFO": info, "pyproject.toml": project}.items():
            member = tarfile.TarInfo(f"reverse_text-0.1.0/{name}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


@pytest.fixture
def storage(hub) -> Storage:
    return hub.client._transport.app.state.storage


@pytest.fixture
async def published(hub, make_wheel):
    """A hub with versions 0.1.0 and 0.2.0."""
    for version in ("0.1.0", "0.2.0"):
        await hub.publish(make_wheel(version=version))
    return hub


async def page(hub, path: str = "/alice/simple/reverse-text/", **headers: str) -> dict[str, Any]:
    answer = await hub.get(path, headers=JSON | headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def change(
    hub, method: str, path: str, body: dict[str, Any] | None = None, user: str = "alice", **options
):
    return await hub.client.request(method, path, json=body, headers=hub.auth(user), **options)


async def test_yanking_shows_immediately_and_can_be_undone(published):
    hub = published
    answer = await change(hub, "PUT", f"{PATH}/versions/0.2.0/yank", {"reason": 'wrong <rewards>\n "sorry"'})
    assert (answer.json()["yanked"], answer.json()["yanked_reason"]) == (True, 'wrong <rewards> "sorry"')
    marks = {one["filename"].split("-")[1]: one["yanked"] for one in (await page(hub))["files"]}
    assert marks == {"0.1.0": False, "0.2.0": 'wrong <rewards> "sorry"'}
    html = (await hub.get("/alice/simple/reverse-text/", headers={"Accept": "text/html"})).text
    assert 'data-yanked="wrong &lt;rewards&gt; &quot;sorry&quot;"' in html
    assert html.count("data-yanked") == 1
    again = await change(hub, "PUT", f"{PATH}/versions/0.2.0/yank", {})
    assert again.json()["yanked_reason"] == 'wrong <rewards> "sorry"', "the first reason stays"
    assert (await hub.get(PATH)).json()["latest_version"] == "0.1.0"
    await change(hub, "DELETE", f"{PATH}/versions/0.2.0/yank")
    assert not any(one["yanked"] for one in (await page(hub))["files"])
    assert (await hub.get(PATH)).json()["latest_version"] == "0.2.0"


async def test_deprecation_names_a_successor(published, make_wheel):
    hub = published
    await hub.publish(make_wheel(name="better"))
    body = {"status": "deprecated", "reason": "scores are biased", "successor": "alice/better"}
    detail = (await change(hub, "PUT", f"{PATH}/status", body)).json()
    assert (detail["status"], detail["status_reason"], detail["successor"]) == tuple(body.values())
    assert (await page(hub))["project-status"] == {"status": "deprecated", "reason": "scores are biased"}
    html = (await hub.get("/alice/simple/reverse-text/", headers={"Accept": "text/html"})).text
    assert '<meta name="pypi:project-status" content="deprecated">' in html
    assert '<meta name="pypi:project-status-reason" content="scores are biased">' in html
    await hub.publish(make_wheel(version="0.3.0"))
    unknown = await change(hub, "PUT", f"{PATH}/status", body | {"successor": "alice/nothing"})
    assert unknown.status_code == 404
    assert (await change(hub, "PUT", f"{PATH}/status", {"status": "active"})).json()["successor"] is None


async def test_an_archived_environment_serves_files_but_accepts_none(published, make_wheel):
    hub = published
    await change(hub, "PUT", f"{PATH}/status", {"status": "archived"})
    spec = make_wheel(version="0.3.0")
    refused = await hub.upload(spec.build(), spec.wheel_name)
    assert (refused.status_code, refused.json()["code"]) == (409, "environment_archived")
    shown = await page(hub)
    assert shown["project-status"] == {"status": "archived"}
    assert len(shown["files"]) == 2
    await change(hub, "PUT", f"{PATH}/status", {"status": "active"})
    assert (await hub.upload(spec.build(), spec.wheel_name)).status_code == 200


async def test_a_quarantined_environment_serves_nothing(published, make_wheel):
    hub = published
    file = (await hub.get(f"{PATH}/versions/0.1.0")).json()["files"][0]["url"]
    body = {"status": "quarantined", "reason": "sends keys away"}
    assert (await change(hub, "PUT", f"{PATH}/status", body, user="admin")).status_code == 200
    shown = await page(hub)
    assert (shown["files"], shown["versions"]) == ([], [])
    assert shown["project-status"] == {"status": "quarantined", "reason": "sends keys away"}
    refused = await hub.get(file)
    assert (refused.status_code, refused.json()["code"]) == (403, "quarantined")
    assert "sends keys away" in refused.json()["detail"]
    assert (await hub.get(file, headers=hub.auth("admin"))).status_code == 200, "to look into it"
    spec = make_wheel(version="0.3.0")
    assert (await hub.upload(spec.build(), spec.wheel_name)).status_code == 409
    await change(hub, "PUT", f"{PATH}/status", {"status": "active"}, user="admin")
    assert len((await page(hub))["files"]) == 2


async def test_a_deleted_version_leaves_a_tombstone(published, make_wheel, run_of, storage):
    hub = published
    digest = hashlib.sha256(make_wheel(version="0.2.0").build()).hexdigest()
    manifest, rollouts = run_of(digest, version="0.2.0")
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    file = (await hub.get(f"{PATH}/versions/0.2.0")).json()["files"][0]["url"]
    answer = await change(hub, "DELETE", f"{PATH}/versions/0.2.0", params={"reason": "leaked data"})
    assert (answer.json()["files"], answer.json()["deleted_reason"]) == ([], "leaked data")
    assert not storage.exists(digest)
    assert (await hub.get(file)).status_code == 410
    assert (await page(hub))["versions"] == ["0.1.0"]
    detail = (await hub.get(PATH)).json()
    assert (detail["all_versions"], detail["latest_version"], detail["versions"]) == (["0.1.0"], "0.1.0", 1)
    run = (await hub.get(f"/api/v1/runs/{manifest['run_id']}")).json()
    assert run["summary"]["reward_mean"] == 0.5, "runs keep their numbers"
    assert run["version_deleted"] is True
    for body in (make_wheel(version="0.2.0").build(), make_wheel(version="0.2.0", summary="x").build()):
        refused = await hub.upload(body, make_wheel(version="0.2.0").wheel_name)
        assert (refused.status_code, refused.json()["code"]) == (409, "version_deleted")
    manifest, rollouts = run_of(digest, version="0.2.0", run_id="01JRUN0000000000000000000B")
    assert (await hub.post_run(manifest, rollouts)).json()["code"] == "version_deleted"
    for method, suffix in (("DELETE", ""), ("PUT", "/yank")):
        again = await change(hub, method, f"{PATH}/versions/0.2.0{suffix}", {"reason": None})
        assert (again.status_code, again.json()["code"]) == (410, "version_deleted")
    web = (await hub.get(f"/runs/{run['run_id']}", headers={"Accept": "text/html"})).text
    assert "deleted" in web


async def test_an_object_is_kept_while_something_needs_it(published, make_wheel, storage):
    hub = published
    await hub.publish(make_wheel(version="0.2.0"), owner="bob")
    digest = hashlib.sha256(make_wheel(version="0.2.0").build()).hexdigest()
    await change(hub, "DELETE", f"{PATH}/versions/0.2.0")
    assert storage.exists(digest)
    assert (
        await hub.get(f"/bob/files/reverse-text/{make_wheel(version='0.2.0').wheel_name}")
    ).status_code == 200
    await change(hub, "DELETE", "/api/v1/environments/bob/reverse-text/versions/0.2.0", user="bob")
    assert not storage.exists(digest)


async def test_a_deleted_environment_is_gone_and_its_index_page_is_empty(published, make_wheel, run_of):
    hub = published
    manifest, rollouts = run_of(None, version="0.1.0")
    await hub.post_run(manifest, rollouts)
    assert (await change(hub, "DELETE", PATH)).status_code == 204
    gone = await hub.get(PATH)
    assert (gone.status_code, gone.json()["code"]) == (410, "environment_deleted")
    assert (await hub.get("/api/v1/environments")).json()["data"] == []
    assert (await page(hub))["files"] == [], "an empty page: installers must not look elsewhere"
    assert (await page(hub, "/alice/simple/"))["projects"] == []
    spec = make_wheel(version="9.0")
    refused = await hub.upload(spec.build(), spec.wheel_name)
    assert (refused.status_code, refused.json()["code"]) == (409, "name_deleted")
    assert (await hub.get(f"/api/v1/runs/{manifest['run_id']}")).json()["version_deleted"] is True
    assert (await hub.get("/alice/reverse-text", headers={"Accept": "text/html"})).status_code == 410


async def test_an_old_version_accepts_no_more_files(published, make_wheel):
    hub = published
    with hub.database.write() as session:
        session.execute(update(Version).values(uploaded_at=now() - timedelta(days=15)))
    spec = make_wheel(version="0.1.0")
    late = spec.build()
    same = await hub.upload(late, spec.wheel_name)
    assert (same.status_code, same.headers["x-wander-upload"]) == (200, "unchanged")
    refused = await hub.upload(sdist(), "reverse_text-0.1.0.tar.gz")
    assert (refused.status_code, refused.json()["code"]) == (409, "version_closed")


async def test_a_transfer_redirects_everything_and_drops_roles_and_tokens(published, make_wheel):
    hub = published
    for path, role in (("/api/v1/owners/bob/members/alice", "maintainer"),):
        assert (await change(hub, "PUT", path, {"role": role}, user="admin")).status_code == 200
    await change(hub, "PUT", f"{PATH}/members/admin", {"role": "maintainer"}, user="admin")
    await change(hub, "PUT", f"{PATH}/members/carol", {"role": "owner"})
    body = {"name": "ci", "scopes": ["publish"], "target": "alice/reverse-text"}
    token = (await change(hub, "POST", "/api/v1/tokens", body)).json()["token"]
    file = (await hub.get(f"{PATH}/versions/0.1.0")).json()["files"][0]["url"]
    moved = await change(hub, "POST", f"{PATH}/transfer", {"owner": "bob"})
    assert (moved.status_code, moved.json()["owner"]) == (200, "bob")
    for old, new in (
        (PATH, "/api/v1/environments/bob/reverse-text"),
        (f"{PATH}/versions/0.1.0?x=1", "/api/v1/environments/bob/reverse-text/versions/0.1.0?x=1"),
        ("/alice/reverse-text", "/bob/reverse-text"),
        ("/alice/reverse-text/leaderboard", "/bob/reverse-text/leaderboard"),
        ("/alice/simple/reverse-text/", "/bob/simple/reverse-text/"),
        (file, "/bob/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"),
    ):
        answer = await hub.get(old)
        assert (answer.status_code, answer.headers["location"]) == (301, new)
        assert answer.headers["cache-control"] == "no-cache"
        assert (await hub.get(new)).status_code == 200, new
    yank = await change(hub, "PUT", f"{PATH}/versions/0.1.0/yank", {"reason": None}, user="bob")
    assert yank.status_code == 308, "the method is kept"
    whoami = await hub.get("/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})
    assert whoami.status_code == 401
    members = await hub.get("/api/v1/environments/bob/reverse-text/members", headers=hub.auth("bob"))
    assert {one["user"] for one in members.json()["data"]} == {"alice", "bob"}, "both through the owner"
    spec = make_wheel(version="0.3.0")
    refused = await hub.upload(spec.build(), spec.wheel_name)
    assert (refused.status_code, refused.json()["code"]) == (409, "environment_moved")
    assert "bob/reverse-text" in refused.json()["hint"]
    assert (await page(hub, "/alice/simple/"))["projects"] == []
    assert (await page(hub, "/bob/simple/"))["projects"] == [{"name": "reverse-text"}]
    back = await change(hub, "POST", "/api/v1/environments/bob/reverse-text/transfer", {"owner": "alice"})
    assert back.status_code == 403, "a maintainer of bob's is not an owner"


async def test_a_transfer_back_and_forth_keeps_one_environment(published):
    hub = published
    await change(hub, "PUT", "/api/v1/owners/bob/members/alice", {"role": "owner"}, user="admin")
    await change(hub, "POST", f"{PATH}/transfer", {"owner": "bob"})
    back = await change(hub, "POST", "/api/v1/environments/bob/reverse-text/transfer", {"owner": "alice"})
    assert back.status_code == 200
    assert len((await page(hub))["files"]) == 2
    assert (await hub.get("/bob/simple/reverse-text/")).headers["location"] == "/alice/simple/reverse-text/"


async def test_a_renamed_environment_keeps_the_page_that_its_files_need(published, make_wheel, run_of):
    hub = published
    renamed = await change(hub, "POST", f"{PATH}/transfer", {"owner": "alice", "name": "backwards"})
    assert renamed.json()["name"] == "backwards"
    assert (await hub.get(PATH)).headers["location"] == "/api/v1/environments/alice/backwards"
    assert len((await page(hub))["files"]) == 2, "the files still carry the former name"
    assert (await page(hub, "/alice/simple/backwards/"))["files"] == []
    for one in (await page(hub))["files"]:
        assert (await hub.get(f"/alice/files/reverse-text/{one['filename']}")).status_code == 200
    refused = await hub.upload(make_wheel(version="0.3.0").build(), make_wheel(version="0.3.0").wheel_name)
    assert refused.json()["code"] == "environment_moved"
    again = make_wheel(name="backwards", version="0.2.0")
    refused = await hub.upload(again.build(), again.wheel_name)
    assert refused.json()["code"] == "version_exists", "a version is of one name"
    await hub.publish(make_wheel(name="backwards", version="0.3.0"))
    assert (await page(hub, "/alice/simple/backwards/"))["versions"] == ["0.3.0"]
    assert (await hub.get("/api/v1/environments/alice/backwards")).json()["versions"] == 3
    manifest, rollouts = run_of(None, version="0.1.0")
    assert (await hub.post_run(manifest, rollouts)).status_code == 201, "runs of the former name are at home"
    clash = await change(
        hub, "POST", "/api/v1/environments/alice/backwards/transfer", {"owner": "alice", "name": "runs"}
    )
    assert clash.status_code == 422


async def test_transfers_never_use_a_name_twice(published, make_wheel):
    hub = published
    await hub.publish(make_wheel(name="other"))
    clash = await change(hub, "POST", f"{PATH}/transfer", {"owner": "alice", "name": "other"})
    assert (clash.status_code, clash.json()["code"]) == (409, "name_taken")
    await change(hub, "PUT", "/api/v1/owners/bob/members/alice", {"role": "maintainer"}, user="admin")
    await hub.publish(make_wheel(), owner="bob")
    clash = await change(hub, "POST", f"{PATH}/transfer", {"owner": "bob", "name": "fresh"})
    assert (clash.status_code, clash.json()["code"]) == (409, "name_taken"), "its files are named like bob's"
    assert len((await page(hub))["files"]) == 2, "and nothing had moved"
