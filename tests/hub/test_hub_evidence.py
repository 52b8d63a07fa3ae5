"""What the hub finds by reading runs: whether a repetition of a run agrees with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hub_jobs import same_again
from run_parcels import Parcel
from staged_uploads import posted
from wander_hub.jobs import JobWorker, TableQueue
from wander_hub.verification import evidence, service
from wander_hub.verification.evidence import Examiner

REWARDS = [0.0, 1.0] * 20
SIZE = {"examples": 40, "per_example": 1}
HTML = {"Accept": "text/html"}


def name_of(number: int) -> str:
    return f"01RUN{number:021d}"


class Board:
    """One environment on a hub, runs of it, and the jobs that read and replay them."""

    def __init__(self, hub: Any, run_of: Any, sha256: str) -> None:
        self.hub, self.run_of, self.sha256 = hub, run_of, sha256
        self.queue = TableQueue(hub.database)

    async def post(self, number: int, rewards: Any = 0.5, user: str = "alice", **changes: Any) -> str:
        manifest, rollouts = self.run_of(self.sha256, reward=rewards, run_id=name_of(number), **changes)
        answer = await self.hub.post_run(manifest, rollouts, user=user)
        assert answer.status_code == 201, answer.text
        return str(manifest["run_id"])

    def examine(self) -> None:
        storage = self.hub.client._transport.app.state.storage
        worker = JobWorker(self.queue, {evidence.KIND: Examiner(self.hub.database, storage)}, "reader")
        while worker.run_one():
            pass

    def replay(self, run_id: str, expected: int) -> None:
        """Have the waiting replays end with everything the same."""
        worker = JobWorker(self.queue, {service.KIND: same_again(expected)}, "player")
        while worker.run_one():
            pass

    async def run(self, run_id: str) -> dict[str, Any]:
        return (await self.hub.get(f"/api/v1/runs/{run_id}")).json()

    async def evidence(self, run_id: str) -> dict[str, Any]:
        answer = await self.hub.get(f"/api/v1/runs/{run_id}/evidence")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def row(self, run_id: str) -> dict[str, Any]:
        board = await self.hub.get("/api/v1/environments/alice/reverse-text/leaderboard?runs=all")
        return next(row for row in board.json()["rows"] if row["run_id"] == run_id)


@pytest.fixture
async def board(hub: Any, run_of: Any) -> Board:
    return Board(hub, run_of, await hub.publish())


async def test_only_a_newline_ends_a_line(board: Board) -> None:
    manifest, rollouts = board.run_of(board.sha256, reward=0.5, run_id=name_of(1))
    for one in rollouts:
        one["completion"][0]["content"] += "one\u2028two\u0085three"
    spaced = [json.dumps(one, ensure_ascii=False, separators=(",\r", ":\r")) for one in rollouts]
    body = "".join(f"{one}\n" for one in spaced).encode()
    assert (await board.hub.post_run(manifest, body)).status_code == 201
    board.examine()
    assert (await board.evidence(name_of(1)))["examined_at"] is not None


async def rerun(board: Board, rewards: Any, user: str = "bob", **changes: Any) -> str:
    return await board.post(2, rewards, user=user, rerun_of=name_of(1), **SIZE, **changes)


async def test_a_rerun_that_agrees_gives_a_badge_but_no_level(board: Board) -> None:
    first = await board.post(1, REWARDS, **SIZE)
    board.replay(first, 40)
    second = await rerun(board, REWARDS)
    board.examine()
    assert (await board.row(first))["repeated_by"] == [], "the repetition is not proved as far"
    (one,) = (await board.evidence(first))["reruns"]
    assert one["note"] == "it is complete, and the run that it repeats is replayed"
    board.replay(second, 40)
    found = await board.evidence(first)
    assert (found["repeated_by"], found["level"]) == (["bob"], "replayed")
    (one,) = found["reruns"]
    assert (one["run_id"], one["posted_by"], one["note"]) == (second, "bob", "")
    assert (one["agreement"]["verdict"], one["agreement"]["examples"]) == ("agrees", 40)
    row = await board.row(first)
    assert (row["repeated_by"], row["rank_low"]) == (["bob"], 1)
    assert (await board.evidence(second))["rerun_of"] == first
    for path in ("/alice/reverse-text/leaderboard", f"/runs/{first}"):
        assert "repeated by bob" in (await board.hub.get(path, headers=HTML)).text


async def test_a_rerun_reveals_nothing_about_a_private_run(board: Board) -> None:
    hub = board.hub
    hidden = board.run_of(board.sha256, reward=REWARDS, run_id=name_of(1), **SIZE)
    made = await posted(hub.client, hub.auth(), Parcel.of(*hidden), private=True)
    assert made.status_code == 201, made.text
    told = []
    for number, named in ((2, name_of(1)), (3, name_of(77))):
        run_id = await board.post(number, REWARDS, user="bob", rerun_of=named, **SIZE)
        board.examine()
        found = (await hub.get(f"/api/v1/runs/{run_id}/evidence", headers=hub.auth("bob"))).json()
        assert found["rerun_of"] == named
        told.append({**found, "run_id": "", "rerun_of": "", "examined_at": ""})
        own = (await hub.get(f"/api/v1/runs/{run_id}/evidence", headers=hub.auth())).json()["rerun_of"]
        assert own == (named if number == 3 else made.json()["run_id"])
    assert told[0] == told[1]


async def test_a_formerly_private_run_is_rerun_under_its_folder_id(board: Board) -> None:
    manifest, rollouts = board.run_of(board.sha256, reward=REWARDS, run_id=name_of(1), **SIZE)
    lines = "".join(json.dumps(one) + "\n" for one in rollouts)
    files = {"manifest": ("run.json", json.dumps(manifest)), "rollouts": ("rollouts.jsonl", lines)}
    client, headers = board.hub.client, board.hub.auth()
    made = await client.post("/api/v1/runs", files=files, data={"private": "true"}, headers=headers)
    first = made.json()["run_id"]
    assert (made.status_code, first.partition("~")[0]) == (201, name_of(1))
    assert (await client.post(f"/api/v1/runs/{first}/publish", headers=headers)).status_code == 200
    await rerun(board, REWARDS)
    board.examine()
    (one,) = (await board.evidence(first))["reruns"]
    assert one["agreement"]["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("rewards", "changes", "verdict"),
    [
        (REWARDS, {"user": "alice"}, "agrees"),
        ([1.0] * 40, {}, "differs"),
        (REWARDS, {"sampling": {"temperature": 0.0}}, "agrees"),
        (REWARDS, {"model": "another"}, "agrees"),
        (REWARDS[1:] + REWARDS[:1], {}, "inconclusive"),
    ],
)
async def test_different_runs_give_no_rerun_badge(
    board: Board, rewards: Any, changes: Any, verdict: str
) -> None:
    first = await board.post(1, REWARDS, **SIZE)
    second = await rerun(board, rewards, **changes)
    board.examine()
    board.replay(second, 40)
    found = await board.evidence(first)
    assert (found["level"], found["repeated_by"]) == ("replayed", [])
    (one,) = found["reruns"]
    assert one["agreement"]["verdict"] == verdict
    assert one["note"]


async def test_identical_rollouts_count_as_a_rerun(board: Board) -> None:
    few = {"examples": 2, "per_example": 1}
    first = await board.post(1, REWARDS[:2], **few)
    _, rollouts = board.run_of(board.sha256, reward=REWARDS[:2], run_id=first, **few)
    manifest, _ = board.run_of(board.sha256, run_id=name_of(2), rerun_of=first, **few)
    assert (await board.hub.post_run(manifest, rollouts, user="bob")).status_code == 201
    board.examine()
    board.replay(first, 2)
    found = await board.evidence(first)
    assert found["repeated_by"] == ["bob"]
    assert found["reruns"][0]["agreement"]["identical"] == 2


async def test_a_rerun_of_an_unknown_run_is_an_ordinary_run(board: Board) -> None:
    one = await board.post(1, rerun_of=name_of(77))
    board.examine()
    found = await board.evidence(one)
    assert (found["rerun_of"], found["level"], found["reruns"]) == (name_of(77), "complete", [])


async def test_empty_runs_and_training_runs_are_not_read(board: Board, hub: Any) -> None:
    manifest, _ = board.run_of(board.sha256, run_id=name_of(1), kind="training")
    assert (await hub.post_run(manifest, None)).status_code == 201
    assert board.queue.claim("reader", [evidence.KIND]) is None
