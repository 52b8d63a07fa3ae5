"""`wander-hub fsck` on runs and boards: damage is told, and all is made anew from the rollouts."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, select, update
from wander_hub.environments.models import Environment
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.runs.models import Run, RunChunk
from wander_hub.storage import Storage
from wander_hub.transfers import objects

BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"
BEST = "01RUN000000000000000000001"


@pytest.fixture
def storage(hub: Any) -> Storage:
    return hub.client._transport.app.state.storage


@pytest.fixture
async def posted(hub: Any, run_of: Any) -> Any:
    """Three runs of two models, one of which is hidden, on an arranged board."""
    sha256 = await hub.publish()
    for number, (model, reward) in enumerate([("a", 0.9), ("b", 0.5), ("a", 0.7), ("c", 0.8)], start=1):
        rewards = [reward, reward, 1.0, 0.0, reward, None if model == "c" else 0.25]
        manifest, rollouts = run_of(sha256, reward=rewards, model=model, run_id=f"01RUN{number:021d}")
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
    board = (await hub.get(BOARD)).json()["board"]
    path = f"/api/v1/environments/alice/reverse-text/versions/0.1.0/boards/{board}"
    arranged = await hub.client.put(path, json={"title": "All", "pinned": True}, headers=hub.auth())
    assert arranged.status_code == 200, arranged.text
    hidden = await hub.client.put(
        "/api/v1/runs/01RUN000000000000000000003/hiding", json={"reason": "wrong"}, headers=hub.auth()
    )
    assert hidden.status_code == 200, hidden.text
    return hub


def findings(hub: Any, storage: Storage, **options: bool) -> list[tuple[str, str]]:
    return [(one.code, one.subject) for one in fsck.find_mismatches(hub.database, storage, **options)]


def one_run(**values: Any) -> Any:
    return update(Run).where(Run.run_id == BEST).values(values)


LABEL = "alice/reverse-text"
DAMAGES = {
    "reward": (one_run(reward_mean=0.99), [("aggregates_wrong", BEST)]),
    "summary": (
        one_run(summary={"rollouts": 6, "expected": 6, "failed": 0, "examples": 3, "reward_mean": 1.0}),
        [("aggregates_wrong", BEST)],
    ),
    "order": (one_run(order_sha256="0" * 64), [("aggregates_wrong", BEST), ("object_missing", "0" * 64)]),
    "level": (
        update(Run).where(Run.model == "c").values(level="complete"),
        [("aggregates_wrong", "01RUN000000000000000000004")],
    ),
    "entries": (delete(BoardEntry).where(BoardEntry.run_id == BEST), [("board_wrong", LABEL)]),
    "score": (
        update(BoardEntry).where(BoardEntry.run_id == BEST).values(shortfall=-1.5),
        [("board_wrong", LABEL)],
    ),
    "lead": (update(BoardEntry).values(counts=False), [("board_wrong", LABEL)]),
    "bounds": (update(Board).values(lows=b"", highs=b""), [("board_wrong", LABEL)]),
    "count": (update(Board).values(runs=9), [("board_wrong", LABEL)]),
}


async def test_fsck_rebuilds_numbers_and_boards(posted: Any, storage: Storage) -> None:
    good = (await posted.get(BOARD)).json()
    run = (await posted.get(f"/api/v1/runs/{BEST}")).json()
    assert findings(posted, storage) == []
    for damage, (statement, expected) in DAMAGES.items():
        with posted.database.write(HUB) as session:
            session.execute(statement)
        told = [one for one in findings(posted, storage) if one[0] != "totals_wrong"]
        assert sorted(told) == expected, damage
        again = [one for one in findings(posted, storage) if one[0] != "totals_wrong"]
        assert again == told, "looking changes nothing"
        assert {code for code, _ in findings(posted, storage, repair=True)} <= {
            *(code for code, _ in expected),
            "totals_wrong",
            "board_wrong",
        }
        assert findings(posted, storage) == [], damage
        assert (await posted.get(BOARD)).json() == good, "titles, pins and hidden runs included"
        assert (await posted.get(f"/api/v1/runs/{BEST}")).json() == run, damage


async def test_a_run_with_a_wrong_digest_is_reported_and_kept(posted: Any, storage: Storage) -> None:
    with posted.database.write(HUB) as session:
        session.execute(
            one_run(manifest=session.get_one(Run, BEST).manifest.replace('"seed": 7', '"seed": 8'))
        )
    assert findings(posted, storage, repair=True) == [("run_changed", BEST)]
    assert findings(posted, storage) == [("run_changed", BEST)]


async def test_a_run_with_lost_rollouts_is_reported_once(
    posted: Any, storage: Storage, folder_alone: None
) -> None:
    with posted.database.read(HUB) as session:
        chunk = session.query(RunChunk).filter_by(run_id=BEST).one()
        storage.delete(chunk.object_sha256)
    assert findings(posted, storage, repair=True) == [("object_missing", chunk.object_sha256)]


async def test_a_damaged_order_of_rollouts_is_rebuilt(
    posted: Any, storage: Storage, folder_alone: None
) -> None:
    with posted.database.read(HUB) as session:
        order = session.get_one(Run, BEST).order_sha256
    path = storage.local_path(order)
    path.write_bytes(bytes(path.stat().st_size))
    told = findings(posted, storage, repair=True)
    assert told[0] == ("object_corrupt", order)
    assert ("aggregates_wrong", BEST) in told
    assert findings(posted, storage) == []


@pytest.mark.full  # the tests around it compare few objects, in one part
async def test_many_objects_are_compared_part_by_part(
    posted: Any, storage: Storage, folder_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_MOST_HELD", 3)
    with posted.database.read(HUB) as session:
        chunks = session.scalars(select(RunChunk.object_sha256)).all()
        assert len(objects.parts_of_digests(session)) == 256
    assert findings(posted, storage) == []
    for one in chunks:
        storage.delete(one)
    assert findings(posted, storage) == [("object_missing", one) for one in sorted(chunks)]


async def test_quick_mode_skips_runs(posted: Any, storage: Storage) -> None:
    with posted.database.write(HUB) as session:
        session.execute(one_run(reward_mean=0.99))
        session.execute(update(Environment).values(version_count=7))
    assert findings(posted, storage, quick=True) == [("totals_wrong", LABEL)]
