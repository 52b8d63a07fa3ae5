"""Runs that the hub could not verify: they say so and why, and stand below those that it could."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from wander.wire.verification import ReplayReport
from wander_hub.database import now
from wander_hub.fsck import check as fsck
from wander_hub.jobs import MAX_ATTEMPTS, Job, JobWorker, TableQueue, hide_paths
from wander_hub.operation.job_queue import settle_failures
from wander_hub.verification import service

BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"
TOO_LONG = "it took longer than 900 s"


class Room:
    """One environment on a hub, runs of it and what comes of the hub's replays."""

    def __init__(self, hub: Any, run_of: Any, sha256: str) -> None:
        self.hub, self.run_of, self.sha256 = hub, run_of, sha256
        self.queue = settle_failures(TableQueue(hub.database, retry_seconds=0))

    async def post(self, number: int, reward: float, model: str) -> str:
        rewards = [reward, reward, 1.0, 0.0, reward, reward]
        run_id = f"01RUN{number:021d}"
        manifest, rollouts = self.run_of(self.sha256, reward=rewards, model=model, run_id=run_id)
        answer = await self.hub.post_run(manifest, rollouts)
        assert (answer.status_code, answer.json()["level"]) == (201, "complete")
        return run_id

    def play(self, end: ReplayReport | Exception | None) -> dict[str, Any]:
        """Do the next replay, which ends so; None for one in which everything is the same."""
        played: list[dict[str, Any]] = []

        def handler(context: Any) -> Any:
            played.append(context.lease.payload)
            if isinstance(end, Exception):
                raise end
            found = (end or report()).model_copy(update={"run_id": context.lease.payload["run_id"]})
            return lambda session: service.store_report(session, context.lease.job_id, found, None)

        assert JobWorker(self.queue, {service.KIND: handler}, "player").run_one()
        return played[0]

    async def run(self, run_id: str) -> tuple[str, str]:
        found = (await self.hub.get(f"/api/v1/runs/{run_id}")).json()
        return found["level"], found["level_reason"]

    async def ask(self, run_id: str, user: str = "bob", **wanted: Any) -> int:
        path = f"/api/v1/runs/{run_id}/verifications"
        answer = await self.hub.client.post(path, json=wanted, headers=self.hub.auth(user))
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    async def cancel(self, number: int, user: str) -> None:
        answer = await self.hub.client.delete(f"/api/v1/verifications/{number}", headers=self.hub.auth(user))
        assert answer.status_code == 200, answer.text

    async def rows(self, query: str = "") -> list[tuple[str, int, int]]:
        """Return model and ranks of every row."""
        found = (await self.hub.get(f"{BOARD}?{query}")).json()["rows"]
        return [(row["model"], row["rank_low"], row["rank_high"]) for row in found]

    def faults(self) -> list[Any]:
        return list(fsck.find_mismatches(self.hub.database, self.hub.client._transport.app.state.storage))


def report(**fields: Any) -> ReplayReport:
    counts = {"expected": 6, "recorded": 6, "replayed": 6, "same": 6, "differing": 0, "failed": 0}
    return ReplayReport(**{"run_id": "run", **counts, **fields})


def too_long() -> ReplayReport:
    """Return the report of a replay that was over a limit of the hub."""
    return report(replayed=0, same=0, refused=TOO_LONG)


@pytest.fixture
async def room(hub: Any, run_of: Any) -> Room:
    return Room(hub, run_of, await hub.publish())


