"""A hub that is killed with -9 at random moments while it publishes, takes runs and verifies them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import make_wheel
from live_hub import MortalHub, run_hub
from postgres_server import postgres_server
from saved_runs import write_run
from sqlalchemy import select
from wander_hub.database import Database
from wander_hub.jobs import Job

pytestmark = pytest.mark.full

LEAST_RUNS, MOST_RUNS = 3, 25
PATIENCE = 400.0


class Users:
    """Publish versions and post runs, one after another, until told to stop."""

    def __init__(self, hub: MortalHub, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.versions: list[str] = []
        self.runs: list[str] = []
        self.refused: list[str] = []
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self.enough.wait(0.2):
            self.publish(f"0.{len(self.versions) + 1}.0")
            if len(self.runs) < MOST_RUNS:
                self.post()

    def publish(self, version: str) -> None:
        wheel = make_wheel(self.folder, version=version)
        form = {":action": "file_upload", "protocol_version": "1"}
        files = {"content": (wheel.name, wheel.read_bytes())}
        answer = self.hub.post("/admin/legacy/", patience=PATIENCE, data=form, files=files)
        self._note(answer, self.versions, version)

    def post(self) -> None:
        run = write_run(self.folder / "runs" / str(len(self.runs)), rewards=[1.0, 0.0, 1.0, 0.5])
        manifest, rollouts = (run / "run.json").read_bytes(), (run / "rollouts.jsonl.zst").read_bytes()
        answer = self.hub.post(
            "/api/v1/runs",
            patience=PATIENCE,
            files={"manifest": ("run.json", manifest), "rollouts": ("rollouts.jsonl.zst", rollouts)},
        )
        self._note(answer, self.runs, json.loads(manifest)["run_id"])

    def _note(self, answer: httpx.Response, done: list[str], name: str) -> None:
        if answer.status_code in (200, 201):
            done.append(name)
        else:
            self.refused.append(f"{name}: {answer.text}")
            self.enough.set()


@pytest.fixture(params=["sqlite", "postgresql"])
def hub(request: pytest.FixtureRequest, mirror: str, tmp_path: Path) -> Any:
    """A hub that plays posted runs again, on either database."""
    with ExitStack() as stack:
        settings = {
            "WANDER_HUB_VERIFICATION": "unconfined",
            "WANDER_HUB_CHECK_VERSIONS": "false",
            "WANDER_HUB_JOB_LEASE_SECONDS": "3",
            "UV_DEFAULT_INDEX": mirror,
        }
        if request.param == "postgresql":
            server = stack.enter_context(postgres_server())
            settings["WANDER_HUB_DATABASE_URL"] = stack.enter_context(server.database())
        running = MortalHub(tmp_path / "hub", **settings)
        stack.callback(running.kill)
        yield running


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_duplicated(hub: MortalHub, tmp_path: Path, kills: int) -> None:
    chance = random.Random(14)
    users = Users(hub, tmp_path)
    users.publish("0.1.0")
    users.thread.start()
    killed, give_up = 0, time.monotonic() + PATIENCE
    while killed < kills or len(users.runs) < LEAST_RUNS:
        # The longer, the more a slow machine gets done before it is killed.
        time.sleep(chance.uniform(0, 1.5) * (1 + killed / kills))
        hub.kill()
        hub.start()
        killed += 1
        assert time.monotonic() < give_up
    users.enough.set()
    users.thread.join(PATIENCE)
    assert users.refused == []

    url = hub.settings.get("WANDER_HUB_DATABASE_URL", f"sqlite:///{hub.data / 'hub.db'}")
    database = Database(url)
    give_up = time.monotonic() + PATIENCE
    while True:
        with database.read() as session:
            jobs = session.execute(select(Job.kind, Job.payload, Job.state)).all()
        if not {state for *_, state in jobs} & {"queued", "running"}:
            break
        assert time.monotonic() < give_up, Counter((kind, state) for kind, _, state in jobs)
        time.sleep(0.5)
    database.close()
    of_runs = Counter((kind, payload["run_id"]) for kind, payload, _ in jobs)
    assert of_runs == {(kind, run): 1 for kind in ("examine", "replay") for run in users.runs}
    for run in users.runs:
        (verification,) = hub.get(f"/api/v1/runs/{run}/verifications").json()["data"]
        assert verification["gave"] == hub.get(f"/api/v1/runs/{run}").json()["level"] != "complete"
    shown = hub.get("/api/v1/environments/admin/say-env").json()
    assert shown["runs"] == len(users.runs)
    assert shown["versions"] == len(set(users.versions)) == len(users.versions)
    run_hub(hub.data, "fsck", **hub.settings)
