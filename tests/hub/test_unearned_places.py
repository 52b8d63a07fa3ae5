"""Places that were not earned: false pins, boards made first by posts, other people's weights."""

from __future__ import annotations

import hashlib
import json

import pytest
from hub_jobs import work_off
from hypothesis import given
from hypothesis import strategies as st
from wander.types import EnvironmentInfo
from wander.wire import EnvironmentPin
from wander_hub.jobs import TableQueue

BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"
DETAIL = "/api/v1/environments/alice/reverse-text"
OPTIMAL = hashlib.sha256(b"optimal").hexdigest()


async def post(hub, run_of, sha256, number, reward=0.5, user="alice", change=None, **changes):
    """Post a run after `change` did something to its manifest; return the answer."""
    manifest, rollouts = run_of(sha256, reward=reward, run_id=f"01RUN{number:021d}", **changes)
    if change is not None:
        change(manifest)
    return await hub.post_run(manifest, rollouts, user=user)


def against(**pin):
    """Return what puts an opponent into a manifest."""

    def change(manifest):
        manifest["environment"]["info"]["players"] = ["X", "O"]
        manifest["players"] = {"O": {"name": "scripted:game.players:weak", "kind": "script", **pin}}

    return change


@pytest.mark.parametrize(
    "pin",
    [
        {"weights_sha256": "scripted:game.players:optimal"},
        {"weights_sha256": OPTIMAL},
        {"weights_sha256": "0" * 64},
        {"weights_sha256": OPTIMAL.upper(), "name": "m", "kind": "OpenAIClient"},
        {"weights_sha256": OPTIMAL[:-1], "name": "m", "kind": "OpenAIClient"},
        {"weights_sha256": f"{OPTIMAL}\n", "name": "m", "kind": "OpenAIClient"},
        {"weights_sha256": "0" * 64, "name": "m", "kind": "OpenAIClient"},
        {"chat_template_sha256": "none", "name": "m", "kind": "OpenAIClient"},
        {"revision": "optimal"},
        {"base_url": "https://optimal.example/v1"},
        {"name": "scripted:game.players"},
        {"name": "scripted:game.players:weak:optimal"},
        {"name": "scripted:../optimal.py:weak"},
        {"name": "scripted:game.players:weak optimal"},
        {"kind": "OpenAIClient"},
    ],
    ids=lambda pin: "-".join(f"{name}={str(value)[:12]!r}" for name, value in pin.items()),
)
async def test_an_opponent_has_one_form_of_pin(hub, run_of, pin):
    answer = await post(hub, run_of, await hub.publish(), 1, change=against(**pin))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest"), answer.text


async def test_a_name_that_looks_like_a_digest_is_another_opponent(hub, run_of):
    sha256 = await hub.publish()
    pins = (
        {"name": "m", "weights_sha256": OPTIMAL},
        {"name": OPTIMAL},
        {"name": f"weights {OPTIMAL}"},
        {"name": "m"},
    )
    for number, pin in enumerate(pins):
        answer = await post(hub, run_of, sha256, number, change=against(kind="OpenAIClient", **pin))
        assert answer.status_code == 201, answer.text
    assert (await hub.get(BOARD)).json()["boards"] == len(pins)


OPPONENTS = {
    "a script": ({"name": "scripted:game.players:weak", "kind": "script"}, None),
    "a name": ({"name": "m", "kind": "OpenAIClient"}, "bob"),
    "weights": ({"name": "m", "kind": "TransformersClient", "weights_sha256": OPTIMAL}, "bob"),
    "weights under another name": ({"name": "n", "kind": "VllmClient", "weights_sha256": OPTIMAL}, "bob"),
    "a revision": ({"name": "m", "kind": "OpenAIClient", "revision": "optimal"}, "bob"),
    "a client called scripted": ({"name": "m", "kind": "ScriptedClient"}, "bob"),
}


async def test_a_row_shows_who_reported_the_other_players(hub, run_of):
    sha256 = await hub.publish()
    for number, (pin, _) in enumerate(OPPONENTS.values()):
        answer = await post(hub, run_of, sha256, number, user="bob", change=against(**pin))
        assert answer.status_code == 201, answer.text
    work_off(hub, TableQueue(hub.database), 2 * len(OPPONENTS))
    found = (await hub.get(BOARD)).json()
    boards = [found["board"], *(one["board"] for one in found["others"])]
    rows = {}
    for board in boards:
        shown = (await hub.get(f"{BOARD}?runs=all&board={board}")).json()
        rows |= {row["run_id"]: (row["players_stated_by"], shown["players"]) for row in shown["rows"]}
        page = await hub.get(
            f"/alice/reverse-text/leaderboard?board={board}", headers={"Accept": "text/html"}
        )
        stated = {row["players_stated_by"] for row in shown["rows"]}
        assert ("other players" in page.text) is (stated == {"bob"})
    for number, (pin, stated_by) in enumerate(OPPONENTS.values()):
        run_id = f"01RUN{number:021d}"
        assert rows[run_id][0] == stated_by
        if "weights_sha256" in pin:
            assert OPTIMAL[:12] in rows[run_id][1]["O"], "the board names weights by their digest"
        reason = (await hub.get(f"/api/v1/runs/{run_id}")).json()["level_reason"]
        assert ("the identity of O" in reason) is (stated_by is not None), reason


