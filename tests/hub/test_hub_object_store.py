"""A hub with its files on an S3-compatible server: publish, install by redirect, fsck, a lost store."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from live_hub import BIN, clean_environment, hub_command, live_hub
from wander_hub.app import create_app
from wander_hub.storage import Storage

SECONDS = 240


@pytest.fixture(scope="module")
def address(objects):
    return objects.bucket()


@pytest.fixture(scope="module")
def remote(objects, address, tmp_path_factory):
    """A hub as a process that keeps files in a bucket and sends downloads there."""
    where = {"WANDER_HUB_STORAGE_URL": address, "WANDER_HUB_PRESIGNED_SECONDS": str(SECONDS)}
    folder = tmp_path_factory.mktemp("remote")
    with live_hub(folder, WANDER_HUB_BUNDLED_PACKAGES="false", **where, **objects.variables) as hub:
        yield hub


def publish(hub, spec, **fields: str) -> bytes:
    body = spec.build()
    answer = httpx.post(
        f"{hub.url}/admin/legacy/",
        data={":action": "file_upload", "protocol_version": "1", **fields},
        files={"content": (spec.wheel_name, body, "application/octet-stream")},
        auth=("__token__", hub.token),
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return body


def is_good_for(address: str) -> int:
    return int(parse_qs(urlsplit(address).query)["X-Amz-Expires"][0])


@pytest.mark.full
def test_pip_and_uv_install_from_a_bucket(remote, make_wheel, tmp_path):
    spec = make_wheel(name="from-a-bucket", requires_dist=())
    body = publish(remote, spec)
    path = f"{remote.url}/admin/files/from-a-bucket/{spec.wheel_name}"
    answer = httpx.get(path)
    assert answer.status_code == 302
    assert answer.headers["cache-control"] == "no-store"
    assert is_good_for(answer.headers["location"]) == SECONDS
    assert httpx.get(answer.headers["location"]).content == body
    forged = answer.headers["location"].replace("X-Amz-Signature=", "X-Amz-Signature=0")
    assert httpx.get(forged).status_code == 403
    ranged = httpx.get(path, headers={"Range": "bytes=2-5"}, follow_redirects=True)
    assert (ranged.status_code, ranged.content) == (206, body[2:6])
    index = f"{remote.url}/admin/simple/"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--isolated"]
    uv = [
        str(BIN / "uv"),
        "pip",
        "install",
        "--quiet",
        "--no-cache",
        "--no-config",
        "--python",
        sys.executable,
    ]
    for tool in (pip, uv):
        target = tmp_path / f"by-{len(tool)}"
        command = [*tool, "--index-url", index, "--target", str(target), "from-a-bucket"]
        subprocess.run(command, env=clean_environment(), check=True, timeout=120)
        assert (target / "reverse_text.py").read_bytes() == spec.files["reverse_text.py"]


@pytest.mark.full  # in test_hub_index_direct.py without a server
def test_addresses_of_private_files_expire_after_a_minute(remote, make_wheel):
    spec = make_wheel(name="kept-private", requires_dist=())
    body = publish(remote, spec, wander_visibility="private")
    path = f"{remote.url}/admin/files/kept-private/{spec.wheel_name}"
    assert httpx.get(path).status_code == 401
    answer = httpx.get(path, auth=("__token__", remote.token))
    assert (answer.status_code, answer.headers["cache-control"]) == (302, "private, no-store")
    assert is_good_for(answer.headers["location"]) == 60
    assert httpx.get(answer.headers["location"]).content == body
    assert httpx.get(answer.headers["location"].split("?")[0]).status_code == 403


@pytest.mark.full
def test_fsck_finds_and_repairs_objects_in_a_bucket(remote, address, objects, make_wheel, monkeypatch):
    body = publish(remote, make_wheel(name="kept-safe"))

    def fsck(*words: str) -> subprocess.CompletedProcess[str]:
        command, environment = hub_command(remote.data, "fsck", *words)
        environment |= {"WANDER_HUB_STORAGE_URL": address, **objects.variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    sound = fsck()
    assert (sound.returncode, sound.stdout) == (0, "no faults found\n"), sound
    for name, value in objects.variables.items():
        monkeypatch.setenv(name, value)
    storage = Storage.open(address, remote.data)
    sha256 = hashlib.sha256(body).hexdigest()
    storage.delete(sha256)
    lost = fsck("--repair")
    assert (lost.returncode, "object_missing" in lost.stdout) == (1, True), lost
    storage.put(io.BytesIO(body))
    assert fsck().returncode == 0


@pytest.mark.full
async def test_an_unreachable_object_store_is_reported(hub, make_wheel, run_of, objects, monkeypatch, caplog):
    sha256 = await hub.publish(make_wheel(version="0.0.1"))
    await hub.post_run(*run_of(sha256, version="0.0.1"))
    for name, value in {**objects.variables, "AWS_SECRET_ACCESS_KEY": "wrong"}.items():
        monkeypatch.setenv(name, value)
    app = create_app(
        hub.settings, database=hub.database, storage=Storage.open(objects.bucket(), hub.settings.data)
    )
    spec = make_wheel()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://hub.test", headers=hub.auth()
    ) as client:
        health = await client.get("/health")
        posted = await client.post("/alice/legacy/", files={"content": (spec.wheel_name, spec.build())})
        page = await client.get("/alice/simple/other/")
        del client.headers["Authorization"]
        caplog.clear()
        shown = await client.get("/alice/reverse-text", headers={"Accept": "text/html"})
        logged = [one for one in caplog.records if "object store" in one.getMessage()]
    # The page of an environment only lacks the recorded rollout, for as long as the store is away.
    assert (shown.status_code, "cannot be shown" in shown.text) == (200, True)
    assert "s-maxage" not in shown.headers["cache-control"]
    assert [one.exc_info for one in logged] == [None] * len(logged)
    assert logged
    assert (health.status_code, health.json()["storage"]) == (503, False)
    assert (posted.status_code, posted.json()["code"]) == (503, "storage_unavailable")
    assert "wrong" not in posted.text
    assert os.environ["AWS_ACCESS_KEY_ID"] not in posted.text
    assert page.status_code == 404