async def test_unverifiable_runs_rank_below_verified_ones(room: Room):
    for number, (reward, model) in enumerate([(1.0, "best"), (0.4, "good"), (0.9, "next"), (0.2, "low")]):
        await room.post(number, reward, model)
    for end in (too_long(), None, too_long(), None):
        room.play(end)
    assert await room.run(f"01RUN{0:021d}") == ("unverifiable", f"could not be verified: {TOO_LONG}")
    below = [("best", 3, 4), ("next", 3, 4)]
    assert await room.rows() == [("good", 1, 2), ("low", 1, 2), *below]
    assert [one for one, *_ in await room.rows("sort=tokens")] == ["good", "low", "best", "next"]
    assert [one for one, *_ in await room.rows("level=complete")] == ["good", "low"]
    first = (await room.hub.get(f"{BOARD}?limit=3")).json()
    assert await room.rows(f"limit=3&cursor={first['next']}") == below[1:]
    shown = (await room.hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert shown["best_model"] == "good"
    for page in (f"/runs/01RUN{0:021d}", "/alice/reverse-text/leaderboard"):
        assert "could not be verified" in (await room.hub.get(page, headers={"Accept": "text/html"})).text
    assert room.faults() == []


async def test_runs_that_fail_on_purpose_move_no_row(room: Room):
    """However many fail, before and after: the row is the first that could be verified."""
    for number, reward in enumerate([0.9, 1.0, 0.6, 0.95, 0.99]):
        await room.post(number, reward, "a")
    for end in (too_long(), too_long(), None, None, too_long()):
        room.play(end)
    kept = f"01RUN{2:021d}"
    rows = (await room.hub.get(BOARD)).json()["rows"]
    assert [(row["run_id"], row["rank_low"], row["rank_high"]) for row in rows] == [(kept, 1, 1)]
    path = f"/api/v1/runs/{kept}?reason=not+good+enough"
    assert (await room.hub.client.delete(path, headers=room.hub.auth("alice"))).status_code == 200
    assert await room.rows() == [], "a verified run keeps its turn also when it is withdrawn"
    assert room.faults() == []


async def test_a_later_replay_gives_it_its_place(room: Room):
    first, second = await room.post(1, 0.9, "a"), await room.post(2, 0.5, "a")
    await room.post(3, 0.7, "b")
    for end in (too_long(), None, None):
        room.play(end)

    async def counting() -> list[str]:
        return [row["run_id"] for row in (await room.hub.get(BOARD)).json()["rows"]]

    assert await counting() == [f"01RUN{3:021d}", second], "the first that could be verified counts"
    assert await room.rows("runs=all") == [("b", 1, 2), ("a", 1, 2), ("a", 2, 2)]
    assert room.faults() == []
    await room.ask(first)
    room.play(None)
    assert (await room.run(first))[0] == "replayed"
    assert await counting() == [first, f"01RUN{3:021d}"], "it takes the turn that it had"
    assert room.faults() == []


async def test_a_worker_that_always_dies_lowers_no_level(room: Room):
    run_id = await room.post(1, 0.9, "a")
    with room.hub.database.write() as session:
        session.execute(update(Job).values(max_attempts=1))
    room.queue.claim("a worker that dies", [service.KIND])
    with room.hub.database.write() as session:
        session.execute(update(Job).values(lease_until=now() - timedelta(seconds=1)))
    assert room.queue.claim("another", [service.KIND]) is None
    assert (await room.run(run_id))[0] == "complete", "a fault of the hub lowers nothing"
    (told,) = (await room.hub.get(f"/api/v1/runs/{run_id}/verifications")).json()["data"]
    assert (told["state"], told["gave"]) == ("failed", "complete")
    assert told["error"] == "the worker crashed on every attempt"


async def test_failed_attempts_lower_no_level(room: Room):
    run_id = await room.post(1, 0.9, "a")
    for _ in range(MAX_ATTEMPTS):
        room.play(RuntimeError("[Errno 5] Input/output error: '/srv/the hub/data/x.json'"))
        assert (await room.run(run_id))[0] == "complete"
    (told,) = (await room.hub.get(f"/api/v1/runs/{run_id}/verifications")).json()["data"]
    assert (told["state"], told["error"]) == (
        "failed",
        "RuntimeError: [Errno 5] Input/output error: 'x.json'",
    )


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"refused": "it declares that it is not deterministic", "same": 0}, "not deterministic"),
        ({"method": "rescore", "same": 4, "undecided": 2, "undecided_reason": "no `board`"}, "no `board`"),
    ],
)
async def test_an_inconclusive_replay_reports_why(room: Room, found, reason):
    run_id = await room.post(1, 0.9, "a")
    room.play(report(**found))
    level, told = await room.run(run_id)
    assert level == "unverifiable"
    assert told.startswith("could not be verified: ")
    assert reason in told


async def test_lower_requests_and_cancellations_lower_no_level(room: Room):
    run_id = await room.post(1, 0.9, "a")
    room.play(None)
    assert (await room.run(run_id))[0] == "replayed"
    for wanted in ({"sample": 2}, {"level": "rescored"}, {}):
        await room.cancel(await room.ask(run_id, **wanted), "bob")
        await room.ask(run_id, **wanted)
        room.play(too_long())
        assert (await room.run(run_id))[0] == "replayed", "what was proven stays so"


async def test_canceled_and_postponed_replays_lower_no_level(room: Room):
    run_id = await room.post(1, 0.9, "a")
    (own,) = (await room.hub.get(f"/api/v1/runs/{run_id}/verifications")).json()["data"]
    assert room.queue.claim("w", [service.KIND])
    await room.cancel(own["id"], "alice")
    (own,) = (await room.hub.get(f"/api/v1/runs/{run_id}/verifications")).json()["data"]
    assert (own["state"], (await room.run(run_id))[0]) == ("queued", "complete")
    for wanted in ({"sample": 2}, {"level": "rescored"}):
        await room.ask(run_id, **wanted)
    asked = [room.play(too_long()) for _ in range(3)]
    assert {one["level"] for one in asked} == {"highest", "rescored"}
    assert (await room.run(run_id))[0] == "unverifiable", "what the hub asked for itself came to nothing"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("[Errno 2] No such file: '/srv/my hub/data/x.json'", "[Errno 2] No such file: 'x.json'"),
        ("see `~/hub/log` (/srv/hub/a.log:12)", "see `log` (a.log:12)"),
        ("file:///srv/a/b failed", "b failed"),
        ("`alice/reverse-text` at https://hub:80/a/b, and/or 1 / 2", None),
    ],
)
def test_public_data_contains_no_server_paths(told, shown):
    assert hide_paths(told) == (shown or told)
