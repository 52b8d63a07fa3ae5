"""A walk plays every line of an environment once, asks each conversation once, and can be derived again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from wander import MultiTurnEnv, Rubric, ScriptedClient, stop
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.choices import LINE, line_of
from wander.clients.replay import ReplayClient
from wander.environment import LocalEnvironment
from wander.errors import ConfigError, ModelError, RunError
from wander.evals.exhaustive import ConversationMemo, LineCount, WalkPlan, WalkResult, outcome_of, walk
from wander.evals.replay import replay_run
from wander.evals.run.stopping import StopRequest
from wander.evals.store.folder import RunFolder
from wander.types import SamplingArgs
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

GAME = '''
from wander import MultiTurnEnv, Rubric, stop


class Stones(MultiTurnEnv):
    """Take one or two stones in turn; who takes the last one wins. The model moves first."""

    def openings(self):
        return [
            {"example_id": f"of-{count}", "question": f"{count} stones", "info": {"stones": count}}
            for count in (4, 5)
        ]

    def setup_state(self, state):
        state["stones"] = state["info"]["stones"]
        state["result"], state["invalid"] = None, 0

    def env_response(self, messages, state):
        said = messages[-1]["content"]
        if said not in ("1", "2") or int(said) > state["stones"]:
            state["invalid"] += 1
            return [{"role": "user", "content": f"no: {state['stones']} stones"}]
        state["stones"] -= int(said)
        if state["stones"]:
            options = [1, 2][: state["stones"]]
            state["stones"] -= self.choose(
                state, options, lambda: self.rng(state, state["stones"]).choice(options)
            )
            state["result"] = None if state["stones"] else "lost"
        else:
            state["result"] = "won"
        if state["result"]:
            state["final_env_response"] = [{"role": "user", "content": state["result"]}]
        return [{"role": "user", "content": f"{state['stones']} stones"}]

    @stop
    def over(self, state):
        return state["result"] is not None


def won(state):
    return state["result"] == "won"


def lost(state):
    return state["result"] == "lost"


def invalid_moves(state):
    return state["invalid"]


def load_environment():
    rows = [{"question": f"{count} stones", "info": {"stones": count}} for count in (4, 5)]
    return Stones(eval_dataset=rows, max_turns=6, rubric=Rubric([won, lost, invalid_moves], [1, 0, 0]))
'''


def stones_left(request: ModelRequest) -> int:
    return int(request.messages[-1]["content"].removeprefix("no: ").split()[0])


def perfect(request: ModelRequest) -> str:
    return str(stones_left(request) % 3 or 1)


def greedy(request: ModelRequest) -> str:
    return str(min(2, stones_left(request)))


def stammering(request: ModelRequest) -> str:
    return "hm" if len(request.messages) == 1 else greedy(request)


def mute(request: ModelRequest) -> str:
    return "hm"


@pytest.fixture
def game(tmp_path: Path) -> LocalEnvironment:
    from wander.loading import load_path

    file = tmp_path / "stones.py"
    file.write_text(GAME)
    return LocalEnvironment(load_path(file))


class Counted(ScriptedClient):
    """Counts how often it is asked each conversation."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.asked: Counter[str] = Counter()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked[repr(request.messages)] += 1
        return await super().complete(request)


async def walked(game: Any, client: Client, folder: Path | None = None, **how: Any) -> WalkResult:
    plan = how.pop("plan", WalkPlan())
    return await walk(game, client, plan, folder, EnvironmentPin(name="stones", info=game.info), **how)


async def test_perfect_play_never_loses(game: LocalEnvironment) -> None:
    result = await walked(game, ScriptedClient(perfect))
    assert result.by_opening == {
        "of-4": LineCount(lines=2, won=2),  # 4-1, then 1 or 2, then the rest
        "of-5": LineCount(lines=2, won=2),
    }
    assert result.count == LineCount(lines=4, won=4)
    assert result.count.clean
    assert result.bad == []


async def test_lines_are_counted_with_multiplicity_and_the_bad_ones_are_named(game: LocalEnvironment) -> None:
    client = Counted(greedy)
    result = await walked(game, client)
    # It takes two of four; the environment leaves one, which wins, or takes both.
    assert result.by_opening["of-4"] == LineCount(lines=2, won=1, lost=1)
    assert [(each.example_id, line_of(each)["choices"]) for each in result.bad] == [("of-4", [2])]
    assert outcome_of(result.bad[0]) == "lost"
    assert set(client.asked.values()) == {1}
    assert result.conversations == len(client.asked)


async def test_an_invalid_move_is_counted_regardless_of_the_outcome(game: LocalEnvironment) -> None:
    result = await walked(game, ScriptedClient(stammering))
    assert result.count.invalid == result.count.lines == 4
    assert result.count.won == 3
    silent = await walked(game, ScriptedClient(mute))
    assert silent.count == LineCount(lines=2, unfinished=2, invalid=2)
    assert not silent.count.clean


async def test_every_reply_of_every_depth_is_played_once(game: LocalEnvironment, tmp_path: Path) -> None:
    def one(request: ModelRequest) -> str:
        return "1"

    result = await walked(game, ScriptedClient(one), tmp_path / "run")
    lines = [
        (each.example_id, tuple(line_of(each)["choices"]))
        for each in RunFolder.open(tmp_path / "run").rollouts()
    ]
    assert sorted(lines) == [
        ("of-4", (1, 1)),
        ("of-4", (2,)),
        ("of-5", (1, 1)),
        ("of-5", (1, 2)),
        ("of-5", (2, 1)),
    ]
    assert result.manifest.lines == result.manifest.expected_rollouts == 5
    assert result.manifest.kind == "exhaustive"


