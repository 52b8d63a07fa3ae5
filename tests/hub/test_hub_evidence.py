"""What the hub finds by reading runs: copies under another name, and whether a repetition agrees."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from hub_jobs import same_again
from wander.types import Rollout
from wander_hub.jobs import JobWorker, TableQueue
from wander_hub.verification import evidence, service
from wander_hub.verification.evidence import Examiner
from wander_hub.verification.likeness import Digest

Lines = list[dict[str, Any]]


def name_of(number: int) -> str:
    return f"01RUN{number:021d}"


def essay(seed: str, words: int = 60) -> str:
    """Return text that nobody else would write."""
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("aeiounrstlmdp", k=draw.randint(2, 9))) for _ in range(words))


def talkative(rollouts: Lines, word: str = "reasoning") -> Lines:
    """Give every completion enough text to tell runs apart."""
    said = copy.deepcopy(rollouts)
    for one in said:
        text = essay(f"{word} {one['example_id']}/{one['index']}")
        reply = {"role": "assistant", "content": text}
        one["completion"], one["turns"][0]["message"] = [reply], reply
        for usage in (one["turns"][0]["usage"], one["usage"]):
            usage["completion_tokens"] = len(reply["content"].encode())
    return said


class Board:
    """One environment on a hub, runs of it, and the jobs that read and replay them."""

    def __init__(self, hub: Any, run_of: Any, sha256: str) -> None:
        self.hub, self.run_of, self.sha256 = hub, run_of, sha256
        self.queue = TableQueue(hub.database)

    async def post(
        self, number: int, rewards: Any = 0.5, user: str = "alice", word: str = "reasoning", **changes: Any
    ) -> str:
        manifest, rollouts = self.run_of(self.sha256, reward=rewards, run_id=name_of(number), **changes)
        answer = await self.hub.post_run(manifest, talkative(rollouts, word), user=user)
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

    async def ranked(self) -> list[str]:
        board = await self.hub.get("/api/v1/environments/alice/reverse-text/leaderboard?runs=all")
        return [row["run_id"] for row in board.json()["rows"]]


@pytest.fixture
async def board(hub: Any, run_of: Any) -> Board:
    return Board(hub, run_of, await hub.publish())


@pytest.mark.parametrize(
    "other", [{"model": "better"}, {"user": "admin"}, {"model": "better", "user": "admin"}]
)
async def test_a_run_under_another_name_is_marked_and_ranks_nowhere(board: Board, other: Any) -> None:
    first = await board.post(1)
    copied = await board.post(2, **other)
    board.examine()
    run = await board.run(copied)
    assert run["level"] == "claimed"
    assert f"duplicate of `{first}` of `tiny`, posted by alice" in run["level_reason"]
    assert (await board.evidence(copied))["duplicate_of"] == first
    assert (await board.evidence(first))["duplicate_of"] is None
    assert await board.ranked() == [first]
    board.replay(copied, 6)
    assert (await board.run(copied))["level"] == "claimed", "a replay proves nothing about whose it is"
    assert (await board.run(first))["level"] == "replayed"


async def test_a_newline_alone_ends_a_line_that_is_read(board: Board) -> None:
    manifest, rollouts = board.run_of(board.sha256, reward=0.5, run_id=name_of(1))
    said = talkative(rollouts, "one\u2028two\u0085three")
    spaced = [json.dumps(one, ensure_ascii=False, separators=(",\r", ":\r")) for one in said]
    body = "".join(f"{one}\n" for one in spaced).encode()
    assert (await board.hub.post_run(manifest, body)).status_code == 201
    board.examine()
    assert (await board.evidence(name_of(1)))["examined_at"] is not None


async def clear(board: Board, run_id: str, user: str, method: str = "PUT") -> Any:
    body = {"reason": "one right answer"} if method == "PUT" else None
    path = f"/api/v1/runs/{run_id}/clearance"
    return await board.hub.client.request(method, path, json=body, headers=board.hub.auth(user))


async def test_who_manages_the_environment_clears_a_mark_and_the_replays_count(board: Board) -> None:
    first = await board.post(1)
    unmarked = await clear(board, first, "alice")
    assert (unmarked.status_code, unmarked.json()["code"]) == (422, "no_duplicate")
    alike = await board.post(2, user="bob")
    board.examine()
    board.replay(alike, 6)
    assert (await clear(board, alike, "bob")).status_code == 403
    assert (await clear(board, alike, "alice", "DELETE")).json()["code"] == "not_cleared"
    cleared = await clear(board, alike, "alice")
    assert cleared.status_code == 200, cleared.text
    found = cleared.json()
    assert (found["duplicate_of"], found["level"]) == (first, "replayed")
    assert (found["cleared"]["reason"], found["cleared"]["cleared_by"]) == ("one right answer", "alice")
    assert sorted(await board.ranked()) == [first, alike]
    page = (await board.hub.get(f"/runs/{alike}", headers={"Accept": "text/html"})).text
    assert "one right answer" in page
    third = await board.post(3, user="admin")
    board.examine()
    assert (await board.run(third))["level"] == "claimed"
    assert (await board.run(alike))["level"] == "replayed", "what is cleared stays so when another copy comes"
    marked = (await clear(board, alike, "alice", "DELETE")).json()
    assert (marked["level"], marked["cleared"]) == ("claimed", None)
    assert await board.ranked() == [first]


async def test_nobody_clears_a_run_of_their_own_but_administrators(board: Board) -> None:
    await board.post(1, user="bob")
    mine = await board.post(2, user="alice")
    board.examine()
    refused = await clear(board, mine, "alice")
    assert (refused.status_code, refused.json()["code"]) == (403, "own_run")
    assert (await clear(board, mine, "admin")).json()["level"] == "complete"


async def test_the_same_model_evaluated_again_and_other_words_are_no_copies(board: Board) -> None:
    runs = [
        await board.post(1),
        await board.post(2),
        await board.post(3, model="better", word="other reasoning"),
    ]
    board.examine()
    assert sorted(await board.ranked()) == runs


def completions_digest(rollouts: list[Rollout]) -> str | None:
    digest = Digest(b"key")
    for one in rollouts:
        digest.add(one)
    return digest.hexdigest()


def told(text: str, count: int = 8) -> list[Rollout]:
    return [
        Rollout(
            example_id=str(number),
            index=0,
            seed=number,
            prompt=[],
            completion=[{"role": "assistant", "content": f"{number} {text}"}],
        )
        for number in range(count)
    ]


def test_spaces_case_and_rewards_make_no_other_run_of_it() -> None:
    digest = completions_digest(told("I think that it is seven. " * 10))
    assert digest is not None
    assert completions_digest(told("i THINK that it  is seven.. " * 10)) == digest
    dearer = [
        one.model_copy(update={"reward": 1.0, "seconds": 9.0})
        for one in told("I think that it is seven. " * 10)
    ]
    assert completions_digest(dearer) == digest
    assert completions_digest(told("I think that it is eight. " * 10)) != digest
    assert completions_digest(told("I think that it is seven. " * 10)[::-1]) != digest


def test_short_answers_tell_no_runs_apart() -> None:
    assert completions_digest(told("B")) is None
    assert completions_digest([told("B" * 900)[0]] * 50) is None, "one completion again and again says little"


REWARDS = [0.0, 1.0] * 20
SIZE = {"examples": 40, "per_example": 1}


async def rerun(board: Board, rewards: Any, user: str = "bob", word: str = "repeated", **changes: Any) -> str:
    return await board.post(2, rewards, user=user, word=word, rerun_of=name_of(1), **SIZE, **changes)


async def test_an_independent_run_that_agrees_gives_the_highest_level(board: Board) -> None:
    first = await board.post(1, REWARDS, **SIZE)
    second = await rerun(board, REWARDS)
    board.examine()
    assert (await board.run(first))["level"] == "complete", "the rerun itself is not proven yet"
    board.replay(second, 40)
    run = await board.run(first)
    assert run["level"] == "rerun"
    assert f"`{second}` by bob repeated it and agrees: difference +0.0000" in run["level_reason"]
    (one,) = (await board.evidence(first))["reruns"]
    assert (one["run_id"], one["posted_by"], one["independent"]) == (second, "bob", True)
    assert (one["agreement"]["verdict"], one["agreement"]["examples"]) == ("agrees", 40)
    assert (await board.evidence(second))["rerun_of"] == first


@pytest.mark.parametrize(
    ("rewards", "changes", "verdict", "note"),
    [
        (REWARDS, {"user": "alice"}, "agrees", "posted by who posted the run"),
        (REWARDS, {"word": "reasoning"}, "agrees", "a copy of"),
        ([1.0] * 40, {}, "differs", ""),
        (REWARDS, {"sampling": {"temperature": 0.0}}, "agrees", ""),
        (REWARDS, {"model": "another"}, "agrees", ""),
    ],
)
async def test_what_is_no_evidence_raises_nothing(
    board: Board, rewards: Any, changes: Any, verdict: str, note: str
) -> None:
    first = await board.post(1, REWARDS, **SIZE)
    second = await rerun(board, rewards, **changes)
    board.examine()
    board.replay(second, 40)
    assert (await board.run(first))["level"] == "replayed"
    (one,) = (await board.evidence(first))["reruns"]
    assert one["agreement"]["verdict"] == verdict
    assert note in one["note"]


async def test_a_rerun_of_a_run_that_is_not_here_is_a_run_like_any_other(board: Board) -> None:
    one = await board.post(1, rerun_of=name_of(77))
    board.examine()
    found = await board.evidence(one)
    assert (found["rerun_of"], found["level"], found["reruns"]) == (name_of(77), "complete", [])


async def test_runs_that_hold_nothing_and_training_runs_are_not_read(board: Board, hub: Any) -> None:
    manifest, _ = board.run_of(board.sha256, run_id=name_of(1), kind="training")
    assert (await hub.post_run(manifest, None)).status_code == 201
    assert board.queue.claim("reader", [evidence.KIND]) is None
