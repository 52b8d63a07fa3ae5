"""A hub that is killed with -9 anywhere in the life of a sealed set: nothing hidden is left readable, no
question is sent without being counted, and the set opens with all of its rows.

tests/system/test_sealed_killed.py kills real hubs while a real `wander` plays.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_sealing import Hub, SealingProcesses, Step, sealing_worker
from sqlalchemy import select
from wander.wire.transfers import commitment_of, make_set
from wander_hub.identity import HUB
from wander_hub.jobs import OPEN, Job
from wander_hub.sealed import memory, service
from wander_hub.sealed import worker as sealed_worker
from wander_hub.sealed.models import SealedPlay

MARKER, KEY = "zyzzyva", "sk-quokka"
ROWS = [{"question": f"reverse {MARKER}{n}", "answer": f"{MARKER}{n}"} for n in range(3)]
SERVICE, WORKER, MEMORY = (f"wander_hub.sealed.{name}" for name in ("service", "worker", "memory"))
HERE, QUEUE = "killed_sealing", "wander_hub.jobs.table:TableQueue"
ARRIVAL, TRANSFERS = "wander_hub.posting.arrival", "wander_hub.transfers.service"
# Where the process dies, by stage. The tests of the first point of a stage are not marked `full`.
POINTS: dict[str, list[tuple[Any, ...]]] = {
    "create": [(QUEUE, "submit", "after"), (HERE, "answer")],
    "check": [(f"{HERE}:Program", "answer_in_memory", "after"), (WORKER, "_write", "after")],
    "play": [(MEMORY, "leave_key", "after"), (QUEUE, "submit", "after"), (HERE, "answer")],
    "playing": [(HERE, "send_question", "after", 3), (HERE, "send_question"), (MEMORY, "take_key")],
    "open": [(SERVICE, "submit_opening", "after"), (HERE, "answer")],
    "opening": [(WORKER, "_post_run", "after"), (WORKER, "_post_run", "before", 2)],
}
POINTS["playing"] += [(MEMORY, "take_key", "after"), (WORKER, "_mark_exposed")]
POINTS["playing"] += [(WORKER, "_mark_exposed", "after"), (WORKER, "seal", "after")]
POINTS["opening"] += [(f"{WORKER}:_Sets", "file", "after"), (f"{WORKER}:SetOpener", "_waiting")]
POINTS["opening"] += [(ARRIVAL, "announce", "after"), (TRANSFERS, "receive", "after"), (TRANSFERS, "finish")]
WORKED = ("check", "playing", "opening")
"""Stages that are a job."""
for name in WORKED:
    POINTS[name] += [(QUEUE, "finish"), (QUEUE, "finish", "after")]
CASES = [
    pytest.param((stage, *point), id=f"{stage}-{number}", marks=[pytest.mark.full] * (number > 0))
    for stage, points in POINTS.items()
    for number, point in enumerate(points)
]


@pytest.fixture(scope="module")
def processes() -> Iterator[SealingProcesses]:
    made = SealingProcesses()
    yield made
    made.close()


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory of this test alone; what `sealing_worker` replaces comes back afterwards."""
    monkeypatch.setattr(sealed_worker, "client_program", sealed_worker.client_program)
    with tempfile.TemporaryDirectory(dir=memory.ROOT, prefix="killed-") as folder:
        monkeypatch.setattr(memory, "ROOT", Path(folder))
        monkeypatch.setattr(memory, "_NEW_SECONDS", 0.0)
        yield Path(folder)


