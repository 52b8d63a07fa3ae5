"""What a run's page, its API and the docs say was proved, level by level, and what was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wander.types import EnvironmentInfo, RewardFunctionInfo
from wander.wire import EnvironmentPin, Platform
from wander.wire.verification import LEVEL_FACTS, STATED, ReplayReport, VerifiedWith
from wander_hub.fsck import check as fsck
from wander_hub.jobs import JobRefused, JobWorker, TableQueue
from wander_hub.operation.job_queue import settle_failures
from wander_hub.verification import service
from wander_hub.verification.program import ClientProgram
from wander_hub.verification.worker import Replayer

RUN = "01JRUN0000000000000000000A"
BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"
DOCS = Path(__file__).parents[2] / "docs" / "verification.md"
REWARDS = [0.9, 0.2, 0.7, 0.4, 0.1, 0.8]


def report(**fields: Any) -> dict[str, Any]:
    counts = {"expected": 6, "recorded": 6, "replayed": 6, "same": 6, "differing": 0, "failed": 0}
    found = ReplayReport(**{"run_id": RUN, **counts, **fields})
    return {"level": found.level, **found.model_dump(mode="json"), "made_with": None}


class Room:
    """A run, and a hub whose replays end as the test says."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.ends: list[dict[str, Any] | Exception] = []
        self.queue = settle_failures(TableQueue(hub.database, retry_seconds=0))
        self.storage = hub.client._transport.app.state.storage

    def answer(self, *_: Any) -> dict[str, Any]:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def play(self, end: dict[str, Any] | Exception, times: int = 1) -> None:
        self.ends += [end] * times
        program = ClientProgram(
            self.hub.database, "http://hub", self.hub.settings.data, sandbox=False, seconds=60
        )
        replayer = Replayer(program, self.hub.database, self.storage)
        for _ in range(times):
            assert JobWorker(self.queue, {service.KIND: replayer}, "player").run_one()

    async def ask(self, **wanted: Any) -> None:
        path = f"/api/v1/runs/{RUN}/verifications"
        answer = await self.hub.client.post(path, json=wanted, headers=self.hub.auth("bob"))
        assert answer.status_code == 201, answer.text

    async def proofs(self) -> dict[str, tuple[str, str]]:
        found = (await self.hub.get(f"/api/v1/runs/{RUN}/evidence")).json()
        assert found["stated"] == STATED
        assert [one["did"] for one in found["proofs"]] == [
            LEVEL_FACTS[one["level"]].did for one in found["proofs"]
        ]
        return {one["level"]: (one["proof"], one["told"]) for one in found["proofs"]}

    async def page(self) -> str:
        return str((await self.hub.get(f"/runs/{RUN}", headers={"Accept": "text/html"})).text)

    async def row(self) -> dict[str, Any]:
        (row,) = (await self.hub.get(BOARD)).json()["rows"]
        return dict(row)


@pytest.fixture
async def room(hub: Any, run_of: Any, monkeypatch: pytest.MonkeyPatch) -> Room:
    manifest, rollouts = run_of(await hub.publish(), reward=REWARDS)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    room = Room(hub)
    monkeypatch.setattr(ClientProgram, "_answer", lambda _, *words: room.answer(*words))
    return room


def test_the_docs_tell_the_facts_of_every_level() -> None:
    text = DOCS.read_text()
    for level, facts in LEVEL_FACTS.items():
        assert f"| `{level}` | {facts.did} | {facts.unproven} |\n" in text
    assert STATED in " ".join(text.split())


async def test_a_run_that_waits_is_complete_and_nothing_more(room: Room) -> None:
    assert await room.proofs() == {
        "complete": ("proved", "6 of 6 rollouts, and none failed"),
        "rescored": ("open", "waits for the hub"),
        "replayed": ("open", "waits for the hub"),
    }
    page = await room.page()
    assert f"The submitter reports {STATED}" in page
    assert LEVEL_FACTS["complete"].unproven in page
    assert LEVEL_FACTS["replayed"].unproven not in page, "of what is not proved, nothing is left open either"


async def test_a_replay_proves_the_rubric_too(room: Room) -> None:
    room.play(report(twice=4))
    found = await room.proofs()
    assert found["rescored"] == ("proved", "included in the replay")
    told = "6 of 6 rollouts replayed, all with the same results; 4 of them twice, under different conditions"
    assert found["replayed"] == ("proved", told)
    assert LEVEL_FACTS["replayed"].unproven in await room.page()


@pytest.mark.parametrize(
    ("end", "proof", "told"),
    [
        (JobRefused("it took longer than 9 s"), "open", "could not be compared: it took longer than 9 s"),
        (report(refused="no example `7`", contradicted=True), "contradicted", "no example `7`"),
        (report(refused="other packages"), "open", "could not be compared: other packages"),
        (
            report(same=5, differing=1),
            "contradicted",
            "1 of 6 rollouts produced different results when replayed",
        ),
    ],
)
async def test_unproved_levels_are_shown_with_their_reason(
    room: Room, end: Any, proof: str, told: str
) -> None:
    room.play(end, times=2 if isinstance(end, Exception) else 1)
    found = await room.proofs()
    assert found["replayed"] == (proof, told)
    assert found["complete"][0] == "proved"
    assert "not replayed</span>" in await room.page()


async def test_a_sample_proves_no_level(room: Room) -> None:
    room.play(JobRefused("no space"), times=2)
    await room.ask(sample=2)
    room.play(report(sampled=True, replayed=2, same=2, sample_seed=5))
    proof, told = (await room.proofs())["replayed"]
    assert (proof, told.partition(":")[0]) == ("open", "a sample")


async def test_recorded_judge_answers_do_not_count_as_a_replay(room: Room) -> None:
    """Also where the environment says that it is deterministic."""
    room.play(report(answered=3, judged=3))
    found = await room.proofs()
    assert (found["rescored"][0], found["replayed"][0]) == ("open", "open")
    assert "in 3 of them the judge's answers are taken as recorded" in found["replayed"][1]
    run = (await room.hub.get(f"/api/v1/runs/{RUN}")).json()
    assert run["level"] == "complete"
    assert run["level_reason"].endswith("the judge's answers are taken as recorded")


async def test_bounds_come_from_the_environment_where_a_run_leaves_them_out(room: Room) -> None:
    """Else whoever takes them out of the manifest has the narrower interval."""
    before = await room.row()
    functions = [
        RewardFunctionInfo(name="lcs", weight=1.0, bounds=(0.0, 5.0)),
        RewardFunctionInfo(name="length", weight=0.0, bounds=(0.0, 9.0)),
    ]
    info = EnvironmentInfo(
        name="reverse-text", kind="single_turn", reward_bounds=(-5.0, 5.0), reward_functions=functions
    )
    pin = EnvironmentPin(owner="alice", name="reverse-text", version="0.1.0", info=info)
    platform = Platform(wander="0.1.0", python="3.11", system="Linux", machine="x86_64")
    made_with = VerifiedWith(environment=pin, platform=platform).model_dump(mode="json")
    room.play(report() | {"made_with": made_with})
    after = await room.row()
    assert (before["level"], after["level"]) == ("complete", "replayed")
    assert after["reward_mean"] == before["reward_mean"]
    assert after["reward_low"] < 0.0 < before["reward_low"]
    assert after["reward_high"] > 1.0 > before["reward_high"]
    low, high = after["metric_intervals"]["length"]
    assert 0.0 <= low < 5.0 < high <= 9.0
    assert "length" not in before["metric_intervals"]
    assert list(fsck.find_mismatches(room.hub.database, room.storage)) == []
