"""A run is born with its jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import delete, select
from wander_hub.fsck import check as fsck
from wander_hub.jobs import Job
from wander_hub.posting import run_routes
from wander_hub.verification.models import Verification

JOBS = ["examine", "replay"]


def name_of(number: int) -> str:
    return f"01RUN{number:021d}"


def jobs(hub: Any, run_id: str) -> list[str]:
    """Return the kinds of the jobs of a run."""
    with hub.database.read() as session:
        found = session.scalars(select(Job.kind).where(Job.key.like(f"% {run_id}%")).order_by(Job.kind))
        return list(found)


async def post(hub: Any, run_of: Any, number: int, **options: Any) -> str:
    manifest, rollouts = run_of(hub.sha256, run_id=name_of(number))
    answer = await hub.post_run(manifest, rollouts, **options)
    assert answer.status_code == 201, answer.text
    return str(manifest["run_id"])


def forget(hub: Any, *run_ids: str, kinds: tuple[str, ...] = ("examine", "replay")) -> None:
    """Leave runs as a hub did that was killed before it asked for their jobs."""
    with hub.database.write() as session:
        if "replay" in kinds:
            session.execute(delete(Verification).where(Verification.run_id.in_(run_ids)))
        for run_id in run_ids:
            session.execute(delete(Job).where(Job.key.like(f"% {run_id}%"), Job.kind.in_(kinds)))


@pytest.fixture
async def three(hub: Any, run_of: Any) -> list[str]:
    hub.sha256 = await hub.publish()
    return [await post(hub, run_of, number) for number in (1, 2, 3)]


async def test_a_hub_that_dies_once_a_run_is_there_leaves_its_jobs(hub, run_of, monkeypatch):
    hub.sha256 = await hub.publish()

    def die(_request: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(run_routes, "wake_jobs", die)
    manifest, rollouts = run_of(hub.sha256, run_id=name_of(1))
    assert (await hub.post_run(manifest, rollouts)).status_code == 500
    assert (await hub.get(f"/api/v1/runs/{name_of(1)}")).status_code == 200
    assert jobs(hub, name_of(1)) == JOBS


async def test_private_runs_have_their_jobs_too(hub, run_of):
    hub.sha256 = await hub.publish()
    manifest, rollouts = run_of(hub.sha256, run_id=name_of(1))
    form = {
        "manifest": ("run.json", json.dumps(manifest)),
        "rollouts": ("rollouts.jsonl", "".join(json.dumps(one) + "\n" for one in rollouts)),
    }
    answer = await hub.client.post(
        "/api/v1/runs", files=form, data={"private": "true"}, headers=hub.auth("bob")
    )
    assert (answer.status_code, answer.json()["private"]) == (201, True)
    assert jobs(hub, name_of(1)) == JOBS


async def test_a_hub_that_plays_nothing_only_has_runs_read(hub, run_of):
    hub.sha256 = await hub.publish()
    app = hub.client._transport.app
    app.state.settings = hub.settings.model_copy(update={"verification": "off"})
    assert jobs(hub, await post(hub, run_of, 1)) == ["examine"]


async def test_fsck_reports_runs_without_jobs_and_requests_them(hub, three):
    storage = hub.client._transport.app.state.storage

    def findings(**options: Any) -> list[tuple[str, str, bool]]:
        found = fsck.find_mismatches(hub.database, storage, settings=hub.settings, **options)
        return [(one.code, one.subject, one.repaired) for one in found]

    assert findings() == []
    forget(hub, three[0], three[1])
    assert findings() == [("job_missing", one, False) for one in three[:2]]
    assert findings(quick=True, repair=True) == [("job_missing", one, True) for one in three[:2]]
    assert findings() == []
    assert [jobs(hub, one) for one in three] == [JOBS] * 3
