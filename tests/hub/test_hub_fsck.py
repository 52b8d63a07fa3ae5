"""`wander-hub fsck`: every kind of damage is found, and what can be derived is mended."""

from __future__ import annotations

import json
import os
import time

import pytest
from click.testing import CliRunner
from sqlalchemy import update
from wander_hub.cli import main as cli
from wander_hub.environments.models import Environment, File
from wander_hub.fsck import check as fsck
from wander_hub.index.models import IndexPage
from wander_hub.storage import Storage


@pytest.fixture
def storage(hub) -> Storage:
    return hub.client._transport.app.state.storage


@pytest.fixture
async def filled(hub, make_wheel, run_of):
    """A hub with two versions and a run with an artifact, where nothing is wrong."""
    for version in ("0.1.0", "0.2.0"):
        await hub.publish(make_wheel(version=version))
    manifest, rollouts = run_of(None)
    answer = await hub.post_run(manifest, rollouts, artifacts={"notes.txt": b"words"})
    assert answer.status_code == 201, answer.text
    return hub


def codes(hub, storage, **options) -> list[str]:
    return sorted(one.code for one in fsck.find_mismatches(hub.database, storage, **options))


def object_path(storage, sha256):
    path = storage.local_path(sha256)
    assert path is not None
    return path


async def wheel_digest(hub) -> str:
    version = (await hub.get("/api/v1/environments/alice/reverse-text/versions/0.1.0")).json()
    return version["files"][0]["sha256"]


async def test_an_intact_hub_has_no_findings(filled, storage):
    assert codes(filled, storage) == []
    assert codes(filled, storage, quick=True) == []
    assert codes(filled, storage, repair=True) == []


async def test_lost_and_changed_objects_are_reported_and_kept(filled, storage, folder_alone):
    digest = await wheel_digest(filled)
    path = object_path(storage, digest)
    body = path.read_bytes()
    path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    assert codes(filled, storage) == ["object_corrupt"]
    assert codes(filled, storage, quick=True) == [], "the size is right"
    path.write_bytes(body[:-1])
    assert codes(filled, storage, quick=True) == ["object_corrupt"]
    path.unlink()
    (finding,) = fsck.find_mismatches(filled.database, storage, repair=True)
    assert (finding.code, finding.subject, finding.repaired) == ("object_missing", digest, False)
    assert "reverse_text-0.1.0" in finding.detail


async def test_unused_objects_are_removed_once_they_are_old(filled, storage, tmp_path, folder_alone):
    loose = tmp_path / "loose"
    loose.write_bytes(b"from an upload that died")
    with loose.open("rb") as file:
        digest = storage.put(file)
    assert codes(filled, storage) == [], "an upload may be under way"
    old = time.time() - fsck.GRACE.total_seconds() - 60
    os.utime(object_path(storage, digest), (old, old))
    assert codes(filled, storage) == ["object_extra"]
    (finding,) = fsck.find_mismatches(filled.database, storage, repair=True)
    assert finding.repaired
    assert not storage.exists(digest)
    assert codes(filled, storage) == []


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (update(IndexPage).where(IndexPage.project != "").values(html=b"?"), ["page_stale"]),
        (update(IndexPage).where(IndexPage.project == "").values(json_etag="x"), ["page_stale"]),
        (
            update(IndexPage).where(IndexPage.project != "").values(project="gone"),
            ["page_extra", "page_missing", "page_stale"],
        ),
        (update(Environment).values(version_count=7), ["totals_wrong"]),
        (update(Environment).values(run_count=0, best_model=None), ["totals_wrong"]),
        (update(File).values(size=1), ["page_stale", "size_wrong", "size_wrong"]),
    ],
    ids=["page", "root", "renamed", "count", "runs", "size"],
)
async def test_derived_data_is_repaired(filled, storage, damage, expected):
    hub = filled
    good = (await hub.get("/alice/simple/reverse-text/")).content
    with hub.database.write() as session:
        session.execute(damage)
    found = codes(hub, storage)
    assert found == expected
    assert codes(hub, storage) == found, "looking changes nothing"
    mended = list(fsck.find_mismatches(hub.database, storage, repair=True))
    assert {one.code for one in mended} <= set(found), "mending one thing may mend another"
    assert all(one.repaired for one in mended)
    assert codes(hub, storage) == []
    assert (await hub.get("/alice/simple/reverse-text/")).content == good


async def test_deleted_versions_are_not_reported_as_missing(filled, storage):
    await filled.client.delete("/api/v1/environments/alice/reverse-text", headers=filled.auth())
    assert codes(filled, storage) == []


async def test_the_command_reports_and_repairs(filled, storage, monkeypatch, folder_alone):
    hub = filled
    monkeypatch.setenv("WANDER_HUB_DATA", str(hub.settings.data))
    if not hub.database.url.startswith("sqlite"):
        monkeypatch.setenv("WANDER_HUB_DATABASE_URL", hub.database.url)

    def run(*words: str):
        return CliRunner().invoke(cli.app, ["fsck", *words])

    assert (run().exit_code, run().stdout) == (0, "no faults found\n")
    with hub.database.write() as session:
        session.execute(update(Environment).values(version_count=7))
    told = run()
    assert told.exit_code == 1
    assert told.stdout.startswith("totals_wrong  alice/reverse-text  version_count\n")
    as_json = json.loads(run("--json").stdout)
    assert (as_json["left"], [one["code"] for one in as_json["findings"]]) == (1, ["totals_wrong"])
    mended = run("--repair", "--json")
    assert (mended.exit_code, json.loads(mended.stdout)["left"]) == (0, 0)
    assert run("--quick").exit_code == 0
    object_path(storage, await wheel_digest(hub)).unlink()
    assert run("--repair").exit_code == 1
