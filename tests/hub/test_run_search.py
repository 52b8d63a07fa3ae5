"""A search over the rollouts of all runs finds what the reader may see, and reads a limited amount."""

from __future__ import annotations

from typing import Any

import pytest
from run_parcels import Parcel
from staged_uploads import posted
from wander_hub.accounts import service as accounts
from wander_hub.identity import HUB
from wander_hub.rights.tokens import add_token
from wander_hub.runs import explorer
from wander_hub.runs.explorer import RolloutSearch
from wander_hub.runs.repository import chunks_of
from wander_hub.storage import Storage

API = "/api/v1/runs/rollouts"
HTML = {"Accept": "text/html"}
IDS = [f"01JRUNSEARCH0000000000000{number}" for number in range(4)]


@pytest.fixture
async def runs(hub, run_of) -> list[str]:
    """Four runs on one environment, oldest first. The last one is Bob's private run; Carol has no role."""
    with hub.database.write(HUB) as session:
        hub.tokens["carol"] = add_token(session, accounts.add_user(session, "carol"), "test")
    wheel = await hub.publish()
    for number, run_id in enumerate(IDS):
        manifest, rollouts = run_of(wheel, run_id=run_id, model=f"model-{number % 2}")
        for position, line in enumerate(rollouts):
            line["completion"][-1]["content"] = f"Reply {position} of run {number}"
            line["turns"] = []
            if line["reward"] is not None:
                line["stop_reason"] = "won" if line["reward"] > 0.4 else "lost"
        user, private = ("bob", True) if number == 3 else ("alice", False)
        made = await posted(hub.client, hub.auth(user), Parcel.of(manifest, rollouts), private=private)
        assert made.status_code == 201, made.text
    return [*IDS[:3], made.json()["run_id"]]


async def search(hub, user: str | None = None, **asked: Any) -> dict[str, list[int]]:
    """Return the numbers of the first matches of each run, following all pages."""
    found: dict[str, list[int]] = {}
    cursor = None
    while True:
        params = asked | ({"cursor": cursor} if cursor else {})
        answer = await hub.get(API, params=params, headers=hub.auth(user) if user else {})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        for run in page["data"]:
            assert run["run_id"] not in found, "each run comes once"
            assert run["environment"] == "alice/reverse-text"
            found[run["run_id"]] = [row["number"] for row in run["rollouts"]]
        cursor = page.get("next")
        if cursor is None:
            return found


async def test_runs_are_searched_newest_first_within_what_the_reader_may_see(hub, runs):
    first, second, third, hidden = runs
    everything = {third: [1], second: [1], first: [1]}
    assert await search(hub) == {run_id: [0, 1, 2, 3, 4] for run_id in (third, second, first)}
    assert list((await search(hub, text="reply 1 OF")).items()) == list(everything.items())
    for user, sees in ((None, False), ("carol", False), ("bob", True), ("alice", True)):
        assert (hidden in await search(hub, user, text="reply 1 of")) is sees, user
        assert await search(hub, user, text="of run 3", only="all") == (
            {hidden: [0, 1, 2, 3, 4]} if sees else {}
        )
    assert list(await search(hub, text="reply", model="model-1")) == [second]
    assert await search(hub, environment="alice/reverse-text", text="of run 2") == {third: [0, 1, 2, 3, 4]}


async def test_filters_agree_with_those_of_a_single_run(hub, runs):
    for asked in (
        {"stop_reason": "won"},
        {"reward_min": 0, "reward_max": 0.3},
        {"only": "failed"},
        {"failure": "model"},
        {"text": "reply 4", "only": "scored"},
    ):
        found = await search(hub, **asked)
        for run_id in runs[:3]:
            alone = (await hub.get(f"/api/v1/runs/{run_id}/rollouts", params=asked)).json()
            numbers = [row["number"] for row in alone["data"]][:5]
            assert found.get(run_id, []) == numbers, (asked, run_id)
            page = (await hub.get("/runs/search", params=asked, headers=HTML)).text
            assert all(f"/runs/{run_id}/rollouts/{number}?" in page for number in numbers)


@pytest.mark.parametrize("limit", ["_MOST_RUNS", "_MOST_FOUND", "MOST_SEARCHED"])
async def test_a_page_ends_at_each_limit_and_the_next_continues(hub, runs, monkeypatch, limit):
    whole = await search(hub, text="reply 1 of")
    monkeypatch.setattr(explorer, limit, 8 if limit == "MOST_SEARCHED" else 1)
    page = (await hub.get(API, params={"text": "reply 1 of"})).json()
    assert (len(page["data"]), page["searched_runs"]) == (1, 1)
    assert await search(hub, text="reply 1 of") == whole
    shown = (await hub.get("/runs/search?text=reply+1+of", headers=HTML)).text
    assert "Search older runs" in shown


async def test_bytes_that_were_read_end_a_page_too(hub, runs, monkeypatch):
    monkeypatch.setattr(explorer, "_MOST_READ", 10)
    page = (await hub.get(API, params={"text": "that nothing holds"})).json()
    assert (page["searched_runs"], page["data"]) == (1, [])
    assert page["next"]


async def test_a_run_that_is_too_large_is_named_and_withdrawn_ones_are_left_out(hub, runs, monkeypatch):
    withdrawn = await hub.client.delete(
        f"/api/v1/runs/{runs[0]}", params={"reason": "a mistake"}, headers=hub.auth("alice")
    )
    assert withdrawn.status_code == 200, withdrawn.text
    assert runs[0] not in await search(hub, text="reply 1 of")
    monkeypatch.setattr(explorer, "MOST_SEARCHED", 3)
    page = (await hub.get(API, params={"text": "reply"})).json()
    assert page["data"] == []
    assert page["too_large"] == [runs[2]]


async def test_a_run_without_its_files_is_named_and_the_search_continues(hub, runs):
    with hub.database.read(HUB) as session:
        (chunk,) = chunks_of(session, runs[1])
    Storage.of(hub.settings).delete(chunk.object_sha256)
    page = (await hub.get(API, params={"text": "reply", "reward_min": -5})).json()
    assert page["missing"] == [runs[1]]
    assert {run["run_id"] for run in page["data"]} == {runs[0], runs[2]}
    shown = await hub.get("/runs/search?text=reply&reward_min=-6", headers=HTML)
    assert "a file is missing" in shown.text


async def test_invalid_searches_are_rejected(hub, runs):
    for asked in ({"reward_min": "nan"}, {"text": "x" * 201}, {"cursor": "x"}, {"only": "good"}):
        assert (await hub.get(API, params=asked)).status_code == 422, asked
    assert (await hub.get(API, params={"text": "y", "environment": "alice/none"})).status_code == 404
    empty = await hub.get("/runs/search", headers=HTML)
    assert empty.status_code == 200
    assert "No rollouts match" not in empty.text, "nothing was asked yet"


def test_every_field_of_a_search_reaches_the_rollouts_or_the_runs():
    given = {
        "text": "a",
        "only": "failed",
        "reward_min": 0.0,
        "reward_max": 1.0,
        "stop_reason": "b",
        "failure": "model",
    }
    assert RolloutSearch(**given).filter.asked() == given
    assert set(given) | {"environment", "model", "cursor"} == set(RolloutSearch.model_fields)
