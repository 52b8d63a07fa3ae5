"""Two hundred forgeries by real uploads, made from a table of fields and mutations, get what they deserve.

Those that end at the door are posted to the real application. The others are also read by the hub's examiner
and played again by `wander runs replay`, in this process; `tests/system/test_verification.py` has some of
them played in the sandbox by a hub of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forgery_room import ForgeryRoom, Record, forgery_room
from forgery_table import BODIES, FIELDS, LIKE_ANOTHER, Forgery, list_forgeries
from wander.evals.store.manifest import new_run_id

FORGERIES = list_forgeries()
AT_THE_DOOR = [one for one in FORGERIES if one.deserves == "refused"]
TAKEN_IN = [one for one in FORGERIES if one.deserves != "refused"]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[ForgeryRoom]:
    with forgery_room(tmp_path_factory.mktemp("forgeries"), migrated_database) as made:
        yield made


@pytest.fixture(scope="module")
def judged(room: ForgeryRoom) -> dict[str, tuple[Any, str]]:
    """The answer to each forgery that the hub takes in, and its run's id; after all jobs were done."""
    assert room.post(room.manifest, room.rollouts).status_code == 201
    posted = {one.name: post(room, one) for one in TAKEN_IN}
    room.judge()
    return posted


def post(room: ForgeryRoom, forgery: Forgery) -> tuple[Any, str]:
    manifest, rollouts = copy.deepcopy(room.manifest), copy.deepcopy(room.rollouts)
    manifest["run_id"] = new_run_id()
    run_id = manifest["run_id"]
    answer = room.post(*forgery.forge(manifest, rollouts))
    return answer, run_id


def test_the_table_has_a_hundred_forgeries() -> None:
    assert len({one.name for one in FORGERIES}) == len(FORGERIES) >= 100
    assert (len(FIELDS) > 30, len(BODIES) > 5, len(LIKE_ANOTHER) > 5) == (True, True, True)


def shared_out() -> list[Any]:
    """Return what is refused. The short run takes one change of each field."""
    taken, found = set[str](), []
    for one in AT_THE_DOOR:
        field = one.name.partition(":")[0]
        found.append(pytest.param(one, marks=[pytest.mark.full] if field in taken else [], id=one.name))
        taken.add(field)
    return found


@pytest.mark.parametrize("forgery", shared_out())
def test_impossible_records_are_rejected(room: ForgeryRoom, forgery: Forgery) -> None:
    answer, run_id = post(room, forgery)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["code"], "a reason that programs can read"
    assert room.hub.http.get(f"/api/v1/runs/{run_id}").status_code == 404, "nothing of it is kept"


@pytest.mark.full
@pytest.mark.parametrize("forgery", TAKEN_IN, ids=lambda one: one.name)
def test_accepted_forgeries_get_the_level_they_deserve(
    room: ForgeryRoom, judged: dict[str, tuple[Any, str]], forgery: Forgery
) -> None:
    answer, run_id = judged[forgery.name]
    assert answer.status_code == 201, answer.text
    run = room.get(f"/api/v1/runs/{run_id}")
    assert run["level"] == forgery.deserves, run["level_reason"]
    assert forgery.reason in run["level_reason"]
    if run["summary"]["rollouts"]:
        assert room.get(f"/api/v1/runs/{run_id}/evidence")["examined_at"], "the examiner read it"
    for one in room.get(f"/api/v1/runs/{run_id}/verifications")["data"]:
        assert (one["state"], one["error"]) == ("done", None)
    if forgery.deserves == "replayed":  # what it changed earns nothing
        assert run["summary"]["reward_mean"] == honest(room)["summary"]["reward_mean"]


@pytest.mark.full
def test_no_forgery_is_ranked(room: ForgeryRoom, judged: dict[str, tuple[Any, str]]) -> None:
    assert honest(room)["level"] == "replayed", honest(room)["level_reason"]
    board = room.get("/api/v1/environments/admin/guess-env/leaderboard?runs=all&limit=100")
    stands = {row["run_id"] for row in board["rows"]}
    assert room.manifest["run_id"] in stands
    deserve = {judged[one.name][1] for one in TAKEN_IN if one.deserves != "claimed"}
    assert stands <= {room.manifest["run_id"], *deserve}


@pytest.mark.full
def test_recorded_tool_outputs_prove_at_most_rescored(room: ForgeryRoom) -> None:
    """A run that says that its tests passed has the rewards that this gives, and the level that says so."""
    manifest, rollouts = room.play(live=True)
    assert {one["reward"] for one in rollouts} == {0.0}

    def post_as(change: Callable[[Record], object]) -> Record:
        forged, said = {**manifest, "run_id": new_run_id()}, copy.deepcopy(rollouts)
        for one in said:
            change(one)
        answer = room.post(forged, said)
        assert answer.status_code == 201, answer.text
        room.judge()
        found: Record = room.get(f"/api/v1/runs/{forged['run_id']}")
        return found

    def passed(one: Record) -> None:
        one["completion"][1]["content"] = "TESTS PASSED"
        one["reward"], one["metrics"] = 1.0, {"passed": 1.0}

    assert (post_as(lambda one: None)["level"]) == "rescored"
    forged = post_as(passed)
    assert (forged["level"], forged["summary"]["reward_mean"]) == ("rescored", 1.0)
    assert "the answers of tools are self-reported" in forged["level_reason"]
    assert post_as(lambda one: one.update(reward=1.0, metrics={"passed": 1.0}))["level"] == "claimed"
    assert post_as(lambda one: one.update(metrics={"passed": 1.0}))["level"] == "claimed"


def honest(room: ForgeryRoom) -> Record:
    found: Record = room.get(f"/api/v1/runs/{room.manifest['run_id']}")
    return found
