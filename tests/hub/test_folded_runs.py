"""Runs with the same answers are one entry of a board, whatever their names; no level depends on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hub_jobs import work_off
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session, undefer
from wander.types import Rollout
from wander_hub.accounts.models import User
from wander_hub.environments.models import Environment
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards import placement
from wander_hub.leaderboards.models import Board as BoardRow
from wander_hub.leaderboards.models import BoardEntry
from wander_hub.runs.completions import MOST, CompletionSample, completion_digest
from wander_hub.runs.models import Run, RunCompletion

Lines = list[dict[str, Any]]
API = "/api/v1/environments/alice/reverse-text"
HTML = {"Accept": "text/html"}


def name_of(number: int) -> str:
    return f"01RUN{number:021d}"


def say(rollouts: Lines, text: Callable[[dict[str, Any]], str | dict[str, Any]]) -> Lines:
    """Return the rollouts with what each of them says."""
    said = copy.deepcopy(rollouts)
    for one in said:
        words = text(one)
        reply = {"role": "assistant", **(words if isinstance(words, dict) else {"content": words})}
        one["completion"], one["turns"][0]["message"] = [reply], reply
        one["usage"] = one["turns"][0]["usage"] = {"prompt_tokens": 0, "completion_tokens": 0}
    return said


def voice(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda one: f"{name} says {one['example_id']}.{one['index']}"


class Board:
    """One environment on a hub, and runs of it."""

    def __init__(self, hub: Any, run_of: Any, sha256: str) -> None:
        self.hub, self.run_of, self.sha256 = hub, run_of, sha256
        self.count = 0

    async def post(self, text: Any, model: str = "tiny", user: str = "alice", **changes: Any) -> str:
        """Post a run whose rollouts say what `text` makes of them."""
        self.count += 1
        size = {"examples": 6, "per_example": 2} | changes
        manifest, rollouts = self.run_of(self.sha256, run_id=name_of(self.count), model=model, **size)
        answer = await self.hub.post_run(manifest, say(rollouts, text), user=user)
        assert answer.status_code == 201, answer.text
        return str(manifest["run_id"])

    async def rows(self, query: str = "") -> list[dict[str, Any]]:
        return list((await self.hub.get(f"{API}/leaderboard?limit=200&{query}")).json()["rows"])

    async def entries(self) -> dict[str, list[str]]:
        """Return the rows with the runs that are folded under each."""
        return {row["run_id"]: [one["run_id"] for one in row["folded"]] for row in await self.rows()}

    async def change(self, method: str, path: str, user: str = "alice", **body: Any) -> Any:
        given = {"json": body} if body else {}
        return await self.hub.client.request(method, path, headers=self.hub.auth(user), **given)

    def faults(self) -> list[Any]:
        return list(fsck.find_mismatches(self.hub.database, self.hub.client._transport.app.state.storage))


@pytest.fixture
async def board(hub: Any, run_of: Any) -> Board:
    return Board(hub, run_of, await hub.publish())


async def test_runs_with_equal_answers_are_folded_and_keep_their_levels(board: Board) -> None:
    first = await board.post(voice("a"))
    again = await board.post(voice("a"), user="bob")
    renamed = await board.post(voice("a"), model="GPT-5.5 Pro", user="bob")
    other = await board.post(voice("b"), model="other", user="bob")
    work_off(board.hub, TableQueue(board.hub.database), 12)
    assert await board.entries() == {first: [again, renamed], other: []}
    row = next(one for one in await board.rows() if one["run_id"] == first)
    assert (row["people"], row["names"], row["folded_runs"]) == (2, ["tiny", "GPT-5.5 Pro"], 2)
    assert (row["rank_low"], row["rank_high"]) == (1, 2), "two entries, and not four"
    for run_id in (first, again, renamed, other):
        assert (await board.hub.get(f"/api/v1/runs/{run_id}")).json()["level"] == "replayed"
    page = (await board.hub.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert "posted by 2 people, under 2 model names" in page
    assert f'href="/runs/{renamed}"' in page
    every = {one["run_id"]: one["folded_into"] for one in await board.rows("runs=all")}
    assert every == {first: None, again: first, renamed: first, other: None}
    assert [one["run_id"] for one in await board.rows("model=gpt")] == [first], "also by a folded name"
    assert board.faults() == []


@pytest.mark.parametrize(
    ("shared", "folded"),
    [
        *((5, False), (6, True)),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in ((0, False), (1, False), (7, True), (12, True))
        ),
    ],
)
async def test_runs_that_share_half_of_their_completions_are_folded(
    board: Board, shared: int, folded: bool
) -> None:
    def some(one: dict[str, Any]) -> str:
        number = 2 * int(one["example_id"]) + one["index"]
        return voice("a")(one) if number < shared else voice("b")(one)

    first, second = await board.post(voice("a")), await board.post(some, model="b", user="bob")
    assert await board.entries() == ({first: [second]} if folded else {first: [], second: []})


def spoken(one: dict[str, Any]) -> str:
    return f"I think it is {one['example_id']}, or {one['index']}."


SAME: dict[str, Any] = {
    "capitals": lambda one: spoken(one).upper(),
    "spaces": lambda one: f"  {spoken(one).replace(' ', '   ')}\n",
    "punctuation": lambda one: spoken(one).replace(",", ";") + "!!",
    "wide letters": lambda one: spoken(one).translate({ord("t"): "\uff54", ord("I"): "\uff29"}),
    "letters of no width": lambda one: "\u200b".join(spoken(one)),
    "parts": lambda one: {"content": [{"type": "text", "text": spoken(one)}]},
}
OTHER: dict[str, Any] = {
    "a word": lambda one: f"{spoken(one)} Indeed.",
    "reasoning": lambda one: {"content": spoken(one), "reasoning_content": f"mine {one['index']}"},
    "a call": lambda one: {
        "content": spoken(one),
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
    },
    "another example's": lambda one: spoken({**one, "example_id": str(int(one["example_id"]) + 1)}),
}


@pytest.mark.parametrize("how", [*SAME, *OTHER])
async def test_differences_that_make_another_answer(board: Board, how: str) -> None:
    first = await board.post(spoken)
    second = await board.post((SAME | OTHER)[how], model="b", user="bob")
    assert await board.entries() == ({first: [second]} if how in SAME else {first: [], second: []})


async def test_the_order_of_rollouts_of_an_example_does_not_matter(board: Board) -> None:
    first = await board.post(voice("a"))
    swapped = await board.post(lambda one: voice("a")({**one, "index": 1 - one["index"]}), model="b")
    assert await board.entries() == {first: [swapped]}


async def test_answers_of_only_symbols_are_compared(board: Board) -> None:
    first = await board.post(lambda one: "<" if one["index"] else ">")
    second = await board.post(lambda one: "+" if one["index"] else "-", model="b")
    third = await board.post(lambda one: "<" if one["index"] else ">", model="c")
    assert await board.entries() == {first: [third], second: []}


async def test_a_run_similar_to_two_others_does_not_fold_them_together(board: Board) -> None:
    """Nobody folds two rivals together by a run that has half of each one's answers."""
    mine, rival = await board.post(voice("a")), await board.post(voice("b"), model="b", user="bob")
    bridge = await board.post(lambda one: voice("ab"[one["index"]])(one), model="bridge", user="bob")
    assert await board.entries() == {mine: [bridge], rival: []}