class Life:
    """The life of a set with two plays, one with a key and one without."""

    def __init__(self, hub: Any, data: Hub, processes: SealingProcesses, point: tuple[Any, ...]) -> None:
        self.hub, self.data, self.processes = hub, data, processes
        self.killed_in, self.point = point[0], point[1:]
        self.content = make_set(ROWS)
        self.commitment = commitment_of(self.content)

    async def reach(self, stage: str) -> None:
        """Kill a process in this stage if it is the chosen one."""
        if stage != self.killed_in:
            return
        action, user = "work" if stage in WORKED else stage, 3 if stage == "play" else 2
        given = {"user": user, "commitment": self.commitment, "content": self.content.decode(), "key": KEY}
        self.processes.kill_at(self.data, Step(action, *self.point, **given))
        if not stage.startswith("open"):
            await self.require_hidden()

    async def require_hidden(self) -> None:
        memory.sweep()
        places = (self.hub.settings.data, Path(self.data.memory))
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        readable = {path.name: path.read_bytes() for path in files}
        keys = {path.name for path in files if path.parent.name.startswith("wander-keys")}
        for name, content in readable.items():
            assert MARKER.encode() not in content, name
            assert KEY.encode() not in content or name in keys
        for path in (f"/sealed/{self.commitment}", "/alice/reverse-text", "/api/v1/runs"):
            assert MARKER not in (await self.hub.get(path, headers={"Accept": "text/html"})).text

    def work(self) -> None:
        worker = sealing_worker(self.data, self.hub.database, lease_seconds=30.0)
        worker.run_waiting()
        with self.hub.database.read(HUB) as session:
            waiting = Job.kind.in_((service.CHECK, service.PLAY, service.OPENING)), Job.state.in_(OPEN)
            assert session.scalars(select(Job.kind).where(*waiting)).all() == []

    async def show(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.hub.get(f"/api/v1/sealed/{self.commitment}")).json()
        return found

    async def create(self) -> None:
        place = "/api/v1/environments/alice/reverse-text/versions/0.1.0/sealed"
        when = {"opens_at": "2030-01-01T00:00:00Z"}
        options = {"params": when, "headers": self.hub.auth()}
        answer = await self.hub.client.post(place, content=self.content, **options)
        assert answer.status_code == 201 or answer.json()["code"] == "set_exists", answer.text

    async def play(self, key: str | None) -> None:
        body = {"model": "echo", "endpoint": "https://model.example/v1", "key": key}
        path = f"/api/v1/sealed/{self.commitment}/plays"
        answer = await self.hub.client.post(path, json=body, headers=self.hub.auth("bob"))
        assert answer.status_code == 201, answer.text

    async def open(self) -> None:
        path = f"/api/v1/sealed/{self.commitment}/opening"
        answer = await self.hub.client.put(path, json={}, headers=self.hub.auth())
        assert answer.status_code == 200 or answer.json()["code"] == "set_open", answer.text

    def require_counted(self, found: dict[str, Any]) -> None:
        """Require that each play whose questions were sent is an exposure, and sent them once."""
        with self.hub.database.read(HUB) as session:
            rows = session.execute(select(SealedPlay.job_id, SealedPlay.exposed_at)).all()
        exposed = {job_id for job_id, moment in rows if moment is not None}
        sent = Counter(map(int, Path(self.data.questions).read_text().split()))
        assert sent.keys() <= exposed
        assert found["exposures"] == len(exposed)
        assert max(sent.values()) <= len(self.data.wheel["rollouts"])


@pytest.mark.parametrize("point", CASES)
async def test_a_killed_hub_reveals_and_loses_nothing(hub, run_of, processes, in_memory, tmp_path, point):
    manifest, rollouts = run_of(await hub.publish(), model="echo")
    rollouts = json.loads(json.dumps(rollouts).replace("reverse ", f"reverse {MARKER}"))
    questions = tmp_path / "questions"
    questions.touch()
    data = Hub(
        settings=hub.settings.model_dump_json(),
        database_url=hub.database.url,
        memory=str(in_memory),
        wheel={"manifest": manifest, "rollouts": rollouts},
        questions=str(questions),
    )
    life = Life(hub, data, processes, point)
    await life.reach("create")
    await life.create()
    await life.reach("check")
    life.work()
    assert (await life.show())["state"] == "sealed"
    await life.reach("play")
    # A play without a key could be repeated, so only its mark keeps it from being sent twice.
    first, second = (KEY, None) if "take_key" in point else (None, KEY)
    await life.play(first)
    await life.reach("playing")
    await life.play(second)
    life.work()
    await life.require_hidden()
    found = await life.show()
    life.require_counted(found)
    for play in found["plays"]:
        assert play["level"] == "sealed" or "submit" in play["error"], play
    played = [play["id"] for play in found["plays"] if play["level"] == "sealed"]
    if len(played) < 2:
        await life.play(KEY)
        life.work()
        played = [play["id"] for play in (await life.show())["plays"] if play["level"] == "sealed"]
    await life.reach("open")
    await life.open()
    await life.reach("opening")
    life.work()
    found = await life.show()
    life.require_counted(found)
    assert found["state"] == "opened"
    file = (await hub.get(f"/api/v1/sealed/{life.commitment}/examples.jsonl")).content
    assert commitment_of(file) == life.commitment
    opened = {play["id"]: play for play in found["plays"] if play["run_id"] is not None}
    assert sorted(opened) == sorted(played)
    assert {play["level"] for play in opened.values()} == {"complete"}
    runs = (await hub.get("/api/v1/runs")).json()["data"]
    assert sorted(run["run_id"] for run in runs) == sorted(play["run_id"] for play in opened.values())
