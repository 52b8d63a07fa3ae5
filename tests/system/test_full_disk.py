"""A hub on a disk that is really full: uploads and runs are rejected with 507, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import make_wheel
from live_hub import LiveHub, clean_environment, live_hub, make_token
from saved_runs import write_run
from wander.evals.store.folder import RunFolder
from wander.wire.transfers import NewRun
from wander_client.hub.posting import files_of, pack_run

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def hub(disk: Path) -> Iterator[LiveHub]:
    (disk / "hub").mkdir()
    (disk / "hub" / "serve.log").symlink_to(disk.parent / "serve.log")  # the log has space
    with live_hub(disk / "hub") as running:
        yield running


def fill(disk: Path) -> Path:
    """Write a file until the disk is full."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


def upload(hub: LiveHub, wheel: Path) -> httpx.Response:
    return httpx.post(
        f"{hub.url}/admin/legacy/",
        data={":action": "file_upload", "protocol_version": "1"},
        files={"content": (wheel.name, wheel.read_bytes())},
        headers={"Authorization": f"Bearer {hub.token}"},
        timeout=60,
    )


def announce(hub: LiveHub, folder: Path) -> httpx.Response:
    """Announce a run without retries, unlike `wander post`."""
    with pack_run(RunFolder.open(folder).manifest, files_of(folder)) as parcel:
        body = NewRun(manifest=parcel.manifest.decode(), files=parcel.files).model_dump(mode="json")
    headers = {"Authorization": f"Bearer {hub.token}"}
    return httpx.post(f"{hub.url}/api/v1/transfers/runs", json=body, headers=headers, timeout=60)


def post(hub: LiveHub, run: Path, home: Path) -> subprocess.CompletedProcess[str]:
    folders = {f"WANDER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA", "CACHE", "RUNS")}
    environment = clean_environment() | folders | {"WANDER_HUB": hub.url, "WANDER_TOKEN": hub.token}
    command = ["wander", "post", str(run), "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_full_disk_rejects_uploads_and_loses_nothing(hub: LiveHub, disk: Path, tmp_path: Path) -> None:
    first, second = make_wheel(tmp_path), make_wheel(tmp_path, version="0.2.0")
    assert upload(hub, first).status_code == 200
    kept = write_run(tmp_path / "runs" / "kept", rewards=[1.0, 0.0])
    assert post(hub, kept, tmp_path / "home").returncode == 0
    new = write_run(tmp_path / "runs" / "new", rewards=[0.0, 1.0] * 50)

    unused = make_token(hub.data)  # its first use is recorded, which a full disk prevents

    ballast = fill(disk)
    logged = hub.log.stat().st_size
    refused = upload(hub, second)
    assert (refused.status_code, refused.json()["code"]) == (507, "storage_full"), refused.text
    assert refused.json()["hint"]
    refused = announce(hub, new)
    assert (refused.status_code, refused.json()["code"]) == (507, "storage_full"), refused.text
    for token in (hub.token, unused):
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{hub.url}/api/v1/environments/admin/say-env", headers=headers).status_code == 200
    for page in ("/", "/admin/say-env", "/admin/simple/say-env/"):
        assert httpx.get(f"{hub.url}{page}", follow_redirects=True).status_code == 200, page
    lines = hub.log.read_text()[logged:]
    assert "Traceback" not in lines
    assert "full" in lines

    ballast.unlink()
    assert upload(hub, second).status_code == 200
    assert post(hub, new, tmp_path / "home").returncode == 0
    page = hub.get("/admin/simple/say-env/").text
    assert first.name in page
    assert second.name in page
    command = ["wander-hub", "fsck", "--data", str(hub.data)]
    environment = clean_environment() | {"WANDER_HUB_VERIFICATION": "off"}  # as the hub's
    checked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr
