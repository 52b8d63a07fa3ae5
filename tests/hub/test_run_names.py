"""Runs have names, given by who posted them: shown wherever they are listed, and no part of what they are."""

from __future__ import annotations

import html
from typing import Any

import pytest
from run_parcels import Parcel
from staged_uploads import posted
from wander_hub.audit import list_entries
from wander_hub.identity import HUB

HTML = {"Accept": "text/html"}
NAME = "<b>longer</b> prompt & 2 tries"
ENVIRONMENT = "/alice/reverse-text"
FIRST, SECOND = "01JRUNNAMED0000000000000AA", "01JRUNNAMED0000000000000AB"


@pytest.fixture
async def runs(hub: Any, run_of: Any) -> Any:
    """A hub with two evaluations on one board, of bob and of alice."""
    sha256 = await hub.publish()
    for run_id, model, user in ((FIRST, "small", "bob"), (SECOND, "large", "alice")):
        manifest, rollouts = run_of(sha256, run_id=run_id, model=model)
        assert (await hub.post_run(manifest, rollouts, user=user)).status_code == 201
    return hub


async def rename(hub: Any, name: object, user: str = "bob") -> Any:
    body = {"name": name}
    return await hub.client.put(f"/api/v1/runs/{FIRST}/name", json=body, headers=hub.auth(user))


async def test_the_name_of_a_run_is_shown_everywhere(runs):
    before = (await runs.get(f"/api/v1/runs/{FIRST}")).json()
    pair = (f"run={FIRST}&run={SECOND}", f"run={SECOND}&run={FIRST}")
    places = ("/runs", f"/runs/{FIRST}", ENVIRONMENT, f"{ENVIRONMENT}/leaderboard")
    places = (*places, *(f"/runs/compare?{one}" for one in pair))
    for one in places:  # which are kept until something changes
        assert "longer" not in (await runs.get(one, headers=HTML)).text, one
    assert (await rename(runs, f"  {NAME} ")).json()["name"] == NAME
    for one in places:
        text = (await runs.get(one, headers=HTML)).text
        assert (html.escape(NAME) in text, NAME in text) == (True, False), one
    after = (await runs.get(f"/api/v1/runs/{FIRST}")).json()
    assert after == before | {"name": NAME}, "its digest, record and summary are what they were"
    assert "longer" not in (await runs.get(f"/api/v1/runs/{FIRST}/run.json")).text
    rows = (await runs.get(f"/api/v1/environments{ENVIRONMENT}/leaderboard")).json()["rows"]
    assert {one["run_id"]: one["name"] for one in rows} == {FIRST: NAME, SECOND: None}
    table = (await runs.get(f"/api/v1/environments{ENVIRONMENT}/leaderboard.csv")).text.splitlines()
    assert table[0].split(",")[:4] == ["rank_low", "rank_high", "model", "name"]
    assert sum(NAME in line for line in table) == 1
    assert (await rename(runs, "  ")).json()["name"] is None
    assert "longer" not in (await runs.get("/runs", headers=HTML)).text
    with runs.database.read(HUB) as session:
        told = [one.detail for one in list_entries(session, action="run.rename")]
    assert [(one["before"], one["name"]) for one in told] == [(NAME, None), (None, NAME)]


WRONG = ["x" * 101, "two\nlines", "a\u2028b", "\x1b[31m", "\x85"]


@pytest.mark.parametrize("name", [*WRONG, None, 7, ["a"]])
async def test_a_name_is_one_short_line(runs, name):
    assert (await rename(runs, "x" * 100)).status_code == 200
    assert (await rename(runs, name)).status_code == 422
    assert (await runs.get(f"/api/v1/runs/{FIRST}")).json()["name"] == "x" * 100


async def test_only_the_submitter_names_a_run(runs):
    refused = await rename(runs, "mine", "alice")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted"), "not even the owner there"
    assert (await rename(runs, "tidied up", "admin")).json()["name"] == "tidied up"


async def test_a_run_can_be_named_while_posting(hub, run_of):
    sha256 = await hub.publish()
    parcel = Parcel.of(*run_of(sha256, run_id=FIRST))
    made = await posted(hub.client, hub.auth(), parcel, name=NAME)
    assert (made.status_code, made.json()["name"], made.json()["sha256"]) == (201, NAME, parcel.sha256)
    again = await posted(hub.client, hub.auth(), parcel, name="other")
    assert (again.status_code, again.json()["name"]) == (200, NAME), "posting again changes nothing"


async def test_a_run_can_be_named_when_posted_in_one_request(hub, run_of):
    whole = Parcel.of(*run_of(await hub.publish(), run_id=SECOND))
    files = {"manifest": ("run.json", whole.manifest), "rollouts": ("rollouts.jsonl", whole.lines)}
    for name in WRONG:
        answer = await hub.client.post("/api/v1/runs", data={"name": name}, files=files, headers=hub.auth())
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), name
    sent = await hub.client.post("/api/v1/runs", data={"name": NAME}, files=files, headers=hub.auth())
    assert (sent.status_code, sent.json()["name"], sent.json()["sha256"]) == (201, NAME, whole.sha256)