async def test_other_protocols_and_private_runs_are_not_folded(board: Board) -> None:
    first = await board.post(voice("a"))
    await board.post(voice("a"), model="b", sampling={"max_tokens": 9})
    board.count += 1
    manifest, rollouts = board.run_of(board.sha256, run_id=name_of(board.count), model="c", examples=6)
    files = {
        "manifest": ("run.json", __import__("json").dumps(manifest)),
        "rollouts": (
            "rollouts.jsonl",
            "".join(__import__("json").dumps(one) + "\n" for one in say(rollouts, voice("a"))),
        ),
    }
    answer = await board.hub.client.post(
        "/api/v1/runs", files=files, data={"private": "true"}, headers=board.hub.auth("bob")
    )
    assert answer.status_code == 201
    hidden = answer.json()["run_id"]
    assert all(not folded for folded in (await board.entries()).values())
    assert (await board.change("POST", f"/api/v1/runs/{hidden}/publish", "bob")).status_code == 200
    named = (await board.hub.get(f"{API}/leaderboard")).json()
    boards = [named["board"], *(one["board"] for one in named["others"])]
    shown = {}
    for one in boards:
        shown |= {row["run_id"]: row["folded"] for row in await board.rows(f"board={one}")}
    assert [one["run_id"] for one in shown[first]] == [hidden]


async def test_the_earliest_run_leads_its_folded_row(board: Board) -> None:
    runs = [await board.post(voice("a"), model=f"m{n}") for n in range(4)]
    assert await board.entries() == {runs[0]: runs[1:]}
    path = f"/api/v1/runs/{runs[0]}/hiding"
    assert (await board.change("PUT", path, reason="a mistake")).status_code == 200
    assert await board.entries() == {runs[1]: runs[2:]}
    assert (await board.change("DELETE", path)).status_code == 204
    assert await board.entries() == {runs[0]: runs[1:]}
    assert (await board.change("DELETE", f"/api/v1/runs/{runs[0]}?reason=wrong")).status_code == 200
    assert await board.entries() == {runs[1]: runs[2:]}
    assert board.faults() == []


async def test_owners_can_unfold_boards_with_short_answers(board: Board) -> None:
    """Two honest models that know the answers to multiple-choice questions say the same."""

    def letters(wrong: str) -> Callable[[dict[str, Any]], str]:
        return lambda one: "D" if one["example_id"] == wrong else "A"

    first, second = await board.post(letters("1")), await board.post(letters("2"), model="b", user="bob")
    assert await board.entries() == {first: [second]}
    shown = (await board.hub.get(f"{API}/leaderboard")).json()
    path = f"{API}/versions/0.1.0/boards/{shown['board']}"
    assert (await board.change("PUT", path, unfolded=True)).status_code == 200
    third = await board.post(letters("3"), model="c", user="bob")
    assert await board.entries() == {first: [], second: [], third: []}
    assert board.faults() == []
    assert (await board.change("PUT", path, unfolded=False)).status_code == 200
    assert await board.entries() == {first: [second, third]}
    assert board.faults() == []


