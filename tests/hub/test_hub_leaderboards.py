"""Leaderboards: only comparable complete runs, in order, with ranks as wide as their intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander_hub.leaderboards.bounds import BoardPlace, Bounds

BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"


async def post(hub, run_of, sha256, number, reward, **changes):
    manifest, rollouts = run_of(sha256, reward=reward, run_id=f"01RUN{number:021d}", **changes)
    answer = await hub.post_run(manifest, rollouts)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_rows_are_sorted_and_overlap_widens_ranks(hub, run_of):
    sha256 = await hub.publish()
    size = {"examples": 40, "per_example": 1}
    for number, (model, ones) in enumerate([("weak", 2), ("good", 30), ("alike", 31), ("best", 40)]):
        await post(hub, run_of, sha256, number, [1.0] * ones + [0.0] * (40 - ones), model=model, **size)
    board = (await hub.get(BOARD)).json()
    rows = board["rows"]
    assert [row["model"] for row in rows] == ["best", "alike", "good", "weak"]
    assert [(row["rank_low"], row["rank_high"]) for row in rows] == [(1, 1), (2, 3), (2, 3), (4, 4)]
    assert board["examples"] == 40
    assert (board["arguments"], board["examples"]) == ({}, 40), "`length` is 5 by default"
    assert rows[0]["tokens_per_rollout"] == 14
    assert rows[0]["metrics"]["lcs"] == 1.0


async def test_incomplete_and_training_runs_never_rank(hub, run_of):
    sha256 = await hub.publish()
    await post(hub, run_of, sha256, 0, 0.5, model="whole")
    await post(hub, run_of, sha256, 1, [1.0, 1.0, 1.0, 1.0, 1.0, None], model="one failed")
    await post(hub, run_of, sha256, 2, 1.0, model="training", kind="training")
    board = (await hub.get(BOARD)).json()
    assert [row["model"] for row in board["rows"]] == ["whole"]
    assert board["hidden_incomplete"] == 1
    detail = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert (detail["runs"], detail["best_model"], detail["best_reward"]) == (3, "whole", 0.5)


async def test_a_board_with_only_incomplete_runs_is_empty(hub, run_of):
    sha256 = await hub.publish()
    await post(hub, run_of, sha256, 0, [None] * 6)
    board = (await hub.get(BOARD)).json()
    assert (board["rows"], board["hidden_incomplete"], board["boards"]) == ([], 1, 0)
    assert board["task_set_sha256"] is None


async def test_another_task_set_protocol_or_version_is_another_board(hub, run_of, make_wheel):
    sha256 = await hub.publish()
    await post(hub, run_of, sha256, 0, 0.5, model="a")
    await post(hub, run_of, sha256, 1, 0.6, model="b")
    other_set = await post(hub, run_of, sha256, 2, 0.9, model="c", examples=2)
    await post(hub, run_of, sha256, 3, 0.9, model="d", per_example=3)
    board = (await hub.get(BOARD)).json()
    assert [row["model"] for row in board["rows"]] == ["b", "a"]
    assert board["boards"] == 3
    task_set = other_set["manifest"]["task_set_sha256"]
    chosen = (await hub.get(BOARD, params={"task_set": task_set[:12]})).json()
    assert [row["model"] for row in chosen["rows"]] == ["c"]
    missing = await hub.get(BOARD, params={"task_set": "f" * 64})
    assert (missing.status_code, missing.json()["code"]) == (404, "board_not_found")

    newer = await hub.publish(make_wheel(version="0.2.0"))
    assert (await hub.get(BOARD)).json()["version"] == "0.1.0"  # the newest that has a board
    empty = (await hub.get(BOARD, params={"version": "latest"})).json()
    assert (empty["version"], empty["rows"]) == ("0.2.0", [])
    await post(hub, run_of, newer, 4, 0.1, model="e", version="0.2.0")
    board = (await hub.get(BOARD)).json()
    assert (board["version"], [row["model"] for row in board["rows"]]) == ("0.2.0", ["e"])
    detail = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert (detail["best_model"], detail["best_reward"]) == ("e", pytest.approx(0.1))


async def test_other_arguments_are_another_board(hub, run_of):
    sha256 = await hub.publish()
    await post(hub, run_of, sha256, 0, 0.5)
    manifest, rollouts = run_of(sha256, run_id="01RUN" + "1" * 21)
    manifest["environment"]["arguments"] = {"length": 6}
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    assert (await hub.get(BOARD)).json()["boards"] == 2


async def test_unknown_names_are_not_found(hub):
    await hub.publish()
    assert (await hub.get(BOARD.replace("reverse", "revers"))).json()["code"] == "environment_not_found"
    assert (await hub.get(BOARD, params={"version": "7"})).json()["code"] == "version_not_found"


ends = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)
places = st.builds(lambda tier, ends: BoardPlace(tier, *ends), st.integers(0, 3), ends)


@given(st.lists(places, max_size=12))
def test_rank_ranges_cover_every_possible_order(places):
    bounds = Bounds()
    for one in [*places, *places]:
        bounds.add(one)
    for one in places:
        bounds.remove(one)
    bounds = Bounds(*bounds.dump())
    for one in places:
        first, last = bounds.ranks(one, one)
        assert 1 <= first <= last <= len(places)
        above = [
            each for each in places if each.tier < one.tier or (each.tier == one.tier and each.low > one.high)
        ]
        below = [
            each for each in places if each.tier > one.tier or (each.tier == one.tier and each.high < one.low)
        ]
        assert (first, last) == (1 + len(above), len(places) - len(below))


@given(st.lists(places, max_size=12), places, places)
def test_other_runs_of_a_model_do_not_lower_ranks(others, run, counted):
    bounds = Bounds()
    for one in others:
        bounds.add(one)
    alone = Bounds(*bounds.dump())
    alone.add(run)
    bounds.add(counted)
    assert bounds.ranks(run, counted) == alone.ranks(run, run)


def test_a_single_small_run_has_rank_one():
    small = BoardPlace(2, None, None)
    bounds = Bounds()
    bounds.add(small)
    assert bounds.ranks(small, small) == (1, 1)
    for absent in (BoardPlace(2, 0.0, 1.0), BoardPlace(0, None, None), BoardPlace(3, None, None)):
        with pytest.raises(ValueError, match="no interval"):
            bounds.remove(absent)


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_environments_are_listed_paged_and_searched(hub, make_wheel, limit):
    for name, summary, tags in (
        ("alpha", "Count letters.", "text"),
        ("beta", "Add 50% more.", "math,text-only"),
    ):
        await hub.publish(make_wheel(name=name, summary=summary, keywords=tags))
    await hub.publish(make_wheel(name="alpha"), owner="bob")
    seen, cursor = [], None
    while True:
        params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        page = (await hub.get("/api/v1/environments", params=params)).json()
        seen += [f"{one['owner']}/{one['name']}" for one in page["data"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ["bob/alpha", "alice/beta", "alice/alpha"]

    async def found(**params):
        data = (await hub.get("/api/v1/environments", params=params)).json()["data"]
        return [f"{one['owner']}/{one['name']}" for one in data]

    assert await found(q="letters COUNT") == ["alice/alpha"]
    assert await found(q="50%") == ["alice/beta"]
    assert await found(q="%") == []
    assert await found(q="alpha", owner="bob") == ["bob/alpha"]
    assert await found(tag="text") == ["bob/alpha", "alice/alpha"]
    assert await found(tag="Math") == ["alice/beta"]