async def test_a_recorded_exhaustive_run_replays_exactly(game: LocalEnvironment, tmp_path: Path) -> None:
    await walked(game, ScriptedClient(greedy), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    report = await replay_run(game, folder.manifest, folder.rollouts())
    assert (report.replayed, report.differing, report.expected) == (4, 0, 4)


async def test_recorded_choices_are_only_used_in_a_replay(game: LocalEnvironment) -> None:
    """A run of an evaluation cannot smuggle in the replies that it would have liked."""
    example = (await game.examples("eval"))[0]
    honest = await game.rollout(ScriptedClient(greedy), example)
    assert LINE not in honest.info
    for choice in (1, 2):
        forged = honest.model_copy(update={"info": {LINE: {"choices": [choice], "options": [[1, 2]]}}})
        again = await game.rollout(ReplayClient([forged]), example)
        assert again.completion == honest.completion
        assert LINE not in again.info
    walked_again = await game.rollout(ReplayClient([forged], lines=True), example)
    assert walked_again.info == forged.info


async def test_a_worker_plays_the_same_lines(game: LocalEnvironment, tmp_path: Path) -> None:
    worker = await WorkerEnvironment.start(
        None, None, path=tmp_path / "stones.py", log_path=tmp_path / "log", workers=1
    )
    try:
        there = await walked(worker, ScriptedClient(greedy))
    finally:
        await worker.close()
    here = await walked(game, ScriptedClient(greedy))
    assert there.by_opening == here.by_opening
    assert [each.completion for each in there.bad] == [each.completion for each in here.bad]


async def test_a_stopped_exhaustive_run_resumes(game: LocalEnvironment, tmp_path: Path) -> None:
    stop_request = StopRequest()

    def on_progress(progress: Any) -> None:
        if progress.lines >= 2:
            stop_request.request()

    first = await walked(game, Counted(greedy), tmp_path / "run", stop=stop_request, on_progress=on_progress)
    assert first.interrupted
    assert first.manifest.lines is None
    client = Counted(greedy)
    second = await walked(game, client, tmp_path / "run", resume=True)
    whole = await walked(game, ScriptedClient(greedy))
    assert second.resumed >= 2
    assert second.by_opening == whole.by_opening
    assert sum(client.asked.values()) < whole.conversations
    folder = RunFolder.open(tmp_path / "run")
    assert folder.manifest.lines == len(list(folder.rollouts())) == 4
    with pytest.raises(RunError, match="the seed"):
        await walked(game, client, tmp_path / "run", resume=True, plan=WalkPlan(seed=1))


async def test_an_exhaustive_run_stops_at_the_maximum_number_of_lines(
    game: LocalEnvironment, tmp_path: Path
) -> None:
    result = await walked(game, ScriptedClient(greedy), tmp_path / "run", plan=WalkPlan(max_lines=3))
    assert result.count.lines == 3
    assert result.unexplored == 1
    assert result.manifest.lines is None


async def test_a_line_whose_model_fails_is_counted_as_failed(game: LocalEnvironment) -> None:
    def failing(request: ModelRequest) -> str:
        if request.messages[0]["content"] == "5 stones" and len(request.messages) > 1:
            raise ModelError("no answer")
        return perfect(request)

    result = await walked(game, ScriptedClient(failing))
    assert result.by_opening["of-5"] == LineCount(lines=2, failed=2)
    assert result.by_opening["of-4"].won == 2
    assert not result.count.clean


async def test_exhaustive_runs_need_greedy_sampling_and_declared_replies(game: LocalEnvironment) -> None:
    with pytest.raises(ConfigError, match="greedy"):
        WalkPlan(sampling=SamplingArgs(temperature=0.7))
    assert WalkPlan(sampling=SamplingArgs(max_tokens=5)).greedy.given() == {
        "temperature": 0.0,
        "max_tokens": 5,
    }

    class Plain(MultiTurnEnv):
        def env_response(self, messages: Any, state: Any) -> Any:
            return []

        @stop
        def at_once(self, state: Any) -> bool:
            return True

    plain = LocalEnvironment(Plain([{"question": "?"}], rubric=Rubric([])))
    with pytest.raises(ConfigError, match="declares no openings"):
        await walked(plain, ScriptedClient(mute))


async def test_a_line_takes_only_declared_options(game: LocalEnvironment) -> None:
    memo = ConversationMemo(ScriptedClient(perfect), 0)
    opening = (await game.openings())[0]
    memo.assign("mine", [2])
    assert (await game.rollout(memo, opening, rollout_id="mine")).metrics["lost"] == 0.0
    memo.assign("mine", [7])
    refused = await game.rollout(memo, opening, rollout_id="mine")
    assert refused.failure is not None
    assert "not among the options [1,2]" in refused.failure.message


async def test_equal_simultaneous_conversations_are_sampled_once() -> None:
    asked = 0

    class Slow(Client):
        model = "slow"

        async def complete(self, request: ModelRequest) -> ModelResponse:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return ModelResponse(message={"role": "assistant", "content": str(request.seed)})

    memo = ConversationMemo(Slow(), 0)
    message = [{"role": "user", "content": "?"}]
    requests = [ModelRequest(rollout_id=str(n), turn=0, messages=message, seed=n) for n in range(5)]
    answers = await asyncio.gather(*(memo.complete(request) for request in requests))
    assert asked == 1
    assert len({answer.message["content"] for answer in answers}) == 1
