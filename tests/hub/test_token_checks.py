"""The hub counts completion tokens with the tokenizer of the model that a run names, where it has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hub_jobs import work_off
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from wander.types import Rollout
from wander.wire.verification import STATED, STATED_BUT_COUNTED
from wander_hub.jobs import TableQueue
from wander_hub.settings import Settings
from wander_hub.verification import evidence, tokens
from wander_hub.verification.tokens import count_tokens, find_tokenizer

MODEL = "org/small"
WORDS = "The answer to this is four, since two and two make four."
CHINESE = "答案是四因为二加二等于四"
RUN = "01JRUN0000000000000000000A"
Change = Callable[[dict[str, Any], int], None]
BOARD = "/api/v1/environments/alice/reverse-text/leaderboard"


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        made.train_from_iterator([WORDS, CHINESE] * 3, trainer)
        made.enable_padding(length=5000)  # as some files have it; neither may change a count
        made.enable_truncation(7)
        yield made


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    place = tmp_path / "tokenizers" / MODEL / "tokenizer.json"
    place.parent.mkdir(parents=True)
    place.write_text(tokenizer.to_str())
    return tmp_path / "tokenizers"


class Room:
    """A hub with tokenizers, whose replays find every run the same."""

    def __init__(self, hub: Any, run_of: Any, folder: Path) -> None:
        self.hub, self.run_of, self.folder = hub, run_of, folder
        self.queue = TableQueue(hub.database)

    async def post(self, change: Change) -> None:
        (run_id,) = await self.post_all([change])
        assert run_id == RUN

    async def post_all(self, changes: Iterable[Change], models: Iterable[str] = repeat(MODEL)) -> list[str]:
        wheel, ids = await self.hub.publish(), []
        for at, (change, model) in enumerate(zip(changes, models, strict=False)):
            ids.append(f"{RUN[:-1]}{chr(ord('A') + at)}")
            manifest, rollouts = self.run_of(wheel, model=model, run_id=ids[-1])
            for number, line in enumerate(rollouts):
                change(line, number)
            answer = await self.hub.post_run(manifest, rollouts)
            assert answer.status_code == 201, answer.text
        return ids

    def examine(self) -> None:
        work_off(self.hub, self.queue, 6, tokenizers=self.folder)

    def examine_again(self, why: str) -> None:
        with self.hub.database.write() as session:
            evidence.submit(session, self.queue, RUN, why)
        self.examine()

    async def evidence(self, run_id: str = RUN) -> dict[str, Any]:
        return dict((await self.hub.get(f"/api/v1/runs/{run_id}/evidence")).json())

    async def page(self, run_id: str) -> str:
        return str((await self.hub.get(f"/runs/{run_id}", headers={"Accept": "text/html"})).text)


@pytest.fixture
def room(hub: Any, run_of: Any, folder: Path) -> Room:
    return Room(hub, run_of, folder)


def state(stated: int, **message: Any) -> Change:
    """Return what makes every rollout say a message and state so many tokens."""

    def change(line: dict[str, Any], number: int) -> None:
        said = {"role": "assistant", "content": WORDS, **message}
        usage = {"prompt_tokens": 10, "completion_tokens": stated}
        turn = {"message": said, "context_messages": 1, "usage": {"completion_tokens": stated}}
        line |= {"completion": [said], "turns": [turn], "usage": usage}

    return change


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "run", "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def but_the_first(line: dict[str, Any], number: int) -> None:
    state(12 if number == 0 else 0)(line, number)


def without_turns(line: dict[str, Any], number: int) -> None:
    state(1)(line, number)
    line["turns"] = []


def with_short_turns(line: dict[str, Any], number: int) -> None:
    state(1)(line, number)
    line["turns"][0]["message"] = {"role": "assistant", "content": "4"}


def with_one_id(line: dict[str, Any], number: int) -> None:
    state(1)(line, number)
    line["turns"][0]["tokens"] = {"prompt_ids": [1], "completion_ids": [1], "logprobs": [-0.5]}


FORGERIES = {
    "one token a rollout": state(1),
    "one token for an answer and its reasoning": state(1, content="4", reasoning_content=WORDS),
    "one token for a tool call": state(1, **call(json.dumps({"code": WORDS}))),
    "one token for a tool call that is no JSON": state(1, **call(f"{{code: {WORDS}")),
    "no token but for the first rollout": but_the_first,
    "one token, and no turns": without_turns,
    "one token and one id": with_one_id,
    "one token for a turn that says less than what was scored": with_short_turns,
}
HONEST = {
    "what the tokenizer counts": state(12),
    "more, for what the endpoint hides": state(900),
    "an answer of one token": state(1, content="4"),
    "arguments that the endpoint escaped": state(4, **call(json.dumps({"say": CHINESE}))),
    "bytes that are no text": state(60, content="\ufffd" * 60),
    "arguments with half of a pair": state(2, **call('{"say": "\\ud83d"}')),
}


async def test_runs_that_understate_their_tokens_rank_nowhere(room: Room) -> None:
    made = dict(zip(FORGERIES, await room.post_all(FORGERIES.values()), strict=True))
    room.examine()
    for forgery, run_id in made.items():
        found = await room.evidence(run_id)
        assert found["level"] == "claimed", forgery
        reason = "it understates its tokens, so it is not ranked: 6 rollouts state"
        assert found["level_reason"].startswith(reason), forgery
        assert found["tokens"]["stated"] < found["tokens"]["least"] < found["tokens"]["counted"], forgery
        assert found["stated"] == STATED, forgery
    assert (await room.hub.get(BOARD)).json()["rows"] == []
    page = await room.page(run_id)
    assert "! tokens understated" in page
    assert "tokens in / out (self-reported)" in page


async def test_matching_token_counts_are_accepted(room: Room) -> None:
    made = dict(zip(HONEST, await room.post_all(HONEST.values()), strict=True))
    room.examine()
    for case, run_id in made.items():
        found = await room.evidence(run_id)
        assert found["level"] == "replayed", case
        assert (found["tokens"]["model"], found["tokens"]["rollouts"]) == (MODEL, 6), case
        assert found["stated"] == STATED_BUT_COUNTED != STATED, case
    page = await room.page(run_id)
    assert "tokens in (self-reported) / out (checked)" in page
    assert "which agrees" in page
    assert f"The submitter reports {STATED_BUT_COUNTED}" in page


async def test_token_counts_equal_those_of_the_tokenizer(room: Room, tokenizer: Tokenizer) -> None:
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.no_truncation()
    await room.post(state(100, content=WORDS * 3))
    room.examine()
    assert (await room.evidence())["tokens"]["counted"] == 6 * len(plain.encode(WORDS * 3))


async def test_other_names_are_no_paths_and_have_no_tokenizer(room: Room, tokenizer: Tokenizer) -> None:
    outside = room.folder.parent / "outside"
    outside.mkdir()
    (outside / "tokenizer.json").write_text(tokenizer.to_str())
    names = ["org/Small", "../outside", "org/../outside"]
    ids = await room.post_all([state(1)] * len(names), names)
    room.examine()
    found = [await room.evidence(run_id) for run_id in ids]
    assert [(one["tokens"], one["stated"]) for one in found] == [(None, STATED)] * len(names)


def test_tokenizers_are_found_by_the_whole_name(folder: Path) -> None:
    (folder / "tiny").mkdir()
    (folder / "tiny" / "tokenizer.json").write_text("{}")
    assert find_tokenizer(folder, MODEL) == folder / MODEL / "tokenizer.json"
    assert find_tokenizer(folder, "tiny") == folder / "tiny" / "tokenizer.json"
    hostile = [
        "",
        ".",
        "org",
        "tiny/",
        "./tiny",
        "/tiny",
        f"{folder}/tiny",
        "*",
        "t?ny",
        "**",
        "org/*",
        "a\0b",
    ]
    assert [find_tokenizer(folder, name) for name in hostile] == [None] * len(hostile)
    assert find_tokenizer(None, MODEL) is None


async def test_runs_without_token_counts_are_not_checked(room: Room) -> None:
    await room.post(state(0))
    room.examine()
    found = await room.evidence()
    assert (found["level"], found["tokens"], found["stated"]) == ("replayed", None, STATED)


async def test_an_invalid_tokenizer_file_lowers_no_run(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    path = room.folder / MODEL / "tokenizer.json"
    path.write_text("{")
    await room.post(state(1))
    room.examine()
    found = await room.evidence()
    assert (found["level"], found["tokens"]) == ("replayed", None)
    assert f"cannot count tokens with {path}" in caplog.text


class Stopped(Exception):
    pass


def test_counting_stops_between_pieces_and_draws_from_long_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / MODEL / "tokenizer.json"
    line: dict[str, Any] = {"example_id": "1", "index": 0, "seed": 1, "prompt": [], "reward": 1.0}
    state(9, content="a" * 1_000_000)(line, 0)
    rollout = Rollout.model_validate(line)
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        count_tokens(path, MODEL, [rollout], 1_000_000, check)
    monkeypatch.setattr(tokens, "MOST_LETTERS", 200 * len(WORDS))
    state(12)(line, 0)
    short = [Rollout.model_validate(line)] * 1000
    found = count_tokens(path, MODEL, short, 1000 * len(WORDS), lambda: None)
    assert found is not None
    assert 100 < found.rollouts < 300, "about 200 of them"
    assert found.stated == 12 * found.rollouts


def test_the_setting_needs_the_library_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDER_HUB_TOKENIZERS", str(tmp_path))
    assert Settings().tokenizers == tmp_path
    with pytest.raises(ValidationError, match="is not a folder"):
        Settings(tokenizers=tmp_path / "none")
    monkeypatch.setattr("wander_hub.settings.find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"pip install 'wander-hub\[tokenizers\]'"):
        Settings()