Post = tuple[str, str, str, str, float]
"""The answers to the rollouts 0 and 1 of each example, model, account and mean reward."""


def add_run(session: Session, template: Run, number: int, post: Post) -> Run:
    """Add a run as posting it does: its row, and the digests of its completions."""
    *pair, model, user, reward = post
    columns = {each.key: getattr(template, each.key) for each in inspect(Run).column_attrs}
    summary = template.summary | {
        "reward_mean": reward,
        "reward_low": reward - 0.1,
        "reward_high": reward + 0.1,
    }
    posted_at = template.posted_at + timedelta(seconds=number)
    changed = {"run_id": name_of(1000 + number), "model": model, "summary": summary, "board_level": ""}
    changed |= {"posted_by_id": session.scalars(select(User.id).where(User.name == user)).one()}
    run = Run(**columns | changed | {"posted_at": posted_at, "public_at": posted_at})
    session.add(run)
    session.flush()
    said = [rollout(str(n), index, f"{pair[index]} says {n}.{index}") for n in range(6) for index in (0, 1)]
    session.add_all(RunCompletion(run_id=run.run_id, digest=one) for one in sample(said, 2))
    return run


def shown_now(session: Session) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return what the entries and the boards are; those without a run show nothing."""
    session.flush()
    session.expire_all()
    entries = session.scalars(select(BoardEntry)).all()
    hidden = (undefer(BoardRow.lows), undefer(BoardRow.highs), undefer(BoardRow.tiers))
    boards = session.scalars(select(BoardRow).options(*hidden))
    return (
        {one.run_id: (one.board_id, one.tier, one.withdrawn, one.counts, one.folded_into) for one in entries},
        {one.id: (one.runs, one.models, one.lows, one.highs, one.tiers) for one in boards if one.runs},
    )


CHANGES: dict[str, dict[str, Any]] = {
    "hide": {"hidden": True},
    "show": {"hidden": False},
    "withdraw": {"withdrawn_at": datetime(2026, 11, 28, tzinfo=UTC)},
    "prove": {"level": "replayed"},
    "refute": {"level": "claimed"},
    "fail to verify": {"level": "unverifiable"},
}
posts_of_runs = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from("abc"),
        st.sampled_from(["m", "n"]),
        st.sampled_from(["alice", "bob"]),
        st.sampled_from([0.2, 0.5]),
    ),
    max_size=7,
)


@hypothesis_settings(  # with 100 examples, it takes 11 s
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(posts_of_runs, st.lists(st.tuples(st.integers(0, 6), st.sampled_from(sorted(CHANGES))), max_size=5))
async def test_folding_does_not_depend_on_the_order_of_events(
    board: Board, posts: list[Post], changes: list[tuple[int, str]]
) -> None:
    """A board made again from its runs is the one that grew run by run and change by change."""
    if not board.count:
        await board.post(voice("a template"))
    with board.hub.database.write(HUB) as session:
        template = session.get_one(Run, name_of(1), options=[undefer(Run.manifest)])
        environment = session.get_one(Environment, template.environment_id)
        runs = []
        for number, post in enumerate(posts):
            runs.append(add_run(session, template, number, post))
            placement.place_runs(session, environment)
        for number, change in changes:
            if number < len(runs) and not ("level" in CHANGES[change] and runs[number].withdrawn_at):
                for name, value in CHANGES[change].items():
                    setattr(runs[number], name, value)
                placement.place_runs(session, environment)
        grown = shown_now(session)
        placement.start_over(session, environment)
        placement.place_runs(session, environment)
        assert shown_now(session) == grown
        session.rollback()


def rollout(example: str, index: int, text: str) -> Rollout:
    said = [{"role": "assistant", "content": text}]
    return Rollout(example_id=example, index=index, seed=0, prompt=[], completion=said)


def sample(rollouts: list[Rollout], per_example: int) -> list[int]:
    collected = CompletionSample(per_example)
    for one in rollouts:
        collected.add(one.example_id, completion_digest(one))
    return collected.values()


def test_large_runs_keep_digests_of_the_same_examples() -> None:
    first = [rollout(str(n // 2), n % 2, f"a {n}") for n in range(4_000)]
    second = [rollout(str(n // 2), n % 2, f"{'a' if n % 4 < 2 else 'b'} {n}") for n in range(4_000)]
    one, other = sample(first, 2), sample(second[::-1], 2)
    assert len(one) == len(other) == MOST
    assert 0.4 < len({*one} & {*other}) / MOST < 0.6


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=40), st.lists(st.sampled_from("ab"), max_size=40))
def test_two_runs_share_as_many_digests_as_completions(one: list[str], other: list[str]) -> None:
    """Of one example, the rollouts in common, each counted as often as both have it."""
    left, right = (
        {*sample([rollout("x", n, text) for n, text in enumerate(texts)], 40)} for texts in (one, other)
    )
    assert len(left & right) == sum(min(one.count(text), other.count(text)) for text in "ab")
