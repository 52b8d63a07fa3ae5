"""Copies that were changed so as not to look like one, honest runs that look alike, and repetitions."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hub_jobs import work_off
from wander.types import Rollout
from wander_hub.jobs import Job, TableQueue
from wander_hub.verification import evidence, likeness

Lines = list[dict[str, Any]]
WORDS = [
    "".join(random.Random(number).choices("aeiounrstlmdpcgh", k=2 + number % 8)) for number in range(3000)
]


def essay(seed: object, words: int = 80) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=words))


def say(rollouts: Lines, text: Callable[[dict[str, Any]], str]) -> Lines:
    """Return the rollouts with what each of them says."""
    said = copy.deepcopy(rollouts)
    for one in said:
        reply = {"role": "assistant", "content": text(one)}
        one["completion"], one["turns"][0]["message"] = [reply], reply
        for usage in (one["turns"][0]["usage"], one["usage"]):
            usage["completion_tokens"] = len(reply["content"].encode())
    return said


def own(voice: str) -> Callable[[dict[str, Any]], str]:
    return lambda one: essay(f"{voice} {one['example_id']} {one['index']}")


def rewrite(change: Callable[[str, int], str]) -> Callable[[Lines], Lines]:
    def changed(rollouts: Lines) -> Lines:
        texts = {
            one["example_id"] + str(one["index"]): change(one["completion"][0]["content"], at)
            for at, one in enumerate(rollouts)
        }
        return say(rollouts, lambda one: texts[one["example_id"] + str(one["index"])])

    return changed


def one_in(count: int) -> Callable[[str, int], str]:
    def change(text: str, _: int) -> str:
        words = text.split()
        return " ".join("however" if at % count == 0 else word for at, word in enumerate(words))

    return change


def bogus_turn(rollouts: Lines) -> Lines:
    changed = copy.deepcopy(rollouts)
    changed[0]["turns"].append(
        {"message": {"role": "assistant", "content": essay("nobody")}, "context_messages": 2}
    )
    changed[0]["usage"]["completion_tokens"] *= 2
    return changed


def other_turns(rollouts: Lines) -> Lines:
    changed = copy.deepcopy(rollouts)
    for one in changed:
        one["turns"][0]["message"] = {"role": "assistant", "content": essay(f"turn {one['example_id']}")}
    return changed


def swapped(rollouts: Lines) -> Lines:
    """Every example's rollouts in another order."""
    by_example: dict[str, list[str]] = {}
    for one in rollouts:
        by_example.setdefault(one["example_id"], []).append(one["completion"][0]["content"])
    return say(rollouts, lambda one: by_example[one["example_id"]][::-1][one["index"]])