@pytest.mark.parametrize("place", ["lock", "packages", "source"])
async def test_a_digest_of_zeros_is_rejected(hub, run_of, place):
    def change(manifest):
        manifest["environment"][f"{place}_sha256"] = "0" * 64

    answer = await post(hub, run_of, await hub.publish(), 1, change=change)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest"), answer.text


async def test_an_unknown_lock_is_rejected_even_without_packages(hub, run_of):
    def change(manifest):
        manifest["environment"]["lock_sha256"] = OPTIMAL

    answer = await post(hub, run_of, await hub.publish(), 1, change=change)
    assert (answer.status_code, answer.json()["code"]) == (409, "lock_mismatch"), answer.text


async def test_many_posts_do_not_make_a_board_the_default(hub, run_of):
    sha256 = await hub.publish()
    for number in range(6):
        answer = await post(
            hub, run_of, sha256, number, 1.0, "bob", model=f"GPT-5.5 Pro {number}", examples=1
        )
        assert answer.status_code == 201
    assert (await hub.get(BOARD)).json()["runs"] == 6, "it is the only one"
    assert (await hub.get(DETAIL)).json()["best_model"] is None
    assert (await post(hub, run_of, sha256, 10, 0.5, model="honest", examples=3)).status_code == 201
    first = (await hub.get(BOARD)).json()
    assert ([row["model"] for row in first["rows"]], first["boards"]) == (["honest"], 2)
    detail = (await hub.get(DETAIL)).json()
    assert (detail["best_model"], detail["best_reward"]) == ("honest", 0.5)


NO_STANDARD = {
    "another split": lambda manifest: manifest.update(split="train"),
    "another order": lambda manifest: manifest.update(choice="shuffled"),
    "an order by strata": lambda manifest: manifest.update(choice="strata"),
    "other arguments": lambda manifest: manifest["environment"]["arguments"].update(length=1),
    "an unknown argument": lambda manifest: manifest["environment"]["arguments"].update(easy=True),
    "an opponent": against(),
    "a game of several that the model plays alone": lambda manifest: manifest["environment"]["info"].update(
        players=["X", "O"]
    ),
    "part of the split": lambda manifest: manifest["environment"]["info"].update(eval_examples=4),
    "a split without end": lambda manifest: manifest["environment"]["info"].update(eval_examples=None),
}


@pytest.mark.parametrize(
    "name",
    [*[*NO_STANDARD][:3], *(pytest.param(each, marks=pytest.mark.full) for each in [*NO_STANDARD][3:])],
)
async def test_the_default_board_uses_default_settings_on_the_whole_split(hub, run_of, name):
    answer = await post(hub, run_of, await hub.publish(), 1, change=NO_STANDARD[name])
    assert answer.status_code == 201, answer.text
    assert (await hub.get(DETAIL)).json()["best_model"] is None
    board = (await hub.get(BOARD)).json()["board"]
    arranged = await hub.client.put(
        f"{DETAIL}/versions/0.1.0/boards/{board}", json={"pinned": True}, headers=hub.auth()
    )
    assert arranged.status_code == 200, arranged.text
    assert (await hub.get(DETAIL)).json()["best_model"] == "tiny", "what an owner arranged is shown"


async def test_submitters_do_not_define_the_whole_split(hub, run_of):
    """A run that nobody has replayed states the size of the split, which only the publisher's counts for."""
    answer = await post(hub, run_of, await hub.publish(), 1, 1.0, "bob")
    assert answer.status_code == 201
    assert (await hub.get(DETAIL)).json()["best_model"] is None


SAME = [{}, {"length": 5}, {"length": 5.0}]


async def test_arguments_are_compared_as_resolved(hub, run_of):
    sha256 = await hub.publish()
    for number, arguments in enumerate(SAME):

        def change(manifest, arguments=arguments):
            manifest["environment"]["arguments"] = arguments

        assert (await post(hub, run_of, sha256, number, change=change)).status_code == 201
    found = (await hub.get(BOARD)).json()
    assert (found["boards"], found["runs"], found["arguments"]) == (1, 3, {})


values = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3), st.lists(st.integers()))


@given(st.dictionaries(st.text(min_size=1, max_size=4), values, max_size=4), st.data())
def test_an_argument_that_is_its_default_makes_no_difference(defaults, data):
    given_too = data.draw(st.sets(st.sampled_from(sorted(defaults))) if defaults else st.just(set()))
    info = EnvironmentInfo(name="e", kind="single_turn", defaults=defaults)
    as_floats = {name: float(one) if type(one) is int else one for name, one in defaults.items()}
    for source in (defaults, as_floats):
        pin = EnvironmentPin(name="e", info=info, arguments={name: source[name] for name in given_too})
        assert pin.changed_arguments == {}
    other = EnvironmentPin(name="e", info=info, arguments={name: [defaults[name]] for name in given_too})
    assert set(other.changed_arguments) == given_too


ADDRESSES = [
    {"judge_base_url": "http://10.1.2.3:8000/secret-a"},
    {"judge_base_url": None, "api_base": "https://secret-b.example"},
    {"JUDGE_ENDPOINT": "https://secret-c.example/openai"},
    {"judge": {"base_url": "http://secret-d/", "name": "m"}},
    {"endpoints": ["http://secret-e:8000/v1"]},
]
DISGUISED = [
    {"easy": "http://localhost:8000/secret-f"},
    {"hints": "https://secret-g.example/v1"},
    {"length": "http://127.0.0.1/secret-h"},
    {"judges": ["https://secret-i/v1/chat/completions"]},
    {"judge": {"lenient": "http://localhost/secret-j", "name": "m"}},
    {"endpoint": "secret-k, the easy one"},
]
"""Addresses that code may take for a plain yes, under names that are not those of endpoints."""


async def test_endpoint_addresses_are_hidden_and_do_not_split_boards(hub, run_of):
    sha256 = await hub.publish()
    for number, addresses in enumerate([*ADDRESSES, *DISGUISED]):
        arguments = {"judge": {"name": "m"}, "endpoints": [], "judges": [], **addresses}

        def change(manifest, arguments=arguments):
            manifest["environment"]["arguments"] = arguments

        assert (await post(hub, run_of, sha256, number, change=change)).status_code == 201
    found = (await hub.get(BOARD)).json()
    boards = {found["board"]: found, **{one["board"]: one for one in found["others"]}}
    assert len(boards) == 1 + len(DISGUISED), "nobody stands on a board for whose arguments they did not ask"
    (plain,) = (one for one in boards.values() if one["runs"] == len(ADDRESSES))
    assert plain["arguments"] == {"endpoints": [], "judge": {"name": "m"}, "judges": []}
    assert all("ADDRESS" in json.dumps(one["arguments"]) for one in boards.values() if one is not plain)
    runs = [f"/runs/01RUN{number:021d}" for number in range(len(ADDRESSES) + len(DISGUISED))]
    pages = [f"/alice/reverse-text/leaderboard?board={one}" for one in boards]
    for path in [*runs, *pages, "/alice/reverse-text"]:
        page = await hub.get(path, headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "secret-" not in page.text, path


@pytest.mark.parametrize(
    "arguments",
    [
        {"database_url": "https://data.example/train.jsonl"},
        {"source": "https://data.example/v1/train.jsonl"},
        {"endpoint": 3},
        {"base_url": True},
        {"knowledge_base": "books"},
        {"judge_model": "m"},
    ],
)
def test_arguments_that_are_not_endpoints_split_boards(arguments):
    info = EnvironmentInfo(name="e", kind="single_turn")
    assert EnvironmentPin(name="e", info=info, arguments=arguments).changed_arguments == arguments


async def test_weights_are_marked_as_self_reported(hub, run_of):
    """Nobody pushed these weights, so each link is its poster's word."""
    sha256 = await hub.publish()

    def change(manifest):
        manifest["model"]["weights_sha256"] = OPTIMAL

    assert (await post(hub, run_of, sha256, 1, user="bob", change=change)).status_code == 201
    links = (await hub.get(f"/api/v1/runs/01RUN{1:021d}/links")).json()
    assert links["stated_by"] == "bob"


@pytest.mark.parametrize("reason", ["timeout_reached", "context_overflow"])
async def test_self_reported_endings_are_counted_on_the_row(hub, run_of, reason):
    sha256 = await hub.publish()
    manifest, rollouts = run_of(sha256, run_id="01RUN" + "2" * 21)
    for one in rollouts[:2]:
        one["stop_reason"] = reason
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    (row,) = (await hub.get(BOARD)).json()["rows"]
    assert (row["stated_endings"], row["rollouts"]) == (2, 6)
    assert "2 cut short" in (await hub.get("/alice/reverse-text/leaderboard")).text
