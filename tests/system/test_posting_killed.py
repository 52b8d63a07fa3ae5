"""Hub and uploader killed with -9 while a run is posted: who is left goes on, nothing is lost or twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import make_wheel
from live_hub import MortalHub, clean_environment, run_hub
from saved_runs import write_run
from wander.evals.store.folder import RunFolder
from wander.wire.transfers import NewRun
from wander_client.hub.posting import files_of, pack_run

pytestmark = pytest.mark.full

ROLLOUTS, PER_CHUNK = 240, 2
UPLOADER = f"""
import sys
from wander_client.hub import posting
posting.MAX_CHUNK_ROLLOUTS = {PER_CHUNK}  # small, so that there are many moments to die at
from wander_client.main import main
sys.exit(main(["post", *sys.argv[1:], "--json"]))
"""
PATIENCE = 120


@pytest.fixture
def hub(tmp_path: Path):
    running = MortalHub(tmp_path / "hub", WANDER_HUB_BUNDLED_PACKAGES="false")
    yield running
    running.kill()


def until(done: Callable[[], bool], uploader: subprocess.Popen[bytes]) -> None:
    """Wait until it is so; an uploader that ends before leaves nothing to wait for."""
    give_up = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < give_up
        if uploader.poll() is not None:
            return
        time.sleep(0.02)


def test_a_surviving_process_continues(hub: MortalHub, tmp_path: Path):
    wheel = make_wheel(tmp_path)
    with wheel.open("rb") as content:
        form = {":action": "file_upload", "protocol_version": "1"}
        answer = hub.post("/admin/legacy/", data=form, files={"content": (wheel.name, content)})
    assert answer.status_code == 200, answer.text
    folder = write_run(tmp_path / "runs" / "one", rewards=[float(n % 2) for n in range(ROLLOUTS)])
    run = RunFolder.open(folder)
    with pack_run(run.manifest, files_of(folder)) as parcel:
        announced = NewRun(manifest=parcel.manifest.decode(), files=parcel.files).model_dump(mode="json")
    names = ("config", "data", "cache", "runs")
    place = {f"WANDER_{name.upper()}_DIR": str(tmp_path / name) for name in names}
    environment = clean_environment() | place | {"WANDER_HUB": hub.url, "WANDER_TOKEN": hub.token}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

    def uploader() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", UPLOADER, str(folder)]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def arrived(count: int) -> Callable[[], bool]:
        def enough() -> bool:
            answer = hub.post("/api/v1/transfers/runs", json=announced)  # shows what is there of the run
            return len(answer.raise_for_status().json()["parts"]) >= count

        return enough

    first = uploader()
    until(arrived(10), first)
    hub.kill()
    hub.start()
    assert hub.get(f"/api/v1/runs/{run.manifest.run_id}").status_code == 404
    until(arrived(30), first)
    first.kill()
    first.communicate()
    hub.kill()
    second = uploader()  # finds nobody, and waits
    hub.start()
    until(arrived(50), second)
    hub.kill()
    hub.start()
    out, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, out
    shown = hub.get(f"/api/v1/runs/{run.manifest.run_id}").json()
    assert (shown["summary"]["rollouts"], shown["summary"]["reward_mean"]) == (ROLLOUTS, 0.5)
    assert hub.get("/api/v1/environments/admin/say-env").json()["runs"] == 1
    lines = hub.get(f"/api/v1/runs/{run.manifest.run_id}/rollouts.jsonl").content.splitlines()
    assert len(set(lines)) == len(lines) == ROLLOUTS
    third = uploader()
    out, _ = third.communicate(timeout=PATIENCE)
    assert b'"new": false' in out
    # With verification, fsck would miss the jobs that replay runs.
    run_hub(hub.data, "fsck", "--quick", **hub.settings)