COPIES: dict[str, Callable[[Lines], Lines]] = {
    "as it is": copy.deepcopy,
    "a word changed in one rollout": rewrite(
        lambda text, at: text.replace(" ", " or ", 1) if not at else text
    ),
    "a word added to every rollout": rewrite(lambda text, _: f"{text} indeed"),
    "one word in fifteen changed": rewrite(one_in(15)),
    "signs and upper case": rewrite(lambda text, _: text.title().replace(" ", ",  ")),
    "spaces between letters": rewrite(lambda text, _: " ".join(text)),
    "wide letters": rewrite(
        lambda text, _: "".join(chr(ord(one) + 0xFEE0) if one.isalpha() else one for one in text)
    ),
    "invisible characters": rewrite(lambda text, _: "\u200b".join(text)),
    "letters of other scripts": rewrite(
        lambda text, _: text.translate(
            str.maketrans("aeopcyxi", "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456")
        )
    ),
    "letters that nobody sees": rewrite(lambda text, _: "\u3164".join(text)),
    "small marks": rewrite(lambda text, _: "\u02d1".join(text)),
    "as long a text before it": rewrite(lambda text, at: f"{essay(at)} {text}"),
    "half of the rollouts": rewrite(lambda text, at: text if at % 2 else essay(f"weak {at}")),
    "its second half left out": rewrite(lambda text, _: text[: len(text) * 3 // 4]),
    "a bogus turn": bogus_turn,
    "other text in the turns": other_turns,
    "rollouts in another order": swapped,
}


class Hub:
    """One environment, runs of it, and the jobs that read them."""

    def __init__(self, hub: Any, run_of: Any, sha256: str) -> None:
        self.hub, self.run_of, self.sha256 = hub, run_of, sha256
        self.queue = TableQueue(hub.database)
        self.trusted: tuple[str, ...] = ()

    def new(self, number: int, voice: str, **changes: Any) -> tuple[dict[str, Any], Lines]:
        manifest, rollouts = self.run_of(self.sha256, run_id=f"01RUN{number:021d}", **changes)
        return manifest, say(rollouts, own(voice))

    async def post(self, run: tuple[dict[str, Any], Lines], user: str, private: bool = False) -> str:
        manifest, rollouts = run
        form = {"private": "true"} if private else {}
        lines = "".join(json.dumps(one) + "\n" for one in rollouts).encode()
        files = {
            "manifest": ("run.json", json.dumps(manifest).encode(), "application/json"),
            "rollouts": ("rollouts.jsonl", lines, "application/x-ndjson"),
        }
        answer = await self.hub.client.post(
            "/api/v1/runs", files=files, data=form, headers=self.hub.auth(user)
        )
        assert answer.status_code == 201, answer.text
        return str(manifest["run_id"])

    def examine(self) -> None:
        work_off(self.hub, self.queue, 40, trusted=self.trusted)

    async def run(self, run_id: str, user: str | None = None) -> dict[str, Any]:
        headers = self.hub.auth(user) if user else {}
        return (await self.hub.get(f"/api/v1/runs/{run_id}", headers=headers)).json()

    async def duplicate_of(self, run_id: str) -> str | None:
        return (await self.hub.get(f"/api/v1/runs/{run_id}/evidence")).json()["duplicate_of"]


@pytest.fixture
async def place(hub: Any, run_of: Any) -> Hub:
    return Hub(hub, run_of, await hub.publish())


async def test_copies_rank_nowhere_however_they_are_changed(place: Hub) -> None:
    """All of them on one hub, so that the copies of a run are not taken for its originals either."""
    size = {"examples": 6, "per_example": 2}
    manifest, rollouts = place.new(1, "honest", **size)
    first = await place.post((manifest, rollouts), "alice")
    honest = [first, await place.post(place.new(2, "other", model="other", **size), "bob")]
    made = {}
    for number, (name, change) in enumerate(COPIES.items(), start=3):
        forged, _ = place.new(number, "", model=f"better-{number}", **size)
        made[name] = await place.post((forged, change(rollouts)), "bob")
    place.examine()
    found = {name: (await place.duplicate_of(run_id)) for name, run_id in made.items()}
    assert found == dict.fromkeys(made, first)
    assert {(await place.run(run_id))["level"] for run_id in made.values()} == {"claimed"}
    assert [(await place.run(run_id))["level"] for run_id in honest] == ["replayed"] * 2


async def test_a_run_that_was_put_together_from_several_is_a_copy(place: Hub) -> None:
    """Of each the rollouts that went best, so that no third of them is of one run."""
    size = {"examples": 12, "per_example": 1}
    sources = []
    for number in range(1, 5):
        manifest, rollouts = place.new(number, f"model {number}", model=f"honest-{number}", **size)
        sources.append((await place.post((manifest, rollouts), "alice"), rollouts))
    made = []
    for number, taken in ((9, (1,)), (10, (1, 2))):
        forged, mixed = place.new(number, f"own {number}", model=f"mixed-{number}", **size)
        lines = [sources[at % 4][1][at] if at % 3 in taken else one for at, one in enumerate(mixed)]
        made.append(await place.post((forged, lines), "bob"))
    place.examine()
    third, most = [await place.duplicate_of(run_id) for run_id in made]
    assert (third, most) == (None, sources[0][0]), "a third of four others' may be a coincidence"
    assert {(await place.run(run_id))["level"] for run_id, _ in sources} == {"replayed"}


async def test_a_copy_of_a_greedy_run_whose_rollouts_of_an_example_agree_is_found(place: Hub) -> None:
    size = {"examples": 6, "per_example": 2}
    manifest, rollouts = place.new(1, "", **size)
    rollouts = say(rollouts, lambda one: essay(f"greedy {one['example_id']}"))
    first = await place.post((manifest, rollouts), "alice")
    forged, _ = place.new(2, "", model="better", **size)
    added = COPIES["a word added to every rollout"](rollouts)
    copied = await place.post((forged, added), "bob")
    place.examine()
    assert await place.duplicate_of(copied) == first


async def test_two_scripts_may_share_words_and_a_model_may_not_share_a_scripts(place: Hub) -> None:
    manifest, rollouts = place.new(1, "script", model="scripted:guess.players:careful")
    posted = [await place.post((manifest, rollouts), "alice")]
    for number, name, how in (
        (2, "scripted:guess.players:hasty", "half of the rollouts"),
        (3, "scripted:guess.players:same", "as it is"),
        (4, "better", "half of the rollouts"),
    ):
        posted.append(await place.post((place.new(number, "", model=name)[0], COPIES[how](rollouts)), "bob"))
    place.examine()
    first = posted[0]
    assert [await place.duplicate_of(one) for one in posted] == [None, None, first, first]


async def test_a_copy_that_is_read_before_what_it_copies_is_found(place: Hub) -> None:
    manifest, rollouts = place.new(1, "honest")
    first = await place.post((manifest, rollouts), "alice")
    forged, _ = place.new(2, "", model="better")
    copied = await place.post((forged, COPIES["one word in fifteen changed"](rollouts)), "bob")
    with place.hub.database.write() as session:
        for job in session.query(Job).filter_by(kind=evidence.KIND):
            job.priority = 9 if copied in job.key else 1
    place.examine()
    assert await place.duplicate_of(copied) == first
    assert await place.duplicate_of(first) is None


async def test_copies_of_private_runs_are_looked_for_when_these_become_public(place: Hub) -> None:
    manifest, rollouts = place.new(1, "honest")
    first = await place.post((manifest, rollouts), "alice", private=True)
    forged, _ = place.new(2, "", model="better")
    copied = await place.post((forged, COPIES["one word in fifteen changed"](rollouts)), "bob")
    hidden = place.new(3, "", model="hidden")[0], COPIES["half of the rollouts"](rollouts)
    secret = await place.post(hidden, "bob", private=True)
    place.examine()
    assert await place.duplicate_of(copied) is None, "what is private accuses nobody"
    for run_id, user in ((first, "alice"), (secret, "bob")):
        answer = await place.hub.client.post(f"/api/v1/runs/{run_id}/publish", headers=place.hub.auth(user))
        assert answer.status_code == 200, answer.text
    place.examine()
    assert [await place.duplicate_of(one) for one in (first, copied, secret)] == [None, first, first]


async def test_a_run_that_cannot_be_examined_does_not_rank(
    place: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await place.post(place.new(1, "honest"), "alice")
    with monkeypatch.context() as broken:
        broken.setattr(likeness, "read_spoken", lambda rollout: int("no number"))
        place.examine()
    run = await place.run(first)
    assert (run["level"], run["level_reason"]) == (
        "claimed",
        "the hub could not examine it for copies (ValueError), so it ranks nowhere",
    )
    with place.hub.database.write() as session:
        evidence.submit(session, place.queue, first, "again")
    place.examine()
    assert (await place.run(first))["level"] == "replayed", (
        "once it can be, it has the level that it deserves"
    )


REWARDS = [0.0, 1.0] * 20
SIZE = {"examples": 40, "per_example": 1, "reward": REWARDS}


@pytest.mark.parametrize(
    ("change", "trusted", "level", "note"),
    [
        (None, (), "rerun", ""),
        ("a word added to every rollout", (), "replayed", "a copy of"),
        ("one word in fifteen changed", (), "replayed", "a copy of"),
        (rewrite(lambda text, at: text if at < 8 else essay(f"mine {at}")), (), "replayed", "8 of 40"),
        (rewrite(lambda text, at: "yes"), (), "replayed", "too short"),
        (rewrite(lambda text, at: "yes"), ("carol",), "replayed", "carol alone"),
        (rewrite(lambda text, at: essay("a form") + str(at)), (), "replayed", "too alike"),
        (None, ("carol",), "replayed", "counts repetitions by carol alone"),
        (None, ("bob",), "rerun", ""),
        (rewrite(lambda text, at: "yes"), ("bob",), "rerun", ""),
        ("as it is", ("bob",), "replayed", "a copy of"),
        (None, ("alice", "bob"), "rerun", ""),
    ],
)
async def test_only_an_independent_repetition_raises_a_run(
    place: Hub, change: Any, trusted: tuple[str, ...], level: str, note: str
) -> None:
    place.trusted = trusted
    manifest, rollouts = place.new(1, "honest", **SIZE)
    first = await place.post((manifest, rollouts), "alice")
    again, theirs = place.new(2, "theirs", rerun_of=first, **SIZE)
    if change is not None:
        theirs = (COPIES[change] if isinstance(change, str) else change)(rollouts)
    second = await place.post((again, theirs), "bob")
    place.examine()
    assert (await place.run(first))["level"] == level
    (one,) = (await place.hub.get(f"/api/v1/runs/{first}/evidence")).json()["reruns"]
    assert (one["run_id"], one["independent"]) == (second, not note)
    assert note in one["note"]
    board = (await place.hub.get("/api/v1/environments/alice/reverse-text/leaderboard?runs=all")).json()
    vouched = {row["run_id"]: row["vouched_by"] for row in board["rows"]}
    assert vouched[first] == (None if note else "bob")
    page = (await place.hub.get("/alice/reverse-text/leaderboard", headers={"Accept": "text/html"})).text
    assert (">by bob</span>" in page) == (not note)


async def test_a_repetition_that_turns_out_to_be_a_copy_vouches_no_more(place: Hub) -> None:
    first = await place.post(place.new(1, "honest", **SIZE), "alice")
    manifest, theirs = place.new(2, "theirs", **SIZE, model="source")
    source = await place.post((manifest, theirs), "admin", private=True)
    again, _ = place.new(3, "theirs", rerun_of=first, **SIZE)
    await place.post((again, theirs), "bob")
    place.examine()
    assert (await place.run(first))["level"] == "rerun"
    path = f"/api/v1/runs/{source}/publish"
    assert (await place.hub.client.post(path, headers=place.hub.auth("admin"))).status_code == 200
    place.examine()
    assert (await place.run(first))["level"] == "replayed"


def rollouts_saying(texts: list[str], **fields: Any) -> list[Rollout]:
    return [
        Rollout(
            example_id=str(number),
            index=0,
            seed=0,
            completion=[{"role": "assistant", "content": text}],
            **{"prompt": [], **fields},
        )
        for number, text in enumerate(texts)
    ]


def test_what_prompt_and_answer_say_and_what_all_rollouts_say_makes_no_copy() -> None:
    right = [essay(f"the answer {number}") for number in range(20)]
    given = [
        one.model_copy(update={"answer": text})
        for one, text in zip(rollouts_saying(right), right, strict=True)
    ]
    found = likeness.compare(given, given)
    assert (found.compared, found.repeated) == (20, 0), "two models that are right say the same"
    form = essay("a form that a fine-tuned model fills in")
    first = rollouts_saying([f"{form} {number}" for number in range(20)])
    second = rollouts_saying([f"{form} {number * 3}" for number in range(20)])
    assert likeness.compare(first, second).repeated <= 1


def test_a_third_of_long_rollouts_makes_a_copy_and_less_does_not() -> None:
    texts = [essay(number) for number in range(30)]
    for copied, expected in ((10, True), (9, False)):
        mixed = rollouts_saying([*texts[:copied], *(essay(f"own {each}") for each in range(30 - copied))])
        found = likeness.compare(rollouts_saying(texts), mixed)
        assert (found.repeated, found.copied) == (copied, expected)
